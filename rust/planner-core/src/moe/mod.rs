//! MoE routing: loads, hot ranks, expert placement.
//!
//! ```text
//! Routing ─► closed        imbalance in closed form     (extremes: largest of R loads)
//!         └► monte_carlo   the same by seeded draws      (sampler, rng)
//! loads   ─► balance       eplb, best (counts, pack, bound) ─► Placement
//! batch   ─► capacity      dropped and padded rows
//! ```

pub mod balance;
pub mod best;
pub mod bound;
pub mod capacity;
pub mod closed;
pub mod counts;
pub mod eplb;
pub mod extremes;
pub mod monte_carlo;
pub mod pack;
pub mod rng;
pub mod routing;
pub mod sampler;
pub mod shape;

pub use closed::imbalance;
pub use routing::Routing;
pub use shape::{Placement, Shape};
