//! KV cache: bytes, blocks, engine arithmetic, prefix caches and trace replay.
//!
//! * [`mod@format`], [`layer`]: bytes of a token in a layer on one GPU;
//! * [`plan`]: groups of layers that share a pool of equal pages;
//! * [`size`]: blocks, tokens and concurrency of an engine;
//! * [`fragment`], [`sweep`]: what block sizes waste, over all layouts at once;
//! * [`transfer`]: moving a cache from a prefill to a decode instance;
//! * [`trace`] reads request traces line by line;
//! * [`prefix`] replays them through prefix caches, one capacity or all at once.
//! * [`schedule`] plays continuous batching on a trace.

pub mod format;
pub mod fragment;
pub mod layer;
pub mod plan;
pub mod prefix;
pub mod schedule;
pub mod size;
pub mod sweep;
pub mod trace;
pub mod transfer;
