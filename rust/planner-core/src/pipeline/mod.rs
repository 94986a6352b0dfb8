//! Pipeline schedules: bubble, in-flight micro-batches, replay.
//!
//! [`bubble`] holds the closed forms for equal stages, [`replay`] the exact event replay for stages
//! that differ; for equal stages the two agree (a property test holds it).

pub mod bubble;
pub mod replay;
