//! Models: facts of a canonical spec.

use planner_core::model::Model;
use planner_core::units::Dtype;
use pyo3::prelude::*;

use crate::errors::CoreResult;

/// Check a canonical model and return its facts as JSON.
#[pyfunction]
pub fn model_summary(py: Python<'_>, spec: &str, kv_dtype: &str) -> CoreResult<String> {
    py.detach(|| {
        let kv_dtype: Dtype = serde_json::from_str(&format!("\"{kv_dtype}\""))?;
        let summary = Model::from_json(spec)?.summary(kv_dtype);
        Ok(serde_json::to_string(&summary)?)
    })
}
