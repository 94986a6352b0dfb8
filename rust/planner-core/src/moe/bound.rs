//! Lower bounds on the fullest rank.

use super::counts::greedy_counts;
use super::shape::Shape;

/// No placement has a rank cost (load over speed) below this.
///
/// ```text
/// mean:     Σw / Σspeed
/// replica:  min over counts of max w_e/c_e, over the fastest rank; greedy replication attains it
/// partner:  the rank of the heaviest replica has s − 1 more slots (equal ranks only)
/// pairs:    heavy replicas need light ones beside them (equal ranks of two slots)
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
        let mut sorted = loads.to_vec();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut bound = partner_bound(&sorted, shape, simple * fastest);
        if shape.slots_per_rank() == 2 {
            bound = pair_bound(&sorted, f64::from(shape.redundant), bound);
        }
        simple.max(bound / fastest)
    } else {
        simple
    }
}

/// Largest threshold found, at least `from`, that [`pairs_refute`]. Loads are sorted, heaviest first.
fn pair_bound(loads: &[f64], redundant: f64, from: f64) -> f64 {
    if !pairs_refute(loads, redundant, from) {
        return from;
    }
    let (mut low, mut high) = (from, 1.25 * from);
    for _ in 0..14 {
        let middle = 0.5 * (low + high);
        if pairs_refute(loads, redundant, middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Whether no placement on ranks of two slots has all ranks at or below τ: for some x ≤ τ/4 more
/// replicas are above τ − x than are at or below x, and such a replica needs such a partner.
///
/// ```text
/// f(c) = c·[w/c ≤ x] − c·[w/c > τ − x]        what an expert of load w in c replicas adds
/// Σ f(c) ≤ Σ f(m) + 2·(R − Σ (m − 1))         m = ⌈w/τ⌉, the fewest replicas
/// ```
///
/// A replica beyond the fewest adds at most 2 if x ≤ τ/4. From f(m) = 0: w/c ≤ x takes c ≥ 2m.
/// From f(1) = −1, w > ¾τ: two are no light ones, and c ≥ 3 gain c + 1. From f(2) = −2, w > 1.5τ:
/// three to six are no light ones, and more gain c + 2. For m ≥ 3 take 0 in place of −m.
fn pairs_refute(loads: &[f64], redundant: f64, limit: f64) -> bool {
    let mut left = redundant;
    let mut heavy: Vec<(f64, f64)> = Vec::new();
    for w in loads.iter().take_while(|w| **w > 0.75 * limit) {
        // A hair of slack keeps rounding from refuting a threshold that is met exactly.
        let fewest = (w / limit * (1.0 - 1e-9)).ceil().max(1.0);
        left -= fewest - 1.0;
        if fewest <= 2.0 {
            heavy.push((w / fewest, fewest));
        }
    }
    if left < 0.0 {
        return true;
    }
    heavy.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut heavy = heavy.into_iter().peekable();
    let (mut alone, mut lights) = (0.0, 2.0 * left);
    for w in loads.iter().rev() {
        // Just below this load: all before it are at or below x.
        let x = w * (1.0 - 1e-9);
        if x > 0.25 * limit {
            break;
        }
        while let Some((_, count)) = heavy.next_if(|h| h.0 > (limit - x) * (1.0 + 1e-9)) {
            alone += count;
        }
        if alone > lights {
            return true;
        }
        lights += 1.0;
    }
    false
}

/// Smallest threshold τ ≥ `from` that is not refuted: with max ≤ τ every expert needs
/// m_e = ⌈w_e/(τ − P)⌉ replicas, where P is the least that the other s − 1 slots of its rank hold.
///
/// Let b be the replica loads at those counts and j = R − Σ(m_e − 1) the replicas left. The s − 1
/// lightest replicas sum to P₀, and each further split lowers that sum by no more than the largest
/// of them: P ≥ P₀ − j·b_(s−1); for s = 2 exactly P = min w_e/(m_e + j).
fn partner_bound(loads: &[f64], shape: &Shape, from: f64) -> f64 {
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
    use crate::moe::rng::Pcg64;
    use proptest::prelude::*;

    /// Two slots a rank: the optimum by trying all counts, for loads of every skew, is never below.
    #[test]
    fn pairs_of_all_counts_are_not_below() {
        let mut rng = Pcg64::new(17, 0);
        let mut sharper = 0;
        for case in 0..600u32 {
            let (experts, ranks) = (6 + case % 4, 6);
            let power = [0.3, 1.0, 2.0, 5.0][(case / 4 % 4) as usize];
            let loads: Vec<f64> = (0..experts).map(|_| rng.uniform().powf(power)).collect();
            let redundant = 2 * ranks - experts;
            let shape = Shape {
                experts,
                redundant,
                ranks,
                nodes: 1,
                groups: 1,
            };
            let speeds = vec![1.0; ranks as usize];
            let counts = greedy_counts(&loads, shape.slots());
            let start = Packing::paired(&replicas(&loads, &counts));
            let (_, optimum) = search_counts(&loads, counts, &speeds, 0.0, start);
            let bound = lower_bound(&loads, &shape, &speeds);
            assert!(
                optimum >= bound * (1.0 - 1e-9),
                "{optimum} {bound} {loads:?}"
            );
            let mut sorted = loads.clone();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            let mean = loads.iter().sum::<f64>() / f64::from(ranks);
            sharper += u32::from(pair_bound(&sorted, f64::from(redundant), mean) > mean);
        }
        assert!(sharper > 20, "{sharper} of 600 are decided by pairs");
    }

    /// Seven heavy loads, six light ones and nothing to split: the seventh sits beside 4.
    #[test]
    fn heavy_ones_need_light_ones() {
        let mut loads = [1.0; 14];
        loads[..7].fill(20.0);
        loads[7] = 4.0;
        let shape = Shape {
            experts: 14,
            redundant: 0,
            ranks: 7,
            nodes: 1,
            groups: 1,
        };
        let bound = lower_bound(&loads, &shape, &[1.0; 7]);
        assert!(bound <= 24.0 && bound > 23.99, "{bound}");
    }

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
