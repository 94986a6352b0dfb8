//! What the exchange kernels reach of the links: fitted constants, with the rows they come from.

use super::dispatch::{Kernel, Phase};
use serde::{Deserialize, Serialize};

/// What a kernel reaches in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// Fixed time inside one node.
    pub latency_s: f64,
    /// What each doubling of the nodes adds to it.
    pub doubling_s: f64,
    /// Share of the NIC peak.
    pub nic_ratio: f64,
    /// Share of the NVLink peak inside one node.
    pub nvlink_ratio: f64,
    /// Share of the NVLink peak where tokens from the NIC are forwarded.
    pub forward_ratio: f64,
}

/// Normal kernels. Fitted to 8 published rows (H800, EP 8 to 64).
pub const NORMAL: Reached = Reached {
    latency_s: 25e-6,
    doubling_s: 0.0,
    nic_ratio: 0.88,
    nvlink_ratio: 0.79,
    forward_ratio: 0.71,
};

/// Low-latency kernels. Fitted to 12 published rows (H800, EP 8 to 256, 128 tokens).
pub const LOW_LATENCY: Reached = Reached {
    latency_s: 37e-6,
    doubling_s: 0.0,
    nic_ratio: 0.938,
    nvlink_ratio: 0.95,
    forward_ratio: 0.95,
};

const fn hopper(us: [f64; 2], nic_ratio: f64, nvlink_ratio: f64, forward_ratio: f64) -> Reached {
    Reached {
        latency_s: us[0] * 1e-6,
        doubling_s: us[1] * 1e-6,
        nic_ratio,
        nvlink_ratio,
        forward_ratio,
    }
}

/// Normal kernels in SGLang 0.5.6 and 0.5.12 on H100 and H200 (450 GB/s NVLink, 50 GB/s NIC, 20 SMs):
/// dispatch and combine. Least absolute log-error over 223 rows each of the aiconfigurator tables
/// (Apache-2.0), 1 to 4 nodes, widths from 4,096; the rows of 8 nodes, whose rates fall to a third
/// from 4 nodes to 8, are left out. Dispatch in fp8.
pub const HOPPER_NORMAL: [Reached; 2] = [
    hopper([26.9, 31.0], 0.769, 0.636, 1.0),
    hopper([40.5, 43.1], 0.903, 0.659, 0.372),
];

/// Low-latency kernels on the same machines: 159 rows each, 1 to 8 nodes.
pub const HOPPER_LOW_LATENCY: [Reached; 2] = [
    hopper([11.9, 6.0], 0.999, 0.654, 0.515),
    hopper([10.5, 6.7], 0.967, 0.572, 0.477),
];

/// Which measurements the constants come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// The tables that DeepEP V1 published: H800, large batches or 128 tokens.
    #[default]
    Published,
    /// H100 and H200 under SGLang, from 1 token on.
    Hopper,
}

impl Fit {
    /// The fitted constants.
    #[must_use]
    pub const fn reached(self, kernel: Kernel, phase: Phase) -> Reached {
        let side = match phase {
            Phase::Dispatch => 0,
            Phase::Combine => 1,
        };
        match (self, kernel) {
            (Self::Published, Kernel::Normal) => NORMAL,
            (Self::Published, _) => LOW_LATENCY,
            (Self::Hopper, Kernel::Normal) => HOPPER_NORMAL[side],
            (Self::Hopper, _) => HOPPER_LOW_LATENCY[side],
        }
    }
}

impl Reached {
    /// Fixed time over so many nodes.
    ///
    /// ```
    /// use planner_core::moe::reached::HOPPER_LOW_LATENCY;
    /// let fixed = HOPPER_LOW_LATENCY[0].fixed_s(4.0); // 11.9 + 2·6.0 µs
    /// assert!((fixed - 23.9e-6).abs() < 1e-12);
    /// ```
    #[must_use]
    pub fn fixed_s(&self, nodes: f64) -> f64 {
        self.latency_s + self.doubling_s * nodes.max(1.0).log2()
    }
}
