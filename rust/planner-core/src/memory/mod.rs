//! Memory per pipeline stage: weights, gradients, optimizer, activations, buffers.
