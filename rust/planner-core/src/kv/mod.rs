//! KV cache: bytes, blocks, engine arithmetic, prefix caches and trace replay.
//!
//! * [`mod@format`], [`layer`]: bytes of a token in a layer on one GPU;
//! * [`plan`]: groups of layers that share a pool of equal pages;
//! * [`size`]: blocks, tokens and concurrency of an engine;
//! * [`trace`] reads request traces line by line;
//! * [`prefix`] replays them through prefix caches, one capacity or all at once.

pub mod format;
pub mod layer;
pub mod plan;
pub mod prefix;
pub mod size;
pub mod trace;
