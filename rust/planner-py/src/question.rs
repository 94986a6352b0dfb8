//! One layout judged: its rule, its costs, and why; and the declaration of the columns.

use planner_core::training::question::Question;
use planner_core::training::row::COLUMNS;
use pyo3::prelude::*;

use crate::errors::CoreResult;

/// Judge one layout. Takes a question and gives an answer, both as JSON.
#[pyfunction]
pub fn explain(py: Python<'_>, question: &str) -> CoreResult<String> {
    let question: Question = serde_json::from_str(question)?;
    let answer = py.detach(|| question.answer())?;
    Ok(serde_json::to_string(&answer)?)
}

/// Name, unit and meaning of every column of a table of layouts.
#[pyfunction]
#[must_use]
pub fn training_columns() -> Vec<(&'static str, &'static str, &'static str)> {
    COLUMNS.iter().map(|c| (c.name, c.unit, c.doc)).collect()
}
