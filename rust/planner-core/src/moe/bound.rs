//! Lower bounds on the fullest rank.

use super::counts::greedy_counts;
use super::shape::Shape;

/// No placement has a rank cost (load over speed) below this.
///
/// ```text
/// mean:     Σw / Σspeed
/// replica:  min over counts of max w_e/c_e, over the fastest rank; greedy replication attains it
/// partner:  the rank of the heaviest replica has s − 1 more slots (equal ranks only)
/// ```
///
/// Unit: that of the loads.
///
/// ```
/// use planner_core::moe::{Shape, bound::lower_bound};
/// // Ranks of two slots: expert 0 cannot be split, and sits beside at least a load of 1.
/// let shape = Shape { experts: 4, redundant: 0, ranks: 2, nodes: 1, groups: 1 };
/// let bound = lower_bound(&[10.0, 3.0, 2.0, 1.0], &shape, &[1.0, 1.0]);
/// assert!(bound <= 11.0 && bound > 10.999); // found by bisection, from below
/// ```
#[must_use]
pub fn lower_bound(loads: &[f64], shape: &Shape, speeds: &[f64]) -> f64 {
    let mean = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>();
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let counts = greedy_counts(loads, shape.slots());
    let replica = loads
        .iter()
        .zip(&counts)
        .map(|(w, c)| w / f64::from(*c))
        .fold(0.0, f64::max);
    let simple = mean.max(replica / fastest);
    if shape.slots_per_rank() > 1
        && speeds.iter().all(|s| *s == speeds[0])
        && replica > 0.5 * mean * fastest
    {
        simple.max(partner_bound(loads, shape, simple * fastest) / fastest)
    } else {
        simple
    }
}

/// Smallest threshold τ ≥ `from` that is not refuted: with max ≤ τ every expert needs
/// m_e = ⌈w_e/(τ − P)⌉ replicas, where P is the least that the other s − 1 slots of its rank hold.
///
/// Let b be the replica loads at those counts and j = R − Σ(m_e − 1) the replicas left. The s − 1
/// lightest replicas sum to P₀, and each further split lowers that sum by no more than the largest
/// of them: P ≥ P₀ − j·b_(s−1); for s = 2 exactly P = min w_e/(m_e + j).
fn partner_bound(loads: &[f64], shape: &Shape, from: f64) -> f64 {
    let mut sorted = loads.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let loads = &sorted;
    let (mut low, mut high) = (from, 2.0 * from);
    if feasible(loads, shape, low) {
        return low;
    }
    while !feasible(loads, shape, high) {
        low = high;
        high *= 2.0;
    }
    for _ in 0..14 {
        let middle = 0.5 * (low + high);
        if feasible(loads, shape, middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

/// Loads are sorted, heaviest first: only the heavy ones, which need more than one replica, and a few
/// of the lightest matter.
fn feasible(loads: &[f64], shape: &Shape, limit: f64) -> bool {
    let partners = shape.slots_per_rank() as usize - 1;
    let mut beside = 0.0;
    for _ in 0..8 {
        let room = limit - beside;
        if room <= 0.0 {
            return false;
        }
        // A hair of slack keeps rounding from refuting a threshold that is met exactly.
        let needed = |w: f64| (w / room * (1.0 - 1e-9)).ceil().max(1.0);
        let heavy = loads.partition_point(|w| *w > room);
        let splits: f64 = loads[..heavy].iter().map(|w| needed(*w) - 1.0).sum();
        let left = f64::from(shape.redundant) - splits;
        if left < 0.0 {
            return false;
        }
        let light = loads.len() - (loads.len() - heavy).min(partners);
        let few = loads[..heavy].iter().chain(&loads[light..]).copied();
        let least = least_beside(few, partners, left, needed);
        if least <= beside * (1.0 + 1e-12) {
            return true;
        }
        beside = least;
    }
    true
}

/// The least that `partners` replicas can hold when `left` replicas are still to be given.
fn least_beside(
    loads: impl Iterator<Item = f64>,
    partners: usize,
    left: f64,
    needed: impl Fn(f64) -> f64,
) -> f64 {
    if partners == 1 {
        return loads
            .map(|w| w / (needed(w) + left))
            .fold(f64::INFINITY, f64::min);
    }
    let mut base: Vec<f64> = Vec::new();
    for w in loads {
        let m = needed(w);
        base.extend(std::iter::repeat_n(w / m, (m as usize).min(partners)));
    }
    let nth = partners.min(base.len()) - 1;
    let (lighter, largest, _) = base.select_nth_unstable_by(nth, f64::total_cmp);
    let sum = lighter.iter().sum::<f64>() + *largest;
    (sum - left * *largest).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::counts::search_counts;
    use crate::moe::pack::{Packing, replicas};
    use proptest::prelude::*;

    proptest! {
        /// Small instances: every count vector, each packed by search, stays at or above the bound.
        #[test]
        fn no_placement_is_below(loads in proptest::collection::vec(0.01f64..50.0, 5), ranks in 2u32..5) {
            let redundant = Shape::least_redundant(5, ranks) + ranks * u32::from(ranks < 4);
            let shape = Shape { experts: 5, redundant, ranks, nodes: 1, groups: 1 };
            prop_assume!(shape.check().is_ok());
            let speeds = vec![1.0; ranks as usize];
            let bound = lower_bound(&loads, &shape, &speeds);
            let counts = greedy_counts(&loads, shape.slots());
            let start = Packing::longest_first(&replicas(&loads, &counts), &speeds);
            let (_, cost) = search_counts(&loads, counts, &speeds, 0.0, start);
            prop_assert!(cost >= bound * (1.0 - 1e-9), "{cost} {bound}");
        }
    }
}
