//! MoE routing: loads, hot ranks, expert placement.

pub mod closed;
pub mod extremes;
pub mod rng;
pub mod routing;

pub use closed::imbalance;
pub use routing::Routing;
