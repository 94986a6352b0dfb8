//! Core errors become the exceptions of `meshplan.errors`. One exhaustive match, nothing else.

use planner_core::error::Error;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A core error on its way to Python; `?` makes one of any [`Error`].
#[derive(Debug)]
pub struct CoreError(Error);

/// Result of a binding function.
pub type CoreResult<T> = Result<T, CoreError>;

impl From<Error> for CoreError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<serde_json::Error> for CoreError {
    fn from(error: serde_json::Error) -> Self {
        Self(Error::Spec(error.to_string()))
    }
}

impl From<CoreError> for PyErr {
    fn from(CoreError(error): CoreError) -> Self {
        Python::attach(|py| match error {
            Error::Field { field, value, rule } => {
                input_error(py, &rule, &[("field", &field), ("value", &value)])
            }
            Error::Missing { name, hint } => {
                input_error(py, &format!("missing {name}"), &[("hint", &hint)])
            }
            Error::Spec(message) => input_error(py, &format!("canonical spec: {message}"), &[]),
            Error::Line {
                file,
                line,
                problem,
            } => input_error(py, &problem, &[("where", &format!("{file}:{line}"))]),
            Error::File { file, problem } => input_error(py, &problem, &[("where", &file)]),
            Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        })
    }
}

/// `meshplan.errors.InputError(rule, **details)`, or the error met in making it.
fn input_error(py: Python<'_>, rule: &str, details: &[(&str, &str)]) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let class = py.import("meshplan.errors")?.getattr("InputError")?;
        let kwargs = PyDict::new(py);
        for (key, value) in details {
            kwargs.set_item(key, value)?;
        }
        Ok(PyErr::from_value(class.call((rule,), Some(&kwargs))?))
    };
    make().unwrap_or_else(|error| error)
}
