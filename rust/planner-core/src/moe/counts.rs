//! How many replicas each expert gets.

use super::pack::{Item, Packing, replicas};
use super::pairs::pair_counts;
use super::rng::Pcg64;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(PartialEq)]
struct Heaviest(f64, u32);

impl Eq for Heaviest {}

impl PartialOrd for Heaviest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Heaviest {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(other.1.cmp(&self.1))
    }
}

/// Replicates the expert with the heaviest replica while slots are left: the counts with the
/// lightest heaviest replica.
///
/// ```
/// use planner_core::moe::counts::greedy_counts;
/// assert_eq!(greedy_counts(&[9.0, 4.0, 1.0], 5), [3, 1, 1]); // 4.5 twice is heavier than 4
/// ```
#[must_use]
pub fn greedy_counts(loads: &[f64], slots: u32) -> Vec<u32> {
    let mut counts = vec![1u32; loads.len()];
    let mut heap: BinaryHeap<Heaviest> = loads
        .iter()
        .zip(0..)
        .map(|(w, e)| Heaviest(*w, e))
        .collect();
    for _ in loads.len() as u32..slots {
        if let Some(mut top) = heap.peek_mut() {
            let e = top.1 as usize;
            counts[e] += 1;
            *top = Heaviest(loads[e] / f64::from(counts[e]), top.1);
        }
    }
    counts
}

/// Count vectors that are tried one and all when there are at most this many.
const ENUMERATE: u64 = 10_000;
/// Steps of the search over counts beyond that; each count vector is packed anew.
const STEPS: u32 = 10;

/// Searches counts for a lower fullest rank: all of them where they are few, else moves of one replica
/// from an expert to another, annealed where each count vector has to be packed. Deterministic.
#[must_use]
pub fn search_counts(
    loads: &[f64],
    counts: Vec<u32>,
    speeds: &[f64],
    goal: f64,
    start: Packing,
) -> (Packing, f64) {
    let mut search = Search {
        loads,
        speeds,
        goal,
        equal: speeds.iter().all(|s| *s == speeds[0]),
        best: start.clone(),
        cost: start.fullest(speeds).1,
        scratch: Vec::new(),
    };
    let extra = counts.iter().sum::<u32>() - loads.len() as u32;
    if extra == 0 || start.size == 1 {
        return (search.best, search.cost);
    }
    if compositions(extra, loads.len() as u32) <= ENUMERATE {
        let mut trial = vec![1; loads.len()];
        search.enumerate(&mut trial, 0, extra);
    } else if search.equal && start.size == 2 {
        search.try_counts(&pair_counts(loads, counts, goal));
    } else {
        search.anneal(counts);
    }
    (search.best, search.cost)
}

/// Ways to give `extra` replicas to `experts`, C(extra + experts − 1, extra), saturating.
fn compositions(extra: u32, experts: u32) -> u64 {
    let mut ways = 1u64;
    for i in 1..=u64::from(extra) {
        let Some(next) = ways.checked_mul(u64::from(experts) - 1 + i) else {
            return u64::MAX;
        };
        ways = next / i;
        if ways > ENUMERATE {
            return u64::MAX;
        }
    }
    ways
}

struct Search<'a> {
    loads: &'a [f64],
    speeds: &'a [f64],
    goal: f64,
    equal: bool,
    best: Packing,
    cost: f64,
    scratch: Vec<Item>,
}

impl Search<'_> {
    /// Cost of counts: exact for pairs, longest first with a few swaps otherwise. Keeps the best.
    fn try_counts(&mut self, counts: &[u32]) -> f64 {
        let ranks = self.speeds.len();
        let items = replicas(self.loads, counts);
        if self.equal && items.len() == 2 * ranks {
            let n = items.len();
            let cost = (0..ranks)
                .map(|i| items[i].0 + items[n - 1 - i].0)
                .fold(0.0, f64::max);
            if cost < self.cost * (1.0 - 1e-12) {
                self.cost = cost;
                self.best = Packing::paired(&items);
            }
            return cost;
        }
        // A count vector whose heaviest replica alone is too heavy needs no packing.
        if items[0].0 >= self.cost * self.speeds.iter().copied().fold(0.0, f64::max) {
            return items[0].0;
        }
        let mut packing = Packing::longest_first(&items, self.speeds);
        let cost = packing.improve(self.speeds, self.goal, items.len());
        if cost < self.cost * (1.0 - 1e-12) {
            self.cost = cost;
            self.best = packing;
        }
        self.scratch = items;
        cost
    }

    fn enumerate(&mut self, counts: &mut Vec<u32>, at: usize, left: u32) {
        if self.cost <= self.goal {
            return;
        }
        if at + 1 == counts.len() {
            counts[at] = 1 + left;
            self.try_counts(counts);
            counts[at] = 1;
            return;
        }
        for n in 0..=left {
            counts[at] = 1 + n;
            self.enumerate(counts, at + 1, left - n);
        }
        counts[at] = 1;
    }

    fn anneal(&mut self, mut counts: Vec<u32>) {
        let mut rng = Pcg64::new(0x00ba_1ace, 0);
        let mut at = self.cost;
        let n = counts.len() as u32;
        for step in 0..STEPS {
            if self.cost <= self.goal {
                return;
            }
            let donors: Vec<u32> = (0..n).filter(|e| counts[*e as usize] > 1).collect();
            let from = donors[rng.below(donors.len() as u32) as usize] as usize;
            let to = self.heavy_expert(&mut rng, n);
            if from == to || counts[to] as usize >= self.speeds.len() {
                continue;
            }
            counts[from] -= 1;
            counts[to] += 1;
            let cost = self.try_counts(&counts);
            let heat = 0.02 * at * (1.0 - f64::from(step) / f64::from(STEPS));
            if cost < at || rng.uniform() < (-(cost - at) / heat.max(1e-300)).exp() {
                at = cost;
            } else {
                counts[from] += 1;
                counts[to] -= 1;
            }
        }
    }

    /// An expert of the fullest rank half of the time, any expert otherwise.
    fn heavy_expert(&self, rng: &mut Pcg64, n: u32) -> usize {
        if rng.uniform() < 0.5 {
            let rank = self.best.rank(self.best.fullest(self.speeds).0);
            rank[rng.below(rank.len() as u32) as usize].1 as usize
        } else {
            rng.below(n) as usize
        }
    }
}
