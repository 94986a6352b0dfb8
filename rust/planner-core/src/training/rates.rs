//! GEMM time of one format on this device in training.

use crate::cluster::{Device, GemmCurve};
use crate::error::{Error, Result};
use crate::kernels::{self, gemm};
use crate::model::work::Gemm;
use crate::units::Dtype;

/// Rates and curve of one format.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Datasheet peak, FLOP/s.
    pub peak: f64,
    rates: kernels::Rates,
    curve: GemmCurve,
    ratio: f64,
    bytes: f64,
}

impl Rates {
    /// Rates of `dtype` on `device`.
    ///
    /// # Errors
    /// When the device has no peak, curve or training ratio for it.
    pub fn new(device: &Device, dtype: Dtype) -> Result<Self> {
        let missing = |what: &str| Error::Missing {
            name: format!("device.{what}.{}", dtype.name()),
            hint: format!(
                "{} has no such number; choose another precision or add it",
                device.name
            ),
        };
        let rates = kernels::Rates::of(device, dtype)?;
        let curve = *device.gemm.get(&dtype).ok_or_else(|| missing("gemm"))?;
        gemm::check(&curve, dtype.name())?;
        Ok(Self {
            peak: rates.peak_flops,
            rates,
            curve,
            ratio: *device
                .training
                .gemm_ratio
                .get(&dtype)
                .ok_or_else(|| missing("training.gemm_ratio"))?,
            bytes: dtype.bytes(),
        })
    }

    /// Time of `g` in training, the cast of its input included, s.
    #[must_use]
    pub fn gemm_s(&self, g: &Gemm) -> f64 {
        let shape = gemm::Gemm {
            m: g.m,
            n: g.n,
            k: g.k,
            groups: g.groups,
            a_bytes: self.bytes,
            b_bytes: self.bytes,
            c_bytes: 2.0,
        };
        let cast = gemm::cast_s(
            g.m * g.k * g.groups,
            self.curve.cast_bytes,
            self.rates.memory_bytes_per_s,
        );
        self.ratio * (gemm::gemm_s(&shape, &self.curve, &self.rates) + cast)
    }
}
