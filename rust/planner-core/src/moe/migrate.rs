//! What moving experts costs, and how often it pays.

use super::best::best;
use super::shape::{Placement, Shape};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Experts that the ranks must fetch to go from one placement to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Move {
    /// Slots that receive an expert which their rank did not hold.
    pub experts: u32,
    /// The most that one rank receives.
    pub most_on_a_rank: u32,
}

/// Counts the moves. A rank keeps what it holds, in whatever slot.
///
/// ```
/// use planner_core::moe::migrate::moves;
/// let m = moves(&[0, 1, 2, 3], &[1, 0, 2, 0], 2);
/// assert_eq!((m.experts, m.most_on_a_rank), (1, 1));
/// ```
#[must_use]
pub fn moves(old: &[u32], new: &[u32], ranks: u32) -> Move {
    let size = new.len() / ranks as usize;
    let mut all = Move::default();
    for (before, after) in old.chunks(size).zip(new.chunks(size)) {
        let received = missing(before, after);
        all.experts += received;
        all.most_on_a_rank = all.most_on_a_rank.max(received);
    }
    all
}

fn missing(before: &[u32], after: &[u32]) -> u32 {
    let mut held = before.to_vec();
    let mut received = 0;
    for e in after {
        match held.iter().position(|x| x == e) {
            Some(i) => drop(held.swap_remove(i)),
            None => received += 1,
        }
    }
    received
}

/// Renames the ranks of a new placement so that each keeps most of what it holds (largest overlap
/// first). Ranks are alike, so the balance stays as it is.
#[must_use]
pub fn relabel(old: &[u32], new: &[u32], ranks: u32) -> Vec<u32> {
    let ranks = ranks as usize;
    let size = new.len() / ranks;
    let rank = |map: &[u32], r: usize| map[r * size..(r + 1) * size].to_vec();
    let mut pairs: Vec<(u32, usize, usize)> = Vec::with_capacity(ranks * ranks);
    for o in 0..ranks {
        for n in 0..ranks {
            pairs.push((missing(&rank(old, o), &rank(new, n)), o, n));
        }
    }
    pairs.sort_unstable();
    let (mut taken, mut given) = (vec![false; ranks], vec![false; ranks]);
    let mut renamed = vec![0; new.len()];
    for (_, o, n) in pairs {
        if !taken[o] && !given[n] {
            (taken[o], given[n]) = (true, true);
            renamed[o * size..(o + 1) * size].copy_from_slice(&rank(new, n));
        }
    }
    renamed
}

/// A load over time, and what moving costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rebalance {
    /// Snapshots in the order of time: snapshots × layers × experts.
    pub snapshots: Vec<Vec<Vec<f64>>>,
    /// Shape of the placement.
    pub shape: Shape,
    /// Steps between snapshots.
    pub steps_per_snapshot: f64,
    /// Time of one layer's experts in one step when the ranks are balanced.
    pub balanced_layer_s: f64,
    /// Weight bytes of one expert.
    pub expert_bytes: f64,
    /// Bandwidth at which a rank receives experts.
    pub bytes_per_s: f64,
    /// Time that all ranks stand still at each rearrangement, beside the transfer.
    pub stall_s: f64,
    /// Intervals to try, in snapshots; 0 is never.
    pub every: Vec<u32>,
}

/// One interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Snapshots between rearrangements; 0: never.
    pub every: u32,
    /// Mean over layers and snapshots of the fullest rank over the mean.
    pub rank_max_over_mean: f64,
    /// Balancedness: Σ mean / Σ max over layers and snapshots.
    pub balancedness: f64,
    /// Rearrangements.
    pub rearrangements: u32,
    /// Experts moved.
    pub moved_experts: u64,
    /// Bytes moved.
    pub moved_bytes: f64,
    /// Time spent in experts.
    pub experts_s: f64,
    /// Time spent in moving and standing still.
    pub moving_s: f64,
    /// Time saved against never, moving included, over the time of never.
    pub net_gain_ratio: f64,
}

impl Rebalance {
    /// Tries every interval. The placement of a snapshot is made from the snapshots before it, so
    /// nothing is known in advance; the first is made from the first.
    ///
    /// # Errors
    /// Loads or a shape that make no sense, a bandwidth or a time that is not positive.
    pub fn run(&self) -> Result<Vec<Interval>> {
        for matrix in &self.snapshots {
            super::balance::check_loads(matrix)?;
        }
        let Some(first) = self.snapshots.first() else {
            return Err(Error::field("snapshots", "[]", "at least one"));
        };
        if self
            .snapshots
            .iter()
            .any(|m| m.len() != first.len() || m[0].len() != first[0].len())
        {
            return Err(Error::field("snapshots", "", "all of one shape"));
        }
        Shape {
            experts: first[0].len() as u32,
            ..self.shape
        }
        .check()?;
        let positive = [
            ("steps_per_snapshot", self.steps_per_snapshot),
            ("balanced_layer_s", self.balanced_layer_s),
            ("bytes_per_s", self.bytes_per_s),
        ];
        for (name, x) in positive {
            if !(x > 0.0 && x.is_finite()) {
                return Err(Error::field(name, x, "must be above 0"));
            }
        }
        for (name, x) in [
            ("expert_bytes", self.expert_bytes),
            ("stall_s", self.stall_s),
        ] {
            if !(x >= 0.0 && x.is_finite()) {
                return Err(Error::field(name, x, "not negative"));
            }
        }
        let never = self.interval(0);
        Ok(self
            .every
            .iter()
            .map(|n| {
                let mut it = self.interval(*n);
                let before = never.experts_s + never.moving_s;
                it.net_gain_ratio = 1.0 - (it.experts_s + it.moving_s) / before;
                it
            })
            .collect())
    }

    fn interval(&self, every: u32) -> Interval {
        let shape = Shape {
            experts: self.snapshots[0][0].len() as u32,
            ..self.shape
        };
        let mut maps = place(&self.snapshots[0], &shape);
        let (mut sum, mut n, mut last) = (0.0, 0.0, 0usize);
        let mut it = Interval {
            every,
            rank_max_over_mean: 1.0,
            balancedness: 1.0,
            rearrangements: 0,
            moved_experts: 0,
            moved_bytes: 0.0,
            experts_s: 0.0,
            moving_s: 0.0,
            net_gain_ratio: 0.0,
        };
        for (t, snapshot) in self.snapshots.iter().enumerate() {
            if every > 0 && t > 0 && t % every as usize == 0 {
                let window = total(&self.snapshots[last..t]);
                last = t;
                self.rearrange(&mut maps, place(&window, &shape), &mut it);
            }
            for (map, row) in maps.iter().zip(snapshot) {
                let x = map.max_over_mean(row, shape.ranks);
                sum += x;
                n += 1.0;
                it.experts_s += x * self.balanced_layer_s * self.steps_per_snapshot;
            }
        }
        it.rank_max_over_mean = sum / n;
        it.balancedness = n / sum;
        it
    }

    fn rearrange(&self, maps: &mut [Placement], new: Vec<Placement>, it: &mut Interval) {
        it.rearrangements += 1;
        it.moving_s += self.stall_s;
        for (old, new) in maps.iter_mut().zip(new) {
            let ranks = self.shape.ranks;
            let map = relabel(&old.physical_to_logical, &new.physical_to_logical, ranks);
            let moved = moves(&old.physical_to_logical, &map, ranks);
            it.moved_experts += u64::from(moved.experts);
            it.moved_bytes += f64::from(moved.experts) * self.expert_bytes;
            it.moving_s += f64::from(moved.most_on_a_rank) * self.expert_bytes / self.bytes_per_s;
            *old = Placement {
                physical_to_logical: map,
                logical_count: new.logical_count,
            };
        }
    }
}

fn place(matrix: &[Vec<f64>], shape: &Shape) -> Vec<Placement> {
    matrix
        .iter()
        .map(|row| best(row, shape, &[], false).placement)
        .collect()
}

fn total(snapshots: &[Vec<Vec<f64>>]) -> Vec<Vec<f64>> {
    let mut sum = snapshots[0].clone();
    for snapshot in &snapshots[1..] {
        for (mine, row) in sum.iter_mut().zip(snapshot) {
            mine.iter_mut().zip(row).for_each(|(a, b)| *a += b);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drifting(stall_s: f64) -> Rebalance {
        let row = |hot: usize| {
            (0..8)
                .map(|e| if e / 2 == hot { 6.0 } else { 1.0 })
                .collect::<Vec<f64>>()
        };
        Rebalance {
            snapshots: (0..8).map(|t| vec![row(t / 2)]).collect(),
            shape: Shape {
                experts: 8,
                redundant: 4,
                ranks: 4,
                nodes: 1,
                groups: 1,
            },
            steps_per_snapshot: 1000.0,
            balanced_layer_s: 1e-3,
            expert_bytes: 44e6,
            bytes_per_s: 50e9,
            stall_s,
            every: vec![0, 1, 2, 4],
        }
    }

    #[test]
    fn rearranging_pays_until_it_stalls() {
        let cheap = drifting(0.0).run().unwrap();
        assert_eq!(cheap[0].rearrangements, 0);
        assert_eq!(cheap[0].net_gain_ratio, 0.0);
        assert!(cheap[1].rank_max_over_mean < cheap[0].rank_max_over_mean);
        assert!(cheap[1].net_gain_ratio > 0.05, "{cheap:?}");
        // Balance improves and time is lost: the rearrangement itself has to be charged.
        let dear = drifting(5.0).run().unwrap();
        assert!(dear[1].balancedness > dear[0].balancedness);
        assert!(dear[1].net_gain_ratio < 0.0);
    }

    #[test]
    fn renamed_ranks_move_nothing_that_they_hold() {
        let old = [0, 1, 2, 3, 4, 5];
        let new = relabel(&old, &[4, 5, 0, 1, 3, 2], 3);
        assert_eq!(moves(&old, &new, 3).experts, 0);
    }

    #[test]
    fn wrong_numbers_are_named() {
        assert!(
            Rebalance {
                bytes_per_s: 0.0,
                ..drifting(0.0)
            }
            .run()
            .is_err()
        );
        assert!(
            Rebalance {
                snapshots: Vec::new(),
                ..drifting(0.0)
            }
            .run()
            .is_err()
        );
        assert!(
            Rebalance {
                stall_s: f64::NAN,
                ..drifting(0.0)
            }
            .run()
            .is_err()
        );
    }
}
