//! All-reduce kernels that serving engines bring themselves: one shot or two over peer memory.
//!
//! ```text
//! t = base + (n − 1)·hop + min((√r + √w₁)², (√r + √w₂)²)
//! w₁ = (n − 1)·S/(e₁·B)                    one shot: every rank reads every other's tensor
//! w₂ = sync + 2(n − 1)/n · S/(e₂·B)        two shots: reduce-scatter, barrier, all-gather
//! ```
//!
//! n ranks of one domain, S bytes, B peak of a GPU's links. Small messages of decode take one shot,
//! large ones two. Curves per device and library: `presets/custom_all_reduce.toml`, fitted by
//! `meshplan.calibrate.custom` to published tables.

use serde::{Deserialize, Serialize};

use super::time::pipelined_s;

/// Fitted costs of one library's all-reduce on one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomAllReduce {
    /// Launch and first barrier, s (with CUDA graphs, without the launch).
    pub base_s: f64,
    /// Time per peer, s.
    pub hop_s: f64,
    /// Share of the link peak that one shot reaches.
    pub one_shot_efficiency: f64,
    /// Share of the link peak that two shots reach.
    pub two_shot_efficiency: f64,
    /// Time to fill the pipeline, s.
    pub ramp_s: f64,
    /// Barrier between the two shots, s.
    pub sync_s: f64,
}

/// Time of such an all-reduce, s; the equation heads this module. One rank takes no time.
///
/// ```
/// use planner_core::collectives::custom::{CustomAllReduce, custom_all_reduce_s};
/// let c = CustomAllReduce { base_s: 4e-6, hop_s: 0.0, one_shot_efficiency: 0.5,
///     two_shot_efficiency: 0.7, ramp_s: 0.0, sync_s: 5e-6 };
/// // 64 KiB over 8 GPUs at 450 GB/s: 4 µs + 7·65536/225e9 s = 6.04 µs in one shot.
/// assert!((custom_all_reduce_s(65536.0, 8, &c, 450e9) - 6.039e-6).abs() < 1e-9);
/// ```
#[must_use]
pub fn custom_all_reduce_s(
    bytes: f64,
    ranks: u64,
    curve: &CustomAllReduce,
    link_bytes_per_s: f64,
) -> f64 {
    if ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let n = ranks as f64;
    let one = (n - 1.0) * bytes / (curve.one_shot_efficiency * link_bytes_per_s);
    let two =
        curve.sync_s + 2.0 * (n - 1.0) / n * bytes / (curve.two_shot_efficiency * link_bytes_per_s);
    curve.base_s + (n - 1.0) * curve.hop_s + pipelined_s(curve.ramp_s, one.min(two))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CURVE: CustomAllReduce = CustomAllReduce {
        base_s: 4.3e-6,
        hop_s: 5.7e-8,
        one_shot_efficiency: 0.62,
        two_shot_efficiency: 0.68,
        ramp_s: 1.8e-8,
        sync_s: 5e-6,
    };

    #[test]
    fn limits() {
        assert_eq!(custom_all_reduce_s(1e6, 1, &CURVE, 450e9), 0.0);
        assert_eq!(custom_all_reduce_s(0.0, 8, &CURVE, 450e9), 0.0);
        // A large message streams its ring volume.
        let t = custom_all_reduce_s(1e10, 8, &CURVE, 450e9);
        assert!((t / (1.75 * 1e10 / (0.68 * 450e9)) - 1.0).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn grows_with_bytes_and_ranks(bytes in 1.0..1e9_f64, ranks in 2_u64..8) {
            let t = custom_all_reduce_s(bytes, ranks, &CURVE, 450e9);
            prop_assert!(custom_all_reduce_s(2.0 * bytes, ranks, &CURVE, 450e9) > t);
            prop_assert!(custom_all_reduce_s(bytes, ranks + 1, &CURVE, 450e9) > t);
        }
    }
}
