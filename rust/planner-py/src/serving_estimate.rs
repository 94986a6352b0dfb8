//! One deployment under one load: every term by name, and its requests as they were played.

use planner_core::cluster::Cluster;
use planner_core::model::Model;
use planner_core::serving::costs::Setting;
use planner_core::serving::deployment::Deployment;
use planner_core::serving::estimate::{Mode, Question, Space, answer};
use planner_core::serving::hardware::Hardware;
use planner_core::serving::load::Load;
use planner_core::serving::outcome::{Limits, request_table};
use planner_core::serving::routing::Routing;
use planner_core::serving::software::Software;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::CoreError;
use crate::frame::Frame;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    model: Model,
    cluster: Cluster,
    hardware: Hardware,
    software: Software,
    deployment: Deployment,
    load: Load,
    limits: Option<Limits>,
    mode: Mode,
    routing: Routing,
}

/// The estimate of a job as JSON, and the table of its requests (empty where none was played).
#[pyfunction]
pub fn serving_estimate(py: Python<'_>, job: &str) -> PyResult<(String, Frame)> {
    let (told, requests) = py.detach(|| {
        let job: Job = serde_json::from_str(job)?;
        let question = Question {
            setting: Setting {
                model: &job.model,
                cluster: &job.cluster,
                hardware: &job.hardware,
                software: &job.software,
                backend: job.deployment.backend,
                routing: job.routing,
                measured: None,
            },
            deployment: &job.deployment,
            load: &job.load,
            limits: job.limits.unwrap_or(Limits::NONE),
            mode: job.mode,
        };
        let mut space = Space::default();
        let estimate = answer(&question, &mut space)?;
        let told = serde_json::to_string(&estimate)?;
        Ok::<_, CoreError>((told, request_table(space.jobs(&job.deployment))))
    })?;
    Ok((told, Frame::new(requests)?))
}
