//! Serving deployments: a request in, the account as JSON and rows as frames out.

use std::sync::{Arc, Mutex, PoisonError};

use planner_core::serving::search::listing::Tables;
use planner_core::serving::search::row::COLUMNS;
use planner_core::serving::search::{Options, Request};
use planner_core::sweep::control::Control;
use pyo3::prelude::*;

use crate::errors::CoreError;
use crate::frame::Frame;
use crate::sweep::watch;

/// Find the best deployments of a job.
///
/// Returns the account (JSON), the `top` best deployments, the Pareto front of throughput and
/// speed, and the best under each objective. `on_progress(done, 0)` is called some times a second.
#[pyfunction]
#[pyo3(signature = (request, *, top = 10, exhaustive = false, threads = 0, on_progress = None))]
pub fn serving_sweep(
    py: Python<'_>,
    request: &str,
    top: usize,
    exhaustive: bool,
    threads: usize,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<(String, Frame, Frame, Frame)> {
    let control = Control::default();
    let options = Options {
        top,
        exhaustive,
        threads,
    };
    let report = |done: u64| match &on_progress {
        Some(callback) => callback.call1(py, (done, 0)).map(drop),
        None => Ok(()),
    };
    let (summary, tables) = watch(py, &control, report, || {
        let request: Request = serde_json::from_str(request)?;
        let job = request.job()?;
        let found = job.run(&options, &control)?;
        Ok((
            serde_json::to_string(&job.summary(&found))?,
            job.tables(&found),
        ))
    })?;
    let [top, front, best] = tables;
    Ok((
        summary,
        Frame::new(top)?,
        Frame::new(front)?,
        Frame::new(best)?,
    ))
}

/// Every deployment of a job that runs, in closed form, as an iterator of frames of some ten thousand
/// rows.
#[pyclass(frozen, module = "meshplan._core")]
#[derive(Debug)]
pub struct ServingRows {
    tables: Mutex<Tables>,
    control: Control,
}

#[pymethods]
impl ServingRows {
    #[new]
    #[pyo3(signature = (request, *, threads = 0))]
    fn new(py: Python<'_>, request: &str, threads: usize) -> PyResult<Self> {
        let control = Control::default();
        let read = || {
            let request: Request = serde_json::from_str(request)?;
            Ok(Tables::new(Arc::new(request.job()?), threads)?)
        };
        let tables = watch(py, &control, |_| Ok(()), read)?;
        Ok(Self {
            tables: Mutex::new(tables),
            control,
        })
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        let next = || {
            let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(tables.next(&self.control)?)
        };
        let table = watch(py, &self.control, |_| Ok(()), next)?;
        table.map(Frame::new).transpose()
    }
}

/// Estimate the one deployment that a job pins down: its row (JSON), and its requests as played.
#[pyfunction]
pub fn serving_explain(py: Python<'_>, request: &str) -> PyResult<(String, Frame)> {
    let control = Control::default();
    let (told, requests) = watch(
        py,
        &control,
        |_| Ok(()),
        || {
            let request: Request = serde_json::from_str(request)?;
            Ok(request.job()?.one()?)
        },
    )?;
    let text = serde_json::to_string(&told).map_err(CoreError::from)?;
    Ok((text, Frame::new(requests)?))
}

/// Name, unit and meaning of each column of the table of deployments.
#[pyfunction]
pub fn serving_columns() -> Vec<(&'static str, &'static str, &'static str)> {
    COLUMNS.iter().map(|c| (c.name, c.unit, c.doc)).collect()
}
