//! Time of one MoE layer, set by its hottest rank.

use super::extremes::{Moments, NormalMax, expected_max};
use crate::collectives::expert_parallel::active_experts;
use serde::{Deserialize, Serialize};

/// Expected number of active experts on the rank that has most of them, uniform routing: the
/// largest of R binomials(m, 1 − (1 − k/E)^T), sum constraint lifted.
///
/// ```
/// use planner_core::moe::hot::most_active;
/// assert_eq!(most_active(256, 8, 32, 100_000), 8.0); // all of them
/// assert!(most_active(256, 8, 32, 16) > 8.0 * (1.0 - (1.0_f64 - 8.0 / 256.0).powi(16)));
/// ```
#[must_use]
pub fn most_active(experts: u32, top_k: u32, ranks: u32, tokens: u32) -> f64 {
    let m = f64::from(experts) / f64::from(ranks);
    let mean =
        active_experts(u64::from(experts), u64::from(top_k), u64::from(tokens)) / f64::from(ranks);
    let q = (mean / m).min(1.0);
    let variance = mean * (1.0 - q);
    let bin = Moments {
        mean,
        variance,
        third: variance * (1.0 - 2.0 * q),
    };
    expected_max(bin, &NormalMax::of(ranks)).min(m)
}

/// One layer on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Token-choices of the mean rank, T·k/R.
    pub mean_rows: f64,
    /// Fullest rank over the mean.
    pub rank_max_over_mean: f64,
    /// Active experts of the rank that has most of them.
    pub most_active: f64,
    /// Weight bytes of one expert.
    pub expert_bytes: f64,
    /// FLOP of one row through one expert (6·H·F for a gated MLP).
    pub flops_per_row: f64,
    /// FLOP of the shared experts for the tokens of the rank.
    pub shared_flops: f64,
    /// Grouped-GEMM rate that the rank reaches.
    pub flops_per_s: f64,
    /// Memory bandwidth that the rank reaches.
    pub bytes_per_s: f64,
    /// Dispatch and combine, seconds each.
    pub exchange_s: [f64; 2],
    /// What hides the exchange.
    pub overlap: Overlap,
}

/// What runs while tokens travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Nothing.
    None,
    /// The shared experts.
    SharedExperts,
    /// The experts of another micro-batch.
    TwoMicroBatches,
}

/// Terms of the layer's time; they add up to `total_s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Time {
    /// Routed experts of the hottest rank: the larger of arithmetic and weight reads.
    pub experts_s: f64,
    /// Of that, what the mean rank would not need.
    pub imbalance_s: f64,
    /// Shared experts that nothing hides.
    pub shared_s: f64,
    /// Dispatch and combine that nothing hides.
    pub exposed_exchange_s: f64,
    /// Sum of experts, shared and exposed exchange.
    pub total_s: f64,
}

/// Time of the layer.
///
/// ```text
/// experts = max( rows·hot·flops/rate , active·bytes/BW )
/// ```
///
/// Large batches are bound by the rows of the fullest rank, small ones by the weights of the
/// experts that its tokens wake. Units: SI.
///
/// ```
/// use planner_core::moe::hot::{Layer, Overlap, time};
/// let layer = Layer {
///     mean_rows: 1000.0, rank_max_over_mean: 1.5, most_active: 8.0, expert_bytes: 44e6,
///     flops_per_row: 88e6, shared_flops: 0.0, flops_per_s: 400e12, bytes_per_s: 3e12,
///     exchange_s: [100e-6, 150e-6], overlap: Overlap::None,
/// };
/// let t = time(&layer);
/// assert!((t.experts_s - 330e-6).abs() < 1e-9); // 1,500 rows · 88e6 / 400e12
/// assert!((t.total_s - 580e-6).abs() < 1e-9);
/// ```
#[must_use]
pub fn time(layer: &Layer) -> Time {
    let compute = |hot: f64| layer.mean_rows * hot * layer.flops_per_row / layer.flops_per_s;
    let read = layer.most_active * layer.expert_bytes / layer.bytes_per_s;
    let experts_s = compute(layer.rank_max_over_mean).max(read);
    let imbalance_s = experts_s - compute(1.0).max(read);
    let shared = layer.shared_flops / layer.flops_per_s;
    let exchange: f64 = layer.exchange_s.iter().sum();
    let (shared_s, exposed_exchange_s) = match layer.overlap {
        Overlap::None => (shared, exchange),
        Overlap::SharedExperts => (shared, (exchange - shared).max(0.0)),
        Overlap::TwoMicroBatches => (shared, (exchange - shared - experts_s).max(0.0)),
    };
    let total_s = experts_s + shared_s + exposed_exchange_s;
    Time {
        experts_s,
        imbalance_s,
        shared_s,
        exposed_exchange_s,
        total_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_reads_weights_and_overlap_hides() {
        let layer = Layer {
            mean_rows: 4.0,
            rank_max_over_mean: 3.0,
            most_active: 4.0,
            expert_bytes: 30e6,
            flops_per_row: 60e6,
            shared_flops: 0.0,
            flops_per_s: 400e12,
            bytes_per_s: 3e12,
            exchange_s: [20e-6, 30e-6],
            overlap: Overlap::TwoMicroBatches,
        };
        let t = time(&layer);
        assert!((t.experts_s - 40e-6).abs() < 1e-12);
        assert_eq!(t.imbalance_s, 0.0); // rows do not matter yet
        assert!((t.exposed_exchange_s - 10e-6).abs() < 1e-12);
    }
}
