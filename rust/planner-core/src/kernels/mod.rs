//! Kernels: time from shape and a fitted curve.
//!
//! | page | what |
//! |---|---|
//! | [`gemm`] | dense and grouped matrix multiplication, and the cast of its input |
//! | [`attention`] | prefill and decode attention, multi-head, grouped and latent |
//! | [`memory_bound`] | operators whose time is their bytes |
//! | [`request`] | kernels as a caller outside the core asks for them |
//! | [`launch`] | what the CPU adds when it launches slower than the GPU runs |

pub mod attention;
pub mod gemm;
pub mod launch;
pub mod launch_arithmetic;
pub mod memory_bound;
pub mod request;

use crate::cluster::Device;
use crate::error::{Error, Result};
use crate::units::Dtype;

/// The datasheet rates that a kernel runs against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Dense peak of the operand format, FLOP/s.
    pub peak_flops: f64,
    /// HBM bandwidth, bytes/s.
    pub memory_bytes_per_s: f64,
    /// Streaming multiprocessors.
    pub sms: f64,
}

impl Rates {
    /// Rates of a device for one operand format.
    ///
    /// # Errors
    /// When the device has no peak for the format.
    pub fn of(device: &Device, dtype: Dtype) -> Result<Self> {
        let peak_flops = *device
            .peak_flops
            .get(&dtype)
            .ok_or_else(|| Error::Missing {
                name: format!("device.peak_flops.{}", dtype.name()),
                hint: format!(
                    "{} has no datasheet peak for this format; choose another precision or add it",
                    device.name
                ),
            })?;
        Ok(Self {
            peak_flops,
            memory_bytes_per_s: device.memory_bytes_per_s,
            sms: device.sms as f64,
        })
    }
}

/// x rounded up, for 0 ≤ x < 2⁶³. A cast is several times faster than the library call.
#[inline]
fn ceil(x: f64) -> f64 {
    let whole = x as i64 as f64;
    if whole < x { whole + 1.0 } else { whole }
}
