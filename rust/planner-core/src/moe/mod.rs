//! MoE routing: loads, hot ranks, expert placement.
//!
//! ```text
//! Routing ─► closed        imbalance in closed form     (extremes: largest of R loads)
//!         └► monte_carlo   the same by seeded draws      (sampler, rng)
//! loads   ─► balance       eplb, best (counts, pairs, pack, bound) ─► Placement
//!         ├► robust        one placement for several snapshots
//!         └► migrate       cost of moving, how often it pays
//! axes    ─► sweep         a row per point, closed forms
//! counts  ─► fit           spread, peak, concentration
//! batch   ─► capacity      dropped and padded rows
//! model   ─► memory        bytes of experts and replicas on a rank
//!         └► traffic ─► dispatch ─► hot     bytes and time of the layer
//! ```

pub mod balance;
pub mod best;
pub mod bound;
pub mod capacity;
pub mod closed;
pub mod counts;
pub mod dispatch;
pub mod eplb;
pub mod extremes;
pub mod fit;
mod groups;
pub mod hot;
mod lanes;
pub mod memory;
pub mod migrate;
pub mod monte_carlo;
pub mod pack;
pub mod pairs;
pub mod questions;
pub mod reached;
pub mod rng;
pub mod robust;
pub mod routing;
pub mod sampler;
pub mod shape;
pub mod sweep;
pub mod traffic;

pub use closed::imbalance;
pub use routing::Routing;
pub use shape::{Placement, Shape};
