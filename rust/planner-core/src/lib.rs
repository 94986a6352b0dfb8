//! `planner-core`: how should a large model be laid out on a cluster?
//!
//! One natural flow, a room for each idea. Every arrow is a type.
//!
//! ```text
//! Model · Cluster · Training            canonical specs, validated once at the Python edge
//!    └─ layout   Layout, the rules, the space
//!         └─ training   context + layout ─► one row of named terms, pure, no globals, no I/O
//!              ├─ kernels       time of a GEMM, an attention core, a memory-bound pass
//!              ├─ collectives   bytes and time over the tiers that a rank group really spans
//!              ├─ memory        weights, gradients, optimizer, activations, per stage
//!              ├─ pipeline      schedule → bubble, in-flight micro-batches
//!              └─ moe, kv       routing skew → hot rank; pages, prefixes, replay
//!         └─ sweep      parallel, chunked, deterministic ─► struct of arrays
//! ```
//!
//! Units are SI: bytes, seconds, FLOP, tokens. A formula is one function, in the field's letters.

pub mod calc;
pub mod cluster;
pub mod collectives;
pub mod error;
pub mod kernels;
pub mod kv;
pub mod layout;
pub mod memory;
pub mod model;
pub mod moe;
pub mod pipeline;
pub mod serving;
pub mod stats;
pub mod sweep;
pub mod table;
pub mod training;
pub mod units;
