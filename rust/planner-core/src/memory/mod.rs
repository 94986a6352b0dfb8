//! Memory per pipeline stage: weights, gradients, optimizer, activations, buffers.

pub mod kv;
pub mod zero;
