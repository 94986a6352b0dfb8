//! KV cache: capacity, prefix caches, trace replay.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use planner_core::kv::{fragment, prefix::replay, schedule, size, sweep, trace, transfer};
use planner_core::table::Table;
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

/// Groups of layers as vLLM's prefix cache sees them, as JSON.
#[pyfunction]
pub fn kv_groups(query: &str) -> CoreResult<String> {
    let query: size::Query = serde_json::from_str(query)?;
    query.model.validate()?;
    Ok(serde_json::to_string(&size::vllm::prefix_groups(&query)?)?)
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
            &interrupted,
        )?)?)
    })
}

/// Every combination of the axes for requests of given lengths, as an iterator of frames of some ten
/// thousand rows.
#[pyclass(frozen, module = "meshplan._core")]
pub struct KvSweep {
    sweep: Mutex<sweep::Sweep>,
    rows: u64,
}

/// Rows of a frame: whole cells up to at least these.
const FRAME_ROWS: usize = 1 << 16;

#[pymethods]
impl KvSweep {
    #[new]
    fn new(py: Python<'_>, query: &str, axes: &str, lengths: &str) -> CoreResult<Self> {
        py.detach(|| {
            let query: size::Query = serde_json::from_str(query)?;
            query.model.validate()?;
            let axes: sweep::Axes = serde_json::from_str(axes)?;
            let lengths: fragment::Lengths = serde_json::from_str(lengths)?;
            let sweep = sweep::Sweep::new(&query, &axes, &lengths)?;
            Ok(Self {
                rows: sweep.rows(),
                sweep: Mutex::new(sweep),
            })
        })
    }

    /// Rows of all frames.
    #[getter]
    const fn rows(&self) -> u64 {
        self.rows
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        py.check_signals()?;
        let mut table = Table::default();
        let some = py.detach(|| -> CoreResult<bool> {
            let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(sweep.fill(&mut table, FRAME_ROWS)?)
        })?;
        some.then(|| Frame::new(table)).transpose()
    }
}

/// Waste of a block size over lengths, as JSON.
#[pyfunction]
pub fn kv_waste(py: Python<'_>, lengths: &str, block_tokens: u64) -> CoreResult<String> {
    py.detach(|| {
        let lengths: fragment::Lengths = serde_json::from_str(lengths)?;
        lengths.check()?;
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
