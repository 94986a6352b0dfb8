//! Bytes that data parallelism and ZeRO move per rank and optimizer step.
//!
//! Symbols: Φ parameters on the rank's model shard, N data-parallel ranks, b_p and b_g bytes of a
//! parameter and of a gradient on the wire.
//!
//! Sources: Rajbhandari et al. 2020 (ZeRO), §7; Zhao et al. 2023 (FSDP).

use super::volume::{all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes};

/// What data parallelism moves in one step, bytes sent per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DataParallelTraffic {
    /// Gradients: all-reduce or reduce-scatter.
    pub gradient_bytes: f64,
    /// Parameters: all-gather.
    pub parameter_bytes: f64,
}

impl DataParallelTraffic {
    /// Both.
    #[must_use]
    pub const fn total_bytes(&self) -> f64 {
        self.gradient_bytes + self.parameter_bytes
    }
}

/// Data parallelism without sharding: all-reduce of gradients, 2(N−1)/N · b_g·Φ ≈ 4Φ.
///
/// ```
/// use planner_core::collectives::data_parallel::ddp;
/// // 70e9 parameters in 16 bits: 280 GB per rank and step in the limit of many ranks.
/// assert!((ddp(70e9, 1_000_000, 2.0).total_bytes() - 280e9).abs() < 1e6);
/// assert!((ddp(175e9, 1_000_000, 2.0).total_bytes() - 700e9).abs() < 1e6);
/// ```
#[must_use]
pub fn ddp(phi: f64, n: u64, grad_bytes: f64) -> DataParallelTraffic {
    DataParallelTraffic {
        gradient_bytes: all_reduce_bytes(n, grad_bytes * phi),
        parameter_bytes: 0.0,
    }
}

/// ZeRO-1 and ZeRO-2: reduce-scatter of gradients, all-gather of parameters.
///
/// (N−1)/N · (b_g + b_p)·Φ ≈ 4Φ with 16 bits each, 6Φ when gradients reduce in fp32: the same as
/// plain data parallelism.
///
/// ```
/// use planner_core::collectives::data_parallel::{ddp, zero_1_2};
/// assert_eq!(zero_1_2(70e9, 64, 2.0, 2.0).total_bytes(), ddp(70e9, 64, 2.0).total_bytes());
/// assert!((zero_1_2(1e9, 1_000_000, 2.0, 4.0).total_bytes() - 6e9).abs() < 1e5);
/// ```
#[must_use]
pub fn zero_1_2(phi: f64, n: u64, param_bytes: f64, grad_bytes: f64) -> DataParallelTraffic {
    DataParallelTraffic {
        gradient_bytes: reduce_scatter_bytes(n, grad_bytes * phi),
        parameter_bytes: all_gather_bytes(n, param_bytes * phi),
    }
}

/// ZeRO-3 and FSDP: parameters gathered in forward and again in backward, gradients reduce-scattered.
///
/// (N−1)/N · (2·b_p + b_g)·Φ ≈ 6Φ: 1.5 times plain data parallelism. With `micro_batches` passes that
/// each reshard, all of it happens once a pass; `keep` keeps the parameters between forward and
/// backward and saves the second gather.
///
/// ```
/// use planner_core::collectives::data_parallel::{ddp, zero_3};
/// let ratio = zero_3(70e9, 64, 2.0, 2.0, 1, false).total_bytes() / ddp(70e9, 64, 2.0).total_bytes();
/// assert!((ratio - 1.5).abs() < 1e-12);
/// ```
#[must_use]
pub fn zero_3(
    phi: f64,
    n: u64,
    param_bytes: f64,
    grad_bytes: f64,
    micro_batches: u64,
    keep: bool,
) -> DataParallelTraffic {
    let passes = micro_batches as f64;
    let gathers = if keep { 1.0 } else { 2.0 };
    DataParallelTraffic {
        gradient_bytes: passes * reduce_scatter_bytes(n, grad_bytes * phi),
        parameter_bytes: passes * gathers * all_gather_bytes(n, param_bytes * phi),
    }
}

/// HSDP: as ZeRO-3 inside a group of n ranks, then an all-reduce of the shard across g groups.
///
/// Across groups a rank sends 2(g−1)/g · b_g·Φ/n.
///
/// ```
/// use planner_core::collectives::data_parallel::{hsdp_across, zero_3};
/// assert_eq!(hsdp_across(8e9, 8, 4, 2.0).gradient_bytes, 2.0 * 0.75 * 2e9);
/// assert_eq!(hsdp_across(8e9, 8, 1, 2.0).total_bytes(), 0.0); // one group: plain ZeRO-3
/// ```
#[must_use]
pub fn hsdp_across(
    phi: f64,
    shard_group: u64,
    groups: u64,
    grad_bytes: f64,
) -> DataParallelTraffic {
    ddp(phi / shard_group.max(1) as f64, groups, grad_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn zero_1_2_move_what_ddp_moves_and_zero_3_half_as_much_again(
            phi in 1e6_f64..1e12, n in 2_u64..10_000,
        ) {
            let plain = ddp(phi, n, 2.0).total_bytes();
            let sharded = zero_1_2(phi, n, 2.0, 2.0).total_bytes();
            let full = zero_3(phi, n, 2.0, 2.0, 1, false).total_bytes();
            let kept = zero_3(phi, n, 2.0, 2.0, 1, true).total_bytes();
            prop_assert!((sharded / plain - 1.0).abs() < 1e-12);
            prop_assert!((full / plain - 1.5).abs() < 1e-12);
            prop_assert!((kept / plain - 1.0).abs() < 1e-12);
        }

        /// Sharding inside and replicating outside sends less across groups than one flat group.
        #[test]
        fn hsdp_saves_traffic_across_groups(n in 2_u64..64, g in 2_u64..64) {
            let across = hsdp_across(1e9, n, g, 2.0).total_bytes();
            prop_assert!(across < ddp(1e9, n * g, 2.0).total_bytes());
        }
    }

    #[test]
    fn one_rank_moves_nothing_and_accumulation_repeats_zero_3_only() {
        assert_eq!(ddp(1e9, 1, 2.0).total_bytes(), 0.0);
        assert_eq!(zero_3(1e9, 1, 2.0, 2.0, 8, false).total_bytes(), 0.0);
        let once = zero_3(1e9, 8, 2.0, 2.0, 1, false).total_bytes();
        assert_eq!(zero_3(1e9, 8, 2.0, 2.0, 8, false).total_bytes(), 8.0 * once);
    }
}
