//! Many deployments at once, each on its own model, cluster and software: what validation and
//! calibration evaluate again and again with other numbers.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use planner_core::cluster::Cluster;
use planner_core::error::Result;
use planner_core::model::Model;
use planner_core::serving::costs::Setting;
use planner_core::serving::deployment::Deployment;
use planner_core::serving::estimate::{Estimate, Mode, Question, Space, answer};
use planner_core::serving::facts::Facts;
use planner_core::serving::hardware::Hardware;
use planner_core::serving::load::Load;
use planner_core::serving::outcome::Limits;
use planner_core::serving::routing::Routing;
use planner_core::serving::rows::{Row, Rows};
use planner_core::serving::rules::{Candidate, Check, RULES};
use planner_core::serving::software::Software;
use planner_core::serving::space::Side;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::{CoreError, CoreResult};
use crate::frame::Frame;

/// One deployment to predict; numbers index the lists of the request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    model: usize,
    cluster: usize,
    hardware: usize,
    software: usize,
    deployment: Deployment,
    load: Load,
}

/// Rules without which a layout has no meaning: stages, replicas, heads and experts that divide. The
/// others are of single backends and versions (MiniMax-M2.5 in blocks of fp8 is listed at TP 8 without
/// expert parallelism, 192 columns of an expert a GPU, which vLLM of that month refused to load).
const DIVISIONS: &[&str] = &["G1", "G2", "G5", "G6", "G7", "G8", "G13", "G15"];

impl Job {
    /// The first of the [`DIVISIONS`] that an engine breaks.
    fn broken_rule(&self, models: &[Model], clusters: &[Cluster]) -> Option<String> {
        let gpus = self.deployment.gpus().into();
        let (model, cluster) = (&models[self.model], &clusters[self.cluster]);
        let facts = match Facts::new(model, cluster, &self.load, gpus) {
            Ok(facts) => facts,
            Err(error) => return Some(error.to_string()),
        };
        let pools = [
            self.deployment.prefill.as_ref(),
            Some(&self.deployment.decode),
        ];
        pools.into_iter().flatten().find_map(|pool| {
            let candidate = Candidate {
                backend: self.deployment.backend,
                precision: &self.deployment.precision,
                side: Side::Mixed,
                engine: &pool.engine,
            };
            let broken = RULES.iter().find(|rule| match rule.check {
                Check::Engine(_, holds) => {
                    DIVISIONS.contains(&rule.id) && !holds(&facts, &candidate)
                }
                Check::Elsewhere(_) => false,
            })?;
            Some(broken.render(&facts, &candidate))
        })
    }
}

/// A fixed list of deployments, predicted under clusters, hardware, software and routing that vary.
#[pyclass(frozen, module = "meshplan._core")]
#[derive(Debug)]
pub struct ServingJobs {
    models: Vec<Model>,
    jobs: Vec<Job>,
}

#[pymethods]
impl ServingJobs {
    /// Parse models (canonical JSON each) and jobs (one JSON list).
    #[new]
    fn new(models: Vec<String>, jobs: &str) -> CoreResult<Self> {
        Ok(Self {
            models: models
                .iter()
                .map(|m| serde_json::from_str(m))
                .collect::<std::result::Result<_, _>>()?,
            jobs: serde_json::from_str(jobs)?,
        })
    }

    fn __len__(&self) -> usize {
        self.jobs.len()
    }

    /// Jobs that make no sense under these lists: (number, reason).
    fn problems(
        &self,
        py: Python<'_>,
        clusters: Vec<String>,
        hardware: Vec<String>,
        software: Vec<String>,
        routing: &str,
    ) -> PyResult<Vec<(usize, String)>> {
        let lists = Lists::parse(&clusters, &hardware, &software, routing)?;
        let all: Vec<usize> = (0..self.jobs.len()).collect();
        let found = self.run(py, &lists, &all, Mode::Mean)?;
        let wrong = found.into_iter().enumerate().filter_map(|(i, outcome)| {
            let reason = match outcome {
                Err(error) => Some(error.to_string()),
                Ok(_) => self.jobs[i].broken_rule(&self.models, &lists.clusters),
            };
            reason.map(|words| (i, words))
        });
        Ok(wrong.collect())
    }

    /// Predict the jobs in `only` (all when `None`): one row each, in order.
    #[pyo3(signature = (clusters, hardware, software, routing, *, only = None))]
    fn predict(
        &self,
        py: Python<'_>,
        clusters: Vec<String>,
        hardware: Vec<String>,
        software: Vec<String>,
        routing: &str,
        only: Option<Vec<usize>>,
    ) -> PyResult<Frame> {
        let lists = Lists::parse(&clusters, &hardware, &software, routing)?;
        let only = only.unwrap_or_else(|| (0..self.jobs.len()).collect());
        let mut rows = Rows::default();
        for estimate in self.run(py, &lists, &only, Mode::Tabulated)? {
            rows.push(&Row::of(&estimate.map_err(CoreError::from)?));
        }
        Frame::new(rows.into_table())
    }
}

impl ServingJobs {
    /// Outcomes of some jobs, in their order, on every core and without the GIL.
    fn run(
        &self,
        py: Python<'_>,
        lists: &Lists,
        only: &[usize],
        mode: Mode,
    ) -> PyResult<Vec<Result<Estimate>>> {
        self.check(lists, only)?;
        let work =
            |i: usize, space: &mut Space| answer(&self.question(only[i], lists, mode), space);
        py.detach(|| in_parallel(only.len(), work))
            .ok_or_else(|| PyRuntimeError::new_err("a thread of the predictions failed"))
    }

    /// Whether every number points into its list: the caller's mistake where not.
    fn check(&self, lists: &Lists, only: &[usize]) -> PyResult<()> {
        for &i in only {
            let job = self.jobs.get(i).ok_or_else(|| beside(i, self.jobs.len()))?;
            for (index, length) in [
                (job.model, self.models.len()),
                (job.cluster, lists.clusters.len()),
                (job.hardware, lists.hardware.len()),
                (job.software, lists.software.len()),
            ] {
                if index >= length {
                    return Err(beside(index, length));
                }
            }
        }
        Ok(())
    }

    fn question<'a>(&'a self, i: usize, lists: &'a Lists, mode: Mode) -> Question<'a> {
        let job = &self.jobs[i];
        Question {
            setting: Setting {
                model: &self.models[job.model],
                cluster: &lists.clusters[job.cluster],
                hardware: &lists.hardware[job.hardware],
                software: &lists.software[job.software],
                backend: job.deployment.backend,
                routing: lists.routing,
                measured: None,
            },
            deployment: &job.deployment,
            load: &job.load,
            limits: Limits::NONE,
            mode,
        }
    }
}

/// What varies between predictions.
struct Lists {
    clusters: Vec<Cluster>,
    hardware: Vec<Hardware>,
    software: Vec<Software>,
    routing: Routing,
}

impl Lists {
    fn parse(
        clusters: &[String],
        hardware: &[String],
        software: &[String],
        routing: &str,
    ) -> CoreResult<Self> {
        Ok(Self {
            clusters: parse(clusters)?,
            hardware: parse(hardware)?,
            software: parse(software)?,
            routing: serde_json::from_str(routing)?,
        })
    }
}

fn parse<T: for<'de> Deserialize<'de>>(texts: &[String]) -> CoreResult<Vec<T>> {
    let parsed: std::result::Result<_, _> = texts.iter().map(|t| serde_json::from_str(t)).collect();
    Ok(parsed?)
}

fn beside(index: usize, length: usize) -> PyErr {
    PyIndexError::new_err(format!("index {index} of {length}"))
}

/// `work(0), …, work(n − 1)` on every core, in this order whatever the thread count; none when a
/// thread panicked. Each thread has a space of its own.
fn in_parallel<T: Send>(n: usize, work: impl Fn(usize, &mut Space) -> T + Sync) -> Option<Vec<T>> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let take = || {
        let (mut space, mut done) = (Space::default(), Vec::new());
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return done;
            }
            done.push((i, work(i, &mut space)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(n)).map(|_| scope.spawn(take)).collect();
        let joined: std::result::Result<Vec<_>, _> =
            workers.into_iter().map(|worker| worker.join()).collect();
        joined
            .ok()
            .map(|parts| parts.into_iter().flatten().collect::<Vec<_>>())
    })?;
    all.sort_unstable_by_key(|(i, _)| *i);
    Some(all.into_iter().map(|(_, result)| result).collect())
}
