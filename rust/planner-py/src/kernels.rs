//! Kernel times.

use planner_core::cluster::Device;
use planner_core::kernels::request::Request;
use pyo3::prelude::*;

use crate::errors::CoreResult;

/// Times of kernels on a device, s: canonical device and a list of requests, both JSON.
#[pyfunction]
pub fn kernel_times(py: Python<'_>, device: &str, requests: &str) -> CoreResult<Vec<f64>> {
    let device: Device = serde_json::from_str(device)?;
    let requests: Vec<Request> = serde_json::from_str(requests)?;
    Ok(py.detach(|| {
        requests
            .iter()
            .map(|r| r.time_s(&device))
            .collect::<Result<_, _>>()
    })?)
}
