//! KV cache: capacity, prefix caches, trace replay.

use std::path::Path;

use planner_core::kv::{fragment, prefix::replay, schedule, size, sweep, trace, transfer};
use pyo3::prelude::*;

use crate::errors::CoreResult;
use crate::frame::Frame;

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

/// Play continuous batching on a trace: summary as JSON, a frame of requests, a frame over time.
#[pyfunction]
pub fn kv_schedule(
    py: Python<'_>,
    path: &str,
    trace: &str,
    options: &str,
) -> PyResult<(String, Frame, Frame)> {
    let out = py.detach(|| -> CoreResult<_> {
        let trace: trace::Options = serde_json::from_str(trace)?;
        let options: schedule::Options = serde_json::from_str(options)?;
        let mut reader = trace::Reader::open(Path::new(path), trace)?;
        let mut next = |request: &mut trace::Request| reader.next(request);
        Ok(schedule::run(&options, &mut next, &interrupted)?)
    })?;
    let summary = serde_json::to_string(&out.summary).map_err(crate::errors::CoreError::from)?;
    Ok((
        summary,
        Frame::new(out.requests)?,
        Frame::new(out.timeline)?,
    ))
}

/// Lengths of a trace's requests as JSON rows of prompt, answer, occurrences.
#[pyfunction]
pub fn kv_lengths(py: Python<'_>, path: &str, trace: &str) -> CoreResult<String> {
    py.detach(|| {
        let trace: trace::Options = serde_json::from_str(trace)?;
        let mut reader = trace::Reader::open(Path::new(path), trace)?;
        Ok(serde_json::to_string(&fragment::Lengths::of_trace(
            &mut reader,
        )?)?)
    })
}

/// Every combination of the axes for requests of given lengths, as a frame.
#[pyfunction]
pub fn kv_sweep(py: Python<'_>, query: &str, axes: &str, lengths: &str) -> PyResult<Frame> {
    let table = py.detach(|| -> CoreResult<_> {
        let query: size::Query = serde_json::from_str(query)?;
        query.model.validate()?;
        let axes: sweep::Axes = serde_json::from_str(axes)?;
        let lengths: fragment::Lengths = serde_json::from_str(lengths)?;
        Ok(sweep::sweep(&query, &axes, &lengths)?)
    })?;
    Frame::new(table)
}

/// Waste of a block size over lengths, as JSON.
#[pyfunction]
pub fn kv_waste(py: Python<'_>, lengths: &str, block_tokens: u64) -> CoreResult<String> {
    py.detach(|| {
        let lengths: fragment::Lengths = serde_json::from_str(lengths)?;
        Ok(serde_json::to_string(&lengths.waste(block_tokens.max(1)))?)
    })
}

/// Bytes and time of moving a request's cache, as JSON.
#[pyfunction]
pub fn kv_transfer(py: Python<'_>, query: &str) -> CoreResult<String> {
    py.detach(|| {
        let query: transfer::Query = serde_json::from_str(query)?;
        query.model.validate()?;
        Ok(serde_json::to_string(&transfer::transfer(&query)?)?)
    })
}
