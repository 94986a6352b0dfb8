//! KV cache: bytes, blocks, engine arithmetic, prefix caches and trace replay.
//!
//! * [`trace`] reads request traces line by line;
//! * [`prefix`] replays them through prefix caches, one capacity or all at once.

pub mod prefix;
pub mod trace;
