//! Kernels: time from shape and a fitted curve.
