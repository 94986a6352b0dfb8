//! Collective times.

use planner_core::cluster::Cluster;
use planner_core::collectives::time::Request;
use pyo3::prelude::*;

use crate::errors::CoreResult;

/// Times of collectives on a cluster, s: canonical cluster and a list of requests, both JSON.
#[pyfunction]
pub fn collective_times(py: Python<'_>, cluster: &str, requests: &str) -> CoreResult<Vec<f64>> {
    let cluster: Cluster = serde_json::from_str(cluster)?;
    let requests: Vec<Request> = serde_json::from_str(requests)?;
    Ok(py.detach(|| {
        requests
            .iter()
            .map(|r| r.time_s(&cluster))
            .collect::<Result<_, _>>()
    })?)
}
