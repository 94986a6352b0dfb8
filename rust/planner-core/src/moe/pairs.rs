//! Counts of replicas where equal ranks have two slots each: heaviest with lightest is the best
//! pairing of given replicas, so only the counts are searched.
//!
//! A move takes a replica from one expert and gives it to another. The sorted replicas are kept, so
//! that a move is judged by merging a few changed loads into them, and given up at the first pair
//! that is too full.

use super::pack::{Item, replicas};
use super::rng::Pcg64;

/// Moves looked at for each layer.
const LOOKS: u32 = 1500;

/// Searches counts by moves of one replica that lower the fullest pair. Deterministic.
#[must_use]
pub fn pair_counts(loads: &[f64], counts: Vec<u32>, goal: f64) -> Vec<u32> {
    let items = replicas(loads, &counts);
    let (cost, fullest) = fullest_pair(&items, f64::INFINITY);
    let mut search = Search {
        loads,
        counts,
        moved: Vec::with_capacity(items.len()),
        items,
        cost,
        fullest,
    };
    let mut rng = Pcg64::new(0x00ba_1ace, 1);
    for _ in 0..LOOKS {
        if search.cost <= goal {
            break;
        }
        search.look(&mut rng);
    }
    search.counts
}

/// Load and place of the fullest pair of sorted replicas; stops at the first pair of `limit`.
fn fullest_pair(items: &[Item], limit: f64) -> (f64, usize) {
    let mut fullest = (0.0, 0);
    let from_both_ends = items.iter().zip(items.iter().rev()).take(items.len() / 2);
    for (i, (heavy, light)) in from_both_ends.enumerate() {
        let load = heavy.0 + light.0;
        if load > fullest.0 {
            fullest = (load, i);
            if load >= limit {
                break;
            }
        }
    }
    fullest
}

struct Search<'a> {
    loads: &'a [f64],
    counts: Vec<u32>,
    /// Replicas, heaviest first.
    items: Vec<Item>,
    /// The same after the move that is looked at.
    moved: Vec<Item>,
    /// Load and place of the fullest pair.
    cost: f64,
    fullest: usize,
}

impl Search<'_> {
    /// One move: from an expert with a replica to spare, to one of the fullest pair or to any.
    fn look(&mut self, rng: &mut Pcg64) {
        let n = self.items.len();
        let spare = |e: u32| self.counts[e as usize] > 1;
        let from = self.items[rng.below(n as u32) as usize].1;
        if !spare(from) {
            return;
        }
        let to = if rng.below(2) == 0 {
            let i = self.fullest;
            self.items[if rng.below(4) == 0 { n - 1 - i } else { i }].1
        } else {
            self.items[rng.below(n as u32) as usize].1
        };
        let most = (n / 2) as u32;
        if from == to || self.counts[to as usize] >= most {
            return;
        }
        self.merge(from, to);
        let limit = self.cost * (1.0 - 1e-12);
        let (cost, fullest) = fullest_pair(&self.moved, limit);
        if cost < limit {
            self.counts[from as usize] -= 1;
            self.counts[to as usize] += 1;
            std::mem::swap(&mut self.items, &mut self.moved);
            (self.cost, self.fullest) = (cost, fullest);
        }
    }

    /// Sorts the replicas after a move.
    fn merge(&mut self, from: u32, to: u32) {
        let changed = |e: u32, count: u32| ((self.loads[e as usize] / f64::from(count), e), count);
        let less = changed(from, self.counts[from as usize] - 1);
        let more = changed(to, self.counts[to as usize] + 1);
        let mut new = [less, more];
        if new[0].0.0 < new[1].0.0 {
            new.swap(0, 1);
        }
        let items = &mut self.moved;
        items.clear();
        let mut next = 0;
        for item in &self.items {
            if item.1 == from || item.1 == to {
                continue;
            }
            while next < 2 && new[next].0.0 > item.0 {
                items.extend(std::iter::repeat_n(new[next].0, new[next].1 as usize));
                next += 1;
            }
            items.push(*item);
        }
        for (item, count) in &new[next..] {
            items.extend(std::iter::repeat_n(*item, *count as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Moves keep the slots, every expert, and never make the fullest pair fuller.
        #[test]
        fn moves_lower_the_fullest_pair(
            loads in proptest::collection::vec(0.1f64..100.0, 12), seed in 0u32..8
        ) {
            let mut counts = vec![1; 12];
            for i in 0..8u32 {
                counts[((i * 5 + seed) % 12) as usize] += 1;
            }
            let pair = |counts: &[u32]| fullest_pair(&replicas(&loads, counts), f64::INFINITY).0;
            let before = pair(&counts);
            let after = pair_counts(&loads, counts, 0.0);
            prop_assert_eq!(after.iter().sum::<u32>(), 20);
            prop_assert!(after.iter().all(|c| *c >= 1));
            prop_assert!(pair(&after) <= before);
        }
    }
}
