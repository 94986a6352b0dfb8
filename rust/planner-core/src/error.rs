//! The one error tree of the core. Each variant is an input that makes no sense; a layout that
//! does not fit is a row with a status, never an error.

use thiserror::Error;

/// What can be wrong with an input.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Error {
    /// A field holds a value that its rule forbids.
    #[error("{field} = {value}: {rule}")]
    Field {
        /// Dotted name of the field.
        field: String,
        /// The value as given.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// A number that the estimate needs is missing.
    #[error("missing {name}: {hint}")]
    Missing {
        /// Name of the missing number.
        name: String,
        /// How to supply it.
        hint: String,
    },
    /// The canonical JSON does not parse.
    #[error("canonical spec: {0}")]
    Spec(String),
    /// A line of an input file is not what its format says.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file as the caller named it.
        file: String,
        /// Line, counted from 1.
        line: u64,
        /// What was found and what was expected.
        problem: String,
    },
    /// A file cannot be read.
    #[error("{file}: {problem}")]
    File {
        /// The file as the caller named it.
        file: String,
        /// What the system says.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Shorthand for results of the core.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A field error.
    pub fn field(field: impl Into<String>, value: impl ToString, rule: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            value: value.to_string(),
            rule: rule.into(),
        }
    }
}
