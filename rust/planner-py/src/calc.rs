//! Calculators: the registry, and one call.

use std::collections::BTreeMap;

use planner_core::calc;
use planner_core::error::Error;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::CoreResult;

/// Every calculator by subject, as JSON: words, equation, source, parameters, results, example.
#[pyfunction]
pub fn calculators() -> CoreResult<String> {
    Ok(serde_json::to_string(calc::GROUPS)?)
}

/// Call a calculator: `{"results": {…}}` in declared order, or `{"problems": […]}`, all of them.
#[pyfunction]
#[pyo3(signature = (name, arguments))]
pub fn calculate(
    py: Python<'_>,
    name: &str,
    arguments: BTreeMap<String, f64>,
) -> CoreResult<String> {
    let calculator =
        calc::find(name).ok_or_else(|| Error::field("calculator", name, "is not a calculator"))?;
    let answer = match py.detach(|| calculator.call(&arguments)) {
        Ok(values) => {
            let names = calculator
                .results
                .iter()
                .map(|result| result.name.to_owned());
            let results = names
                .zip(values.into_iter().map(Value::from))
                .collect::<Vec<_>>();
            json!({ "results": results })
        }
        Err(problems) => json!({ "problems": problems.iter().map(problem).collect::<Vec<_>>() }),
    };
    Ok(answer.to_string())
}

fn problem(error: &Error) -> Value {
    match error {
        Error::Field { field, value, rule } => {
            json!({ "field": field, "value": value, "rule": rule, "hint": "" })
        }
        Error::Missing { name, hint } => {
            json!({ "field": name, "value": "", "rule": "is missing", "hint": hint })
        }
        Error::Spec(_) | Error::Line { .. } | Error::File { .. } | Error::Interrupted => {
            json!({ "field": "", "value": "", "rule": error.to_string(), "hint": "" })
        }
    }
}
