//! Bytes that expert parallelism moves in one MoE layer.
//!
//! Symbols: T tokens on a rank, k experts per token, E experts, H width of a token, b bytes per
//! element, EP expert-parallel ranks.
//!
//! Sources: Lepikhin et al. 2021 (GShard); DeepSeek-AI 2024 (DeepSeek-V3, node-limited routing).

use super::volume::remote_share;

/// Upper bound of one all-to-all, bytes per rank: T·k·H·b, if every choice leaves the rank.
///
/// ```
/// use planner_core::collectives::expert_parallel::dispatch_bytes;
/// assert_eq!(dispatch_bytes(4096, 8, 7168, 1.0), 234_881_024.0); // 224 MiB in fp8
/// ```
#[must_use]
pub const fn dispatch_bytes(tokens: u64, k: u64, h: u64, element_bytes: f64) -> f64 {
    tokens as f64 * k as f64 * h as f64 * element_bytes
}

/// What leaves the rank with uniform routing: (1 − 1/EP) of [`dispatch_bytes`].
///
/// ```
/// use planner_core::collectives::expert_parallel::remote_dispatch_bytes;
/// assert_eq!(remote_dispatch_bytes(1000.0, 8), 875.0);
/// assert_eq!(remote_dispatch_bytes(1000.0, 1), 0.0);
/// ```
#[must_use]
pub const fn remote_dispatch_bytes(dispatch_bytes: f64, ep: u64) -> f64 {
    remote_share(ep) * dispatch_bytes
}

/// Probability that a token uses none of m experts: C(E−m, k)/C(E, k).
///
/// ```
/// use planner_core::collectives::expert_parallel::misses_probability;
/// assert_eq!(misses_probability(8, 4, 2), 6.0 / 28.0);
/// ```
#[must_use]
pub fn misses_probability(experts: u64, m: u64, k: u64) -> f64 {
    (0..k)
        .map(|j| {
            let left = experts.saturating_sub(m + j) as f64;
            left / experts.saturating_sub(j).max(1) as f64
        })
        .product()
}

/// Distinct nodes (or ranks) that a token's k experts touch on average, uniform routing:
/// R·(1 − C(E−m, k)/C(E, k)), m = E/R experts on each of R nodes. Where R does not divide E, some
/// nodes have one expert more than others.
///
/// A node-aware dispatcher sends a token once to each of them rather than k times.
///
/// ```
/// use planner_core::collectives::expert_parallel::distinct_nodes;
/// assert!((distinct_nodes(256, 8, 8) - 5.2947).abs() < 1e-4);
/// // 3 experts on 2 nodes, one a token: always one node.
/// assert!((distinct_nodes(3, 1, 2) - 1.0).abs() < 1e-12);
/// ```
#[must_use]
pub fn distinct_nodes(experts: u64, k: u64, nodes: u64) -> f64 {
    let nodes = nodes.max(1);
    let (m, fuller) = (experts / nodes, experts % nodes);
    let meets = |m: u64| 1.0 - misses_probability(experts, m, k);
    let plain = (nodes - fuller) as f64 * meets(m);
    if fuller == 0 {
        plain
    } else {
        plain + fuller as f64 * meets(m + 1)
    }
}

/// What leaves the node with a node-aware dispatcher, bytes per rank:
/// T·H·b · R·(1 − C(E−m, k)/C(E, k)) · (1 − 1/R).
///
/// ```
/// use planner_core::collectives::expert_parallel::node_dispatch_bytes;
/// // 4,096 tokens of 7,168 fp8 over 8 nodes: 4.63 copies a token instead of 7 (8 · 7/8).
/// let bytes = node_dispatch_bytes(4096, 7168, 1.0, (256, 8, 8));
/// assert!((bytes / (4096.0 * 7168.0) - 4.6329).abs() < 1e-4);
/// ```
#[must_use]
pub fn node_dispatch_bytes(
    tokens: u64,
    h: u64,
    element_bytes: f64,
    (experts, k, nodes): (u64, u64, u64),
) -> f64 {
    let copies = distinct_nodes(experts, k, nodes) * remote_share(nodes);
    dispatch_bytes(tokens, 1, h, element_bytes) * copies
}

/// Mean tokens per expert: T·k/E, T tokens over all ranks that share the experts.
///
/// ```
/// use planner_core::collectives::expert_parallel::tokens_per_expert;
/// assert_eq!(tokens_per_expert(4096, 8, 256), 128.0);
/// ```
#[must_use]
pub const fn tokens_per_expert(tokens: u64, k: u64, experts: u64) -> f64 {
    tokens as f64 * k as f64 / experts as f64
}

/// Experts that a batch of B tokens wakes on average, uniform routing: E·(1 − (1 − k/E)^B).
///
/// ```
/// use planner_core::collectives::expert_parallel::active_experts;
/// assert!((active_experts(32, 4, 8) - 21.0).abs() < 0.01);
/// assert_eq!(active_experts(32, 4, 0), 0.0);
/// ```
#[must_use]
pub fn active_experts(experts: u64, k: u64, batch: u64) -> f64 {
    let e = experts as f64;
    e * (1.0 - (1.0 - k as f64 / e).powf(batch as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn deduplication_and_locality_only_save(
            r in 1_u64..17, m in 1_u64..33, k in 1_u64..9, t in 1_u64..5000,
        ) {
            let e = r * m;
            prop_assume!(k <= e);
            let upper = dispatch_bytes(t, k, 64, 2.0);
            let node = node_dispatch_bytes(t, 64, 2.0, (e, k, r));
            prop_assert!(node <= upper * (1.0 + 1e-12));
            let distinct = distinct_nodes(e, k, r);
            prop_assert!(distinct <= k.min(r) as f64 + 1e-9 && distinct >= 1.0 - 1e-9);
            prop_assert!(remote_dispatch_bytes(upper, r) < upper);
        }

        #[test]
        fn a_batch_wakes_at_least_k_and_at_most_all(e in 1_u64..512, b in 1_u64..500) {
            let k = 1 + e / 32;
            let active = active_experts(e, k, b);
            prop_assert!(active >= k as f64 - 1e-9 && active <= e as f64);
            prop_assert!(active <= active_experts(e, k, b + 1));
        }
    }

    #[test]
    fn one_node_holds_every_expert() {
        assert_eq!(distinct_nodes(64, 8, 1), 1.0);
        assert_eq!(node_dispatch_bytes(10, 10, 1.0, (64, 8, 1)), 0.0);
        assert_eq!(misses_probability(8, 8, 2), 0.0);
        assert_eq!(misses_probability(8, 0, 2), 1.0);
        assert_eq!(active_experts(8, 8, 1), 8.0);
    }
}
