//! Kernels: time from shape and a fitted curve.

pub mod launch_arithmetic;
