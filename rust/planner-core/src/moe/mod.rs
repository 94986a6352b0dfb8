//! MoE routing: loads, hot ranks, expert placement.

pub mod balance;
pub mod best;
pub mod bound;
pub mod closed;
pub mod counts;
pub mod eplb;
pub mod extremes;
pub mod pack;
pub mod rng;
pub mod routing;
pub mod shape;

pub use closed::imbalance;
pub use routing::Routing;
pub use shape::{Placement, Shape};
