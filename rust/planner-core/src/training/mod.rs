//! The training estimate: context + layout → one row of named terms.

pub mod software;
pub mod workload;
