//! MoE routing: canonical JSON in, JSON or a frame out.

use planner_core::moe::balance::Balance;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::errors::{CoreError, CoreResult};

fn read<T: DeserializeOwned>(spec: &str) -> CoreResult<T> {
    serde_json::from_str(spec).map_err(CoreError::from)
}

/// Place the experts of every layer. See `planner_core::moe::balance::Balance`.
#[pyfunction]
pub fn moe_balance(py: Python<'_>, spec: &str) -> CoreResult<String> {
    py.detach(|| {
        let layers = read::<Balance>(spec)?.run()?;
        Ok(serde_json::to_string(&layers)?)
    })
}
