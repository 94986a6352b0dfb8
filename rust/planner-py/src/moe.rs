//! MoE routing: canonical JSON in, JSON or a frame out.

use planner_core::moe::balance::Balance;
use planner_core::moe::dispatch::Dispatch;
use planner_core::moe::memory::ExpertMemory;
use planner_core::moe::migrate::Rebalance;
use planner_core::moe::monte_carlo::{Batch, Draw};
use planner_core::moe::questions::{Describe, Imbalance, RobustBalance, Timed};
use planner_core::moe::sweep::{Axes, COLUMNS};
use planner_core::sweep::control::Control;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::errors::{CoreError, CoreResult};
use crate::frame::Frame;
use crate::sweep::watch;

fn read<T: DeserializeOwned>(spec: &str) -> CoreResult<T> {
    serde_json::from_str(spec).map_err(CoreError::from)
}

/// Place the experts of every layer. See `planner_core::moe::balance::Balance`.
#[pyfunction]
pub fn moe_balance(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<Balance>(spec)?.run()?)?))
}

/// One placement per layer for several snapshots. See `planner_core::moe::questions`.
#[pyfunction]
pub fn moe_robust(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<RobustBalance>(spec)?.run()?)?))
}

/// Describe and fit recorded loads. See `planner_core::moe::fit`.
#[pyfunction]
pub fn moe_fit(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<Describe>(spec)?.run()?)?))
}

/// Route a batch many times. See `planner_core::moe::monte_carlo`.
#[pyfunction]
pub fn moe_simulate(py: Python<'_>, batch: &str, draw: &str) -> PyResult<String> {
    let control = Control::default();
    let work = || {
        let outcome = read::<Batch>(batch)?.simulate_until(&read::<Draw>(draw)?, &control)?;
        Ok(serde_json::to_string(&outcome)?)
    };
    watch(py, &control, |_| Ok(()), work)
}

/// Rank imbalance in closed form. See `planner_core::moe::closed::imbalance`.
#[pyfunction]
pub fn moe_imbalance(py: Python<'_>, spec: &str) -> CoreResult<f64> {
    py.detach(|| Ok(read::<Imbalance>(spec)?.run()?))
}

/// Traffic and time of dispatch and combine. See `planner_core::moe::dispatch`.
#[pyfunction]
pub fn moe_dispatch(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<Dispatch>(spec)?.run()?)?))
}

/// Time of one MoE layer, dispatch to combine. See `planner_core::moe::hot`.
#[pyfunction]
pub fn moe_layer_time(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<Timed>(spec)?.run()?)?))
}

/// Bytes of experts and replicas on a rank. See `planner_core::moe::memory`.
#[pyfunction]
pub fn moe_memory(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<ExpertMemory>(spec)?.run()?)?))
}

/// What rearranging costs and gains. See `planner_core::moe::migrate`.
#[pyfunction]
pub fn moe_rebalance(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| Ok(serde_json::to_string(&read::<Rebalance>(spec)?.run()?)?))
}

/// Sweep a grid. See `planner_core::moe::sweep`.
#[pyfunction]
#[pyo3(signature = (axes, *, threads = 0))]
pub fn moe_sweep(py: Python<'_>, axes: &str, threads: usize) -> PyResult<Frame> {
    let control = Control::default();
    let work = || Ok(read::<Axes>(axes)?.run_until(threads, &control)?);
    let tables = watch(py, &control, |_| Ok(()), work)?;
    Frame::from_tables(tables)
}

/// Name, unit and meaning of each column of `moe_sweep`.
#[pyfunction]
pub fn moe_columns() -> Vec<(&'static str, &'static str, &'static str)> {
    COLUMNS.iter().map(|c| (c.name, c.unit, c.doc)).collect()
}
