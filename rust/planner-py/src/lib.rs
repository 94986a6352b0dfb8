//! Python binding of `planner-core`: convert, call, map errors. No arithmetic.

use pyo3::prelude::*;

#[pymodule]
mod _core {
    /// Version of the core.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
