//! The sweep: a request in, the account as JSON and rows as frames out.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use planner_core::sweep::control::Control;
use planner_core::sweep::request::Request;
use planner_core::sweep::rows::Tables;
use planner_core::sweep::{Job, Options, Ranked};
use planner_core::training::row::Rows;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::{CoreError, CoreResult};
use crate::frame::Frame;

/// How often a running sweep lets Python look for Ctrl-C.
const TICK: Duration = Duration::from_millis(10);
/// Ticks between two reports of progress.
const REPORT: u32 = 5;

/// Find the best layouts of a job.
///
/// Returns the account (JSON), the `top` fastest layouts and the Pareto front of step time and
/// memory. `on_progress(done, total)` is called some times a second.
#[pyfunction]
#[pyo3(signature = (
    request, *, top = 10, pareto = true, exhaustive = false, threads = 0, on_progress = None,
))]
pub fn sweep(
    py: Python<'_>,
    request: &str,
    top: usize,
    pareto: bool,
    exhaustive: bool,
    threads: usize,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<(String, Frame, Frame)> {
    let control = Control::default();
    let job = walk(py, request)?;
    let options = Options {
        top,
        pareto,
        exhaustive,
        threads,
    };
    let report = |done: u64| match &on_progress {
        Some(callback) => callback.call1(py, (done, job.index.len())).map(drop),
        None => Ok(()),
    };
    let outcome = watch(py, &control, report, || Ok(job.run(&options, &control)?))?;
    let summary = serde_json::to_string(&job.summary(&outcome)).map_err(CoreError::from)?;
    Ok((
        summary,
        frame(&job, &outcome.top)?,
        frame(&job, &outcome.pareto)?,
    ))
}

/// Every layout of a job, in layout order, as an iterator of frames of some ten thousand rows.
///
/// `fitting`: only the layouts that fit in memory.
#[pyclass(frozen, module = "meshplan._core")]
#[derive(Debug)]
pub struct SweepRows {
    tables: Mutex<Tables>,
    control: Control,
    feasible: u64,
}

#[pymethods]
impl SweepRows {
    #[new]
    #[pyo3(signature = (request, *, fitting = false, threads = 0))]
    fn new(py: Python<'_>, request: &str, fitting: bool, threads: usize) -> PyResult<Self> {
        let job = Arc::new(walk(py, request)?);
        let feasible = job.index.len();
        let tables = Tables::new(job, fitting, threads).map_err(CoreError::from)?;
        Ok(Self {
            tables: Mutex::new(tables),
            control: Control::default(),
            feasible,
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

    /// Layouts that obey every rule: rows of all frames together, unless `fitting`.
    #[getter]
    const fn feasible(&self) -> u64 {
        self.feasible
    }

    /// Layouts done so far.
    #[getter]
    fn done(&self) -> u64 {
        self.control.done()
    }
}

/// The job of a request.
fn walk(py: Python<'_>, request: &str) -> PyResult<Job> {
    let request: Request = serde_json::from_str(request).map_err(CoreError::from)?;
    let control = Control::default();
    watch(py, &control, |_| Ok(()), || Ok(request.job(&control)?))
}

fn frame(job: &Job, ranked: &[Ranked]) -> PyResult<Frame> {
    let mut rows = Rows::default();
    for found in ranked {
        rows.push(&job.estimator.row(&found.layout).map_err(CoreError::from)?);
    }
    Frame::new(rows.into_table())
}

/// Run `work` on a thread of its own, without the GIL; meanwhile signals and progress are served.
pub(crate) fn watch<T: Send>(
    py: Python<'_>,
    control: &Control,
    report: impl Fn(u64) -> PyResult<()>,
    work: impl FnOnce() -> CoreResult<T> + Send,
) -> PyResult<T> {
    std::thread::scope(|scope| {
        let (done, waiting) = channel();
        let worker = scope.spawn(move || {
            let result = work();
            // The receiver outlives the worker; if it is gone, nobody waits.
            let _ = done.send(());
            result
        });
        // A receiver is not `Sync`: it is lent to the closure that waits without the GIL.
        let waiting = Mutex::new(waiting);
        let mut stopped = None;
        let mut ticks = 0;
        while stopped.is_none() {
            let tick = py.detach(|| {
                waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .recv_timeout(TICK)
            });
            if tick != Err(RecvTimeoutError::Timeout) {
                break;
            }
            stopped = py.check_signals().err();
            ticks += 1;
            if stopped.is_none() && ticks % REPORT == 0 {
                stopped = report(control.done()).err();
            }
        }
        if stopped.is_some() {
            control.stop();
        }
        let result = py.detach(|| worker.join());
        match (stopped, result) {
            (Some(error), _) => Err(error),
            (None, Ok(result)) => Ok(result?),
            (None, Err(_)) => Err(PyRuntimeError::new_err("a thread of the sweep failed")),
        }
    })
}
