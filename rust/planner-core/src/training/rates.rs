//! GEMM time of one format on this device in training.

use crate::cluster::{Device, GemmCurve};
use crate::error::{Error, Result};
use crate::model::work::Gemm;
use crate::units::Dtype;

/// Peak and curve of one format.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Datasheet peak, FLOP/s.
    pub peak: f64,
    curve: GemmCurve,
    ratio: f64,
    sms: f64,
    hbm: f64,
    bytes: f64,
}

impl Rates {
    /// Rates of `dtype` on `device`.
    ///
    /// # Errors
    /// When the device has no peak or no curve for it.
    pub fn new(device: &Device, dtype: Dtype) -> Result<Self> {
        let missing = |what: &str| Error::Missing {
            name: format!("{what}.{dtype:?} of {}", device.name),
            hint: "the device does not run this format, or its file lacks the number".into(),
        };
        Ok(Self {
            peak: *device
                .peak_flops
                .get(&dtype)
                .ok_or_else(|| missing("peak_flops"))?,
            curve: *device.gemm.get(&dtype).ok_or_else(|| missing("gemm"))?,
            ratio: *device
                .training
                .gemm_ratio
                .get(&dtype)
                .ok_or_else(|| missing("gemm_ratio"))?,
            sms: device.sms as f64,
            hbm: device.memory_bytes_per_s,
            bytes: dtype.bytes(),
        })
    }

    /// Time of `g` in training, s.
    #[must_use]
    pub fn gemm_s(&self, g: &Gemm) -> f64 {
        let c = &self.curve;
        let flops = g.flops() * (1.0 + c.k_half / g.k);
        let compute = flops / (self.peak * c.efficiency);
        let bytes = g.groups * (self.bytes * (g.m * g.k + g.k * g.n) + 2.0 * g.m * g.n);
        let memory = bytes / (self.hbm * c.memory_efficiency);
        self.ratio * (c.base_s + (compute.powi(4) + memory.powi(4)).powf(0.25))
    }
}
