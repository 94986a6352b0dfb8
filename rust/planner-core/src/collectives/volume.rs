//! Bytes that a rank sends in each collective, and the bandwidths that nccl-tests prints.
//!
//! Symbols: N ranks, S bytes of the full tensor (for an all-to-all: bytes that a rank holds before
//! the exchange). Volumes are what one rank sends; every rank receives as much unless said.
//!
//! Sources: Patarasuk and Yuan 2009 (ring bounds); Thakur et al. 2005 (halving and doubling);
//! NVIDIA nccl-tests `doc/PERFORMANCE.md` (algorithm and bus bandwidth).

use serde::{Deserialize, Serialize};

/// An algorithm family, by what its all-reduce is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Ring: N−1 steps of S/N each way.
    Ring,
    /// Recursive halving, then doubling: log₂N steps each way.
    Halving,
    /// Double binary tree: reduce up, broadcast down.
    Tree,
    /// Reduction in the switch (SHARP, NVLS): one trip up, one down.
    InSwitch,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 4] = [Self::Ring, Self::Halving, Self::Tree, Self::InSwitch];
}

/// What crosses one rank's link, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Sent by the rank.
    pub sent_bytes: f64,
    /// Received by the rank.
    pub received_bytes: f64,
}

impl std::ops::Add for Traffic {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
        }
    }
}

const fn both_ways(bytes: f64) -> Traffic {
    Traffic {
        sent_bytes: bytes,
        received_bytes: bytes,
    }
}

/// Share of a tensor that is not on the rank already: (N−1)/N.
///
/// ```
/// use planner_core::collectives::volume::remote_share;
/// assert_eq!(remote_share(8), 0.875);
/// assert_eq!(remote_share(1), 0.0);
/// ```
#[must_use]
pub const fn remote_share(n: u64) -> f64 {
    if n <= 1 {
        0.0
    } else {
        (n - 1) as f64 / n as f64
    }
}

/// Reduce-scatter, bytes sent per rank: (N−1)/N · S.
///
/// ```
/// use planner_core::collectives::volume::reduce_scatter_bytes;
/// assert_eq!(reduce_scatter_bytes(8, 1024.0), 896.0);
/// ```
#[must_use]
pub const fn reduce_scatter_bytes(n: u64, s: f64) -> f64 {
    remote_share(n) * s
}

/// All-gather, bytes sent per rank: (N−1)/N · S, with S the gathered tensor.
///
/// ```
/// use planner_core::collectives::volume::all_gather_bytes;
/// assert_eq!(all_gather_bytes(8, 1024.0), 896.0);
/// ```
#[must_use]
pub const fn all_gather_bytes(n: u64, s: f64) -> f64 {
    remote_share(n) * s
}

/// Ring all-reduce, bytes sent per rank: 2(N−1)/N · S, a reduce-scatter and an all-gather.
///
/// ```
/// use planner_core::collectives::volume::all_reduce_bytes;
/// assert_eq!(all_reduce_bytes(8, 1024.0), 1792.0);
/// assert_eq!(all_reduce_bytes(1, 1024.0), 0.0);
/// ```
#[must_use]
pub const fn all_reduce_bytes(n: u64, s: f64) -> f64 {
    2.0 * remote_share(n) * s
}

/// All-to-all, bytes sent per rank: (N−1)/N · S, with S what a rank holds before the exchange.
///
/// ```
/// use planner_core::collectives::volume::all_to_all_bytes;
/// assert_eq!(all_to_all_bytes(4, 1024.0), 768.0);
/// ```
#[must_use]
pub const fn all_to_all_bytes(n: u64, s: f64) -> f64 {
    remote_share(n) * s
}

/// Pipelined broadcast or reduce, bytes through the busiest rank each way: S.
///
/// ```
/// use planner_core::collectives::volume::broadcast_bytes;
/// assert_eq!(broadcast_bytes(8, 1024.0), 1024.0);
/// ```
#[must_use]
pub const fn broadcast_bytes(n: u64, s: f64) -> f64 {
    if n <= 1 { 0.0 } else { s }
}

/// Scatter or gather, bytes through the root's link: (N−1)/N · S; the root bounds the time.
///
/// ```
/// use planner_core::collectives::volume::scatter_root_bytes;
/// assert_eq!(scatter_root_bytes(4, 1024.0), 768.0);
/// ```
#[must_use]
pub const fn scatter_root_bytes(n: u64, s: f64) -> f64 {
    remote_share(n) * s
}

/// The reducing half of an all-reduce, through one rank's link.
///
/// Ring and halving: a reduce-scatter, (N−1)/N·S each way. Tree: a reduce; an inner rank receives
/// from two children in one of the two trees, each of which carries S/2, so S each way. In the
/// switch: a rank sends what it does not own, (N−1)/N·S, and receives its reduced S/N.
#[must_use]
pub fn reducing_half(family: Family, n: u64, s: f64) -> Traffic {
    match family {
        _ if n <= 1 => Traffic::default(),
        Family::Ring | Family::Halving => both_ways(reduce_scatter_bytes(n, s)),
        Family::Tree => both_ways(s),
        Family::InSwitch => Traffic {
            sent_bytes: remote_share(n) * s,
            received_bytes: s / n as f64,
        },
    }
}

/// The spreading half of an all-reduce, through one rank's link: the mirror of [`reducing_half`].
#[must_use]
pub fn spreading_half(family: Family, n: u64, s: f64) -> Traffic {
    let half = reducing_half(family, n, s);
    Traffic {
        sent_bytes: half.received_bytes,
        received_bytes: half.sent_bytes,
    }
}

/// All-reduce through one rank's link, by family.
///
/// | family | bytes each way | latency steps |
/// |---|---|---|
/// | ring | 2(N−1)/N · S | 2(N−1) |
/// | halving and doubling | 2(N−1)/N · S | 2·log₂N |
/// | double binary tree | 2S | 2·log₂N |
/// | in the switch | S up and S down | 2 |
///
/// ```
/// use planner_core::collectives::volume::{all_reduce_traffic, Family};
/// assert_eq!(all_reduce_traffic(Family::Tree, 8, 1024.0).sent_bytes, 2048.0);
/// assert_eq!(all_reduce_traffic(Family::InSwitch, 8, 1024.0).sent_bytes, 1024.0);
/// ```
#[must_use]
pub fn all_reduce_traffic(family: Family, n: u64, s: f64) -> Traffic {
    match family {
        _ if n <= 1 => Traffic::default(),
        Family::Ring | Family::Halving => both_ways(all_reduce_bytes(n, s)),
        Family::Tree => both_ways(2.0 * s),
        Family::InSwitch => both_ways(s),
    }
}

/// Latency steps of an all-reduce, by family (see [`all_reduce_traffic`]).
///
/// ```
/// use planner_core::collectives::volume::{all_reduce_steps, Family};
/// assert_eq!(all_reduce_steps(Family::Ring, 1024), 2046);
/// assert_eq!(all_reduce_steps(Family::Tree, 1024), 20);
/// ```
#[must_use]
pub const fn all_reduce_steps(family: Family, n: u64) -> u64 {
    if n <= 1 {
        return 0;
    }
    match family {
        Family::Ring => 2 * (n - 1),
        Family::Halving | Family::Tree => 2 * ceil_log2(n),
        Family::InSwitch => 2,
    }
}

/// ⌈log₂ n⌉, 0 for n ≤ 1.
#[must_use]
pub const fn ceil_log2(n: u64) -> u64 {
    if n <= 1 {
        0
    } else {
        64 - (n - 1).leading_zeros() as u64
    }
}

/// Least time of a ring all-reduce, s: 2(N−1)·(α + S/(N·β)).
///
/// α latency of a step in s, β bandwidth of a rank each way in bytes/s.
///
/// ```
/// use planner_core::collectives::volume::ring_all_reduce_time_s;
/// let t = ring_all_reduce_time_s(8, 1e9, 1e-6, 450e9);
/// assert!((t - (14e-6 + 1.75e9 / 450e9)).abs() < 1e-12); // 3.903 ms
/// ```
#[must_use]
pub fn ring_all_reduce_time_s(n: u64, s: f64, alpha_s: f64, beta_bytes_per_s: f64) -> f64 {
    all_reduce_steps(Family::Ring, n) as f64 * alpha_s + all_reduce_bytes(n, s) / beta_bytes_per_s
}

/// A hierarchical all-reduce over nodes of n ranks: what each link of a rank carries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hierarchical {
    /// Inside the node (reduce-scatter and all-gather), bytes sent per rank: 2(n−1)/n · S.
    pub inside_bytes: f64,
    /// Between g nodes, bytes sent per rank on its share S/n: 2(g−1)/g · S/n.
    pub between_bytes: f64,
}

/// Hierarchical all-reduce: reduce-scatter inside the node, all-reduce of 1/n of the data per GPU
/// between nodes, all-gather inside the node.
///
/// n ranks a node, g nodes, S bytes. The slow links carry 1/n of what "everything on the slow
/// tier" would charge them.
///
/// ```
/// use planner_core::collectives::volume::hierarchical_all_reduce;
/// let h = hierarchical_all_reduce(8, 4, 1024.0);
/// assert_eq!(h.inside_bytes, 1792.0);
/// assert_eq!(h.between_bytes, 192.0);
/// ```
#[must_use]
pub fn hierarchical_all_reduce(n: u64, g: u64, s: f64) -> Hierarchical {
    Hierarchical {
        inside_bytes: all_reduce_bytes(n, s),
        between_bytes: all_reduce_bytes(g, s / n.max(1) as f64),
    }
}

/// Algorithm bandwidth as nccl-tests prints it, bytes/s: S/t.
///
/// S is the larger of send and receive buffer per rank (all-gather, reduce-scatter: the full
/// tensor).
///
/// ```
/// use planner_core::collectives::volume::algorithm_bandwidth;
/// assert_eq!(algorithm_bandwidth(1e9, 4e-3), 250e9);
/// ```
#[must_use]
pub const fn algorithm_bandwidth(s: f64, time_s: f64) -> f64 {
    s / time_s
}

/// A collective, for its bus-bandwidth factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Every rank gets the sum.
    AllReduce,
    /// Every rank gets its part of the sum.
    ReduceScatter,
    /// Every rank gets every part.
    AllGather,
    /// Every rank sends a part to every rank.
    AllToAll,
    /// Broadcast, reduce.
    #[serde(alias = "broadcast", alias = "reduce")]
    Rooted,
    /// One rank to one rank.
    #[serde(alias = "send_recv")]
    PointToPoint,
}

/// Bus bandwidth over algorithm bandwidth as nccl-tests defines it.
///
/// all-reduce 2(N−1)/N; reduce-scatter, all-gather, all-to-all (N−1)/N; broadcast, reduce, send/recv
/// 1. It makes the figure comparable with a link's peak, whatever N.
///
/// ```
/// use planner_core::collectives::volume::{bus_factor, Operation};
/// assert_eq!(bus_factor(Operation::AllReduce, 8), 1.75);
/// assert_eq!(bus_factor(Operation::AllGather, 8), 0.875);
/// ```
#[must_use]
pub const fn bus_factor(operation: Operation, n: u64) -> f64 {
    match operation {
        Operation::AllReduce => 2.0 * remote_share(n),
        Operation::ReduceScatter | Operation::AllGather | Operation::AllToAll => remote_share(n),
        Operation::Rooted | Operation::PointToPoint => 1.0,
    }
}

/// Bus bandwidth as nccl-tests prints it, bytes/s: factor · S/t (see [`bus_factor`]).
///
/// ```
/// use planner_core::collectives::volume::{bus_bandwidth, Operation};
/// assert_eq!(bus_bandwidth(Operation::AllReduce, 8, 1e9, 4e-3), 437.5e9);
/// ```
#[must_use]
pub const fn bus_bandwidth(operation: Operation, n: u64, s: f64, time_s: f64) -> f64 {
    bus_factor(operation, n) * algorithm_bandwidth(s, time_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_reduce_is_its_two_halves(n in 1_u64..5000, s in 0.0_f64..1e12) {
            for family in Family::ALL {
                let parts = reducing_half(family, n, s) + spreading_half(family, n, s);
                let whole = all_reduce_traffic(family, n, s);
                prop_assert!((parts.sent_bytes - whole.sent_bytes).abs() <= 1e-12 * s);
                prop_assert!((parts.received_bytes - whole.received_bytes).abs() <= 1e-12 * s);
            }
            let ring = reduce_scatter_bytes(n, s) + all_gather_bytes(n, s);
            prop_assert!((ring - all_reduce_bytes(n, s)).abs() <= 1e-12 * s);
        }

        #[test]
        fn volumes_grow_with_ranks_and_stay_below_their_limit(n in 1_u64..5000) {
            prop_assert!(all_reduce_bytes(n, 1.0) <= all_reduce_bytes(n + 1, 1.0));
            prop_assert!(all_reduce_bytes(n, 1.0) < 2.0);
            prop_assert!(all_to_all_bytes(n, 1.0) < 1.0);
            prop_assert!(2_u64.pow(ceil_log2(n) as u32) >= n);
        }

        /// Inside and between together are never less than one flat ring needs, and the slow links
        /// carry less than a flat ring would put on them.
        #[test]
        fn hierarchy_saves_the_slow_links(n in 2_u64..65, g in 2_u64..200, s in 1.0_f64..1e12) {
            let h = hierarchical_all_reduce(n, g, s);
            let flat = all_reduce_bytes(n * g, s);
            prop_assert!((h.inside_bytes + h.between_bytes - flat).abs() <= 1e-9 * s);
            prop_assert!(h.between_bytes < flat / n as f64 * 1.000_001);
        }
    }

    #[test]
    fn one_rank_moves_nothing() {
        for family in Family::ALL {
            assert_eq!(all_reduce_traffic(family, 1, 1e9), Traffic::default());
            assert_eq!(all_reduce_steps(family, 1), 0);
        }
        assert_eq!(broadcast_bytes(1, 1e9), 0.0);
        assert_eq!(hierarchical_all_reduce(1, 1, 1e9), Hierarchical::default());
        assert_eq!(
            hierarchical_all_reduce(8, 1, 8.0).inside_bytes,
            all_reduce_bytes(8, 8.0)
        );
        assert_eq!(ring_all_reduce_time_s(1, 1e9, 1e-6, 1e9), 0.0);
    }

    #[test]
    fn bus_bandwidth_of_a_perfect_ring_is_the_link() {
        for n in [2, 8, 64, 1000] {
            let t = ring_all_reduce_time_s(n, 1e9, 0.0, 50e9);
            let bus = bus_bandwidth(Operation::AllReduce, n, 1e9, t);
            assert!((bus - 50e9).abs() < 1.0);
        }
    }
}
