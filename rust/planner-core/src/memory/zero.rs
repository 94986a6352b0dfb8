//! Memory of parameters, gradients and optimizer state per rank.
//!
//! Symbols: Φ parameters on the rank's model shard, N ranks of the sharding group, b_p, b_g, b_o bytes
//! of parameter, gradient and optimizer state per parameter. Adam with mixed precision: 2, 2 (or 4)
//! and 12 (fp32 master weight, first and second moment).
//!
//! Source: Rajbhandari et al. 2020 (ZeRO), §3 and figure 1.

use crate::layout::Sharding;

/// Bytes per parameter of each state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateBytes {
    /// Parameter b_p.
    pub param: f64,
    /// Gradient b_g.
    pub grad: f64,
    /// Optimizer b_o.
    pub optimizer: f64,
}

impl StateBytes {
    /// Adam in mixed precision: 2 + 2 + 12 = 16 bytes per parameter.
    pub const ADAM_MIXED: Self = Self {
        param: 2.0,
        grad: 2.0,
        optimizer: 12.0,
    };
    /// The same with fp32 gradients: 18 bytes per parameter.
    pub const ADAM_MIXED_FP32_GRADS: Self = Self {
        grad: 4.0,
        ..Self::ADAM_MIXED
    };
}

/// What one rank holds, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StateMemory {
    /// Parameters.
    pub param_bytes: f64,
    /// Gradients.
    pub grad_bytes: f64,
    /// Optimizer state.
    pub optimizer_bytes: f64,
}

impl StateMemory {
    /// All three.
    #[must_use]
    pub const fn total_bytes(&self) -> f64 {
        self.param_bytes + self.grad_bytes + self.optimizer_bytes
    }
}

/// Parameters, gradients and optimizer state per rank: (b_p + b_g + b_o)·Φ, each term divided by its
/// sharding group.
///
/// ZeRO-1 divides the optimizer by N, ZeRO-2 also the gradients, ZeRO-3 (FSDP; HSDP inside its group)
/// also the parameters.
///
/// ```
/// use planner_core::{layout::Sharding, memory::zero::{state_memory, StateBytes}};
/// // The paper's example: 7.5e9 parameters on 64 ranks.
/// let gb = |s| state_memory(s, 7.5e9, 64, StateBytes::ADAM_MIXED).total_bytes() / 1e9;
/// assert_eq!(gb(Sharding::None), 120.0);
/// assert!((gb(Sharding::Zero1) - 31.4).abs() < 0.05);
/// assert!((gb(Sharding::Zero2) - 16.6).abs() < 0.05);
/// assert!((gb(Sharding::Zero3) - 1.9).abs() < 0.05);
/// ```
#[must_use]
pub fn state_memory(sharding: Sharding, phi: f64, n: u64, bytes: StateBytes) -> StateMemory {
    let n = n.max(1) as f64;
    let (param, grad, optimizer) = match sharding {
        Sharding::None => (1.0, 1.0, 1.0),
        Sharding::Zero1 => (1.0, 1.0, n),
        Sharding::Zero2 => (1.0, n, n),
        Sharding::Zero3 | Sharding::Hsdp => (n, n, n),
    };
    StateMemory {
        param_bytes: bytes.param * phi / param,
        grad_bytes: bytes.grad * phi / grad,
        optimizer_bytes: bytes.optimizer * phi / optimizer,
    }
}

/// Weights of a model in a format, bytes per rank: params · bytes / shards.
///
/// fp32 4, bf16 2, fp8 1, int4 0.5 bytes per parameter, scales apart (see [`group_scale_bytes`]).
///
/// ```
/// use planner_core::memory::zero::weight_bytes;
/// assert_eq!(weight_bytes(70e9, 2.0, 8), 17.5e9);
/// ```
#[must_use]
pub fn weight_bytes(params: f64, bytes_per_param: f64, shards: u64) -> f64 {
    params * bytes_per_param / shards.max(1) as f64
}

/// Scales (and zero points) of group-quantised weights, bytes: params/group · bytes per group.
///
/// ```
/// use planner_core::memory::zero::group_scale_bytes;
/// // One bf16 scale per 128 int4 weights: 2 bytes for each 64, 3.1 % of the packed weights.
/// assert_eq!(group_scale_bytes(128e9, 128, 2.0) / (128e9 * 0.5), 0.03125);
/// ```
#[must_use]
pub fn group_scale_bytes(params: f64, group: u64, bytes_per_group: f64) -> f64 {
    params / group.max(1) as f64 * bytes_per_group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_or_eighteen_bytes_per_parameter_unsharded() {
        let total = |bytes| state_memory(Sharding::None, 1.0, 64, bytes).total_bytes();
        assert_eq!(total(StateBytes::ADAM_MIXED), 16.0);
        assert_eq!(total(StateBytes::ADAM_MIXED_FP32_GRADS), 18.0);
    }

    #[test]
    fn one_rank_shards_nothing_and_each_stage_only_saves() {
        let total = |s, n| state_memory(s, 1e9, n, StateBytes::ADAM_MIXED).total_bytes();
        let stages = [
            Sharding::None,
            Sharding::Zero1,
            Sharding::Zero2,
            Sharding::Zero3,
        ];
        for sharding in stages {
            assert_eq!(total(sharding, 1), 16e9);
        }
        for pair in stages.windows(2) {
            assert!(total(pair[1], 64) < total(pair[0], 64));
        }
        assert_eq!(total(Sharding::Hsdp, 8), total(Sharding::Zero3, 8));
        // Many ranks: what is not sharded is left.
        assert!((total(Sharding::Zero1, 1_000_000_000) - 4e9).abs() < 20.0);
        assert!((total(Sharding::Zero2, 1_000_000_000) - 2e9).abs() < 20.0);
    }
}
