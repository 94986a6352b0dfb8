//! KV cache: capacity, prefix caches, trace replay.

use std::path::Path;

use planner_core::kv::{prefix::replay, size, trace};
use pyo3::prelude::*;

use crate::errors::CoreResult;

/// Whether Python has a signal to answer.
fn interrupted() -> bool {
    Python::attach(|py| py.check_signals().is_err())
}

/// Replay a trace file through prefix caches: canonical JSON in, result as JSON out.
#[pyfunction]
pub fn kv_replay(py: Python<'_>, path: &str, trace: &str, options: &str) -> CoreResult<String> {
    let trace: trace::Options = serde_json::from_str(trace)?;
    let options: replay::Options = serde_json::from_str(options)?;
    let out = py.detach(|| {
        let mut reader = trace::Reader::open(Path::new(path), trace)?;
        replay::replay(&mut reader, &options, &interrupted)
    })?;
    Ok(serde_json::to_string(&out)?)
}

/// Blocks, tokens and concurrency of an engine: canonical JSON in, report as JSON out.
#[pyfunction]
pub fn kv_size(py: Python<'_>, query: &str) -> CoreResult<String> {
    py.detach(|| {
        let query: size::Query = serde_json::from_str(query)?;
        query.model.validate()?;
        Ok(serde_json::to_string(&size::size(&query)?)?)
    })
}
