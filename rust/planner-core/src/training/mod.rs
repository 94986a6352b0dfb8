//! The training estimate: context + layout → one row of named terms.

pub mod workload;
