//! One placement for several snapshots of the load: the lowest worst case.

use super::balance::{contiguous, fullest};
use super::best::best;
use super::bound::lower_bound;
use super::shape::{Placement, Shape};
use serde::Serialize;

/// A placement of one layer that has to serve several loads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Robust {
    /// The map.
    #[serde(flatten)]
    pub placement: Placement,
    /// Fullest rank over the mean in the worst snapshot.
    pub rank_max_over_mean: f64,
    /// No placement is below this in its worst snapshot.
    pub bound_max_over_mean: f64,
    /// Fullest rank over the mean, snapshot by snapshot.
    pub snapshot_max_over_mean: Vec<f64>,
    /// Fullest rank over the mean with experts in their own order, in the worst snapshot.
    pub contiguous_max_over_mean: f64,
    /// Replicas beside another of the same expert on their rank.
    pub duplicates: u32,
}

/// Swaps tried on the best start.
const SWAPS: usize = 400;

/// Starts from the best placement of the mean load (each snapshot of one weight), of the sum and of
/// each snapshot, then swaps slots between
/// the fullest rank of the worst snapshot and others while the worst case falls. `speeds` has one
/// relative speed per rank, or is empty; with `keep_groups` the replicas of a router group stay on
/// one node, and slots are swapped inside nodes only.
///
/// ```
/// use planner_core::moe::{Shape, robust::robust};
/// let shape = Shape { experts: 4, redundant: 0, ranks: 2, nodes: 1, groups: 1 };
/// let rows: [&[f64]; 2] = [&[9.0, 1.0, 9.0, 1.0], &[9.0, 9.0, 1.0, 1.0]];
/// // Either snapshot alone leaves the other at 1.8; experts 0 and 3 together serve both.
/// assert_eq!(robust(&rows, &shape, &[], false).rank_max_over_mean, 1.0);
/// ```
#[must_use]
pub fn robust(rows: &[&[f64]], shape: &Shape, speeds: &[f64], keep_groups: bool) -> Robust {
    let equal = vec![1.0; shape.ranks as usize];
    let speeds = if speeds.is_empty() { &equal } else { speeds };
    let whole: f64 = speeds.iter().sum();
    let scaled: Vec<Vec<f64>> = rows
        .iter()
        .map(|row| {
            let sum: f64 = row.iter().sum();
            row.iter()
                .map(|w| {
                    if sum > 0.0 {
                        w * whole / sum
                    } else {
                        whole / row.len() as f64
                    }
                })
                .collect()
        })
        .collect();
    let mean: Vec<f64> = (0..shape.experts as usize)
        .map(|e| scaled.iter().map(|r| r[e]).sum())
        .collect();
    let sum: Vec<f64> = (0..shape.experts as usize)
        .map(|e| rows.iter().map(|r| r[e]).sum())
        .collect();
    let starts = [&mean, &sum].into_iter().chain(scaled.iter());
    let nodes = if keep_groups && shape.hierarchical() {
        shape.nodes as usize
    } else {
        1
    };
    let placed = starts
        .map(|row| {
            let start = best(row, shape, speeds, keep_groups).placement;
            Search::new(start, &scaled, speeds, nodes)
        })
        .min_by(|a, b| a.worst().0.total_cmp(&b.worst().0));
    let Some(mut search) = placed else {
        unreachable!("the mean is a start")
    };
    for _ in 0..SWAPS {
        if !search.step() {
            break;
        }
    }
    let placement = Placement::from_map(search.slots.clone(), shape.experts);
    let snapshot_max_over_mean: Vec<f64> = scaled
        .iter()
        .map(|row| fullest(&placement, row, speeds))
        .collect();
    let bound = scaled
        .iter()
        .map(|row| lower_bound(row, shape, speeds))
        .fold(1.0, f64::max);
    let contiguous_max_over_mean = scaled
        .iter()
        .map(|row| contiguous(row, shape.ranks))
        .fold(1.0, f64::max);
    Robust {
        contiguous_max_over_mean,
        duplicates: placement.duplicates(shape.ranks),
        rank_max_over_mean: snapshot_max_over_mean.iter().copied().fold(1.0, f64::max),
        bound_max_over_mean: bound,
        placement,
        snapshot_max_over_mean,
    }
}

struct Search<'a> {
    slots: Vec<u32>,
    size: usize,
    /// Slots among which one may be swapped: all, or those of its node.
    field: usize,
    speeds: &'a [f64],
    /// Load of a replica, snapshots × experts.
    replica: Vec<Vec<f64>>,
    /// Load of a rank, snapshots × ranks.
    ranks: Vec<Vec<f64>>,
}

impl<'a> Search<'a> {
    fn new(placement: Placement, rows: &[Vec<f64>], speeds: &'a [f64], nodes: usize) -> Self {
        let ranks = speeds.len();
        let replica = rows
            .iter()
            .map(|row| {
                row.iter()
                    .zip(&placement.logical_count)
                    .map(|(w, c)| w / f64::from(*c))
                    .collect()
            })
            .collect();
        let loads = rows
            .iter()
            .map(|row| placement.rank_loads(row, ranks as u32))
            .collect();
        let slots = placement.physical_to_logical.len();
        Self {
            slots: placement.physical_to_logical,
            size: slots / ranks,
            field: slots / nodes,
            speeds,
            replica,
            ranks: loads,
        }
    }

    /// Highest cost (load over speed), its snapshot and rank.
    fn worst(&self) -> (f64, usize, usize) {
        let mut worst = (f64::NEG_INFINITY, 0, 0);
        for (s, loads) in self.ranks.iter().enumerate() {
            for (r, (load, speed)) in loads.iter().zip(self.speeds).enumerate() {
                let cost = load / speed;
                if cost > worst.0 {
                    worst = (cost, s, r);
                }
            }
        }
        worst
    }

    /// Does the swap that leaves the lowest maximum over the two ranks; false if none helps.
    fn step(&mut self) -> bool {
        let (worst, _, full) = self.worst();
        let mut best = (worst * (1.0 - 1e-9), None);
        let first = full * self.size / self.field * self.field;
        let field = first..first + self.field;
        for i in full * self.size..(full + 1) * self.size {
            for j in field.clone().filter(|j| j / self.size != full) {
                let after = self.after(full, i, j, best.0);
                if after < best.0 && self.may_swap(full, i, j) {
                    best = (after, Some((i, j)));
                }
            }
        }
        let Some((i, j)) = best.1 else { return false };
        let (a, b, other) = (
            self.slots[i] as usize,
            self.slots[j] as usize,
            j / self.size,
        );
        for (replica, ranks) in self.replica.iter().zip(&mut self.ranks) {
            ranks[full] += replica[b] - replica[a];
            ranks[other] += replica[a] - replica[b];
        }
        self.slots.swap(i, j);
        true
    }

    /// Maximum of the two ranks over the snapshots after a swap; stops early above `limit`.
    fn after(&self, full: usize, i: usize, j: usize, limit: f64) -> f64 {
        let (a, b, other) = (
            self.slots[i] as usize,
            self.slots[j] as usize,
            j / self.size,
        );
        let (mine, theirs) = (self.speeds[full], self.speeds[other]);
        let mut most = 0.0f64;
        for (replica, ranks) in self.replica.iter().zip(&self.ranks) {
            let d = replica[a] - replica[b];
            most = most
                .max((ranks[full] - d) / mine)
                .max((ranks[other] + d) / theirs);
            if most >= limit {
                return most;
            }
        }
        most
    }

    fn may_swap(&self, full: usize, i: usize, j: usize) -> bool {
        let rank = |r: usize| &self.slots[r * self.size..(r + 1) * self.size];
        !rank(j / self.size).contains(&self.slots[i]) && !rank(full).contains(&self.slots[j])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Groups stay on their nodes, a fast rank takes more, and the figures are those of the map.
    #[test]
    fn groups_and_speeds_are_honoured() {
        let shape = Shape {
            experts: 8,
            redundant: 4,
            ranks: 4,
            nodes: 2,
            groups: 4,
        };
        let rows: [&[f64]; 2] = [
            &[8.0, 1.0, 4.0, 2.0, 9.0, 3.0, 1.0, 5.0],
            &[1.0, 7.0, 2.0, 4.0, 3.0, 6.0, 8.0, 1.0],
        ];
        let speeds = [2.0, 1.0, 1.0, 1.0];
        for keep in [false, true] {
            let found = robust(&rows, &shape, &speeds, keep);
            for (row, told) in rows.iter().zip(&found.snapshot_max_over_mean) {
                let loads = found.placement.rank_loads(row, 4);
                let costs = loads.iter().zip(&speeds).map(|(l, s)| l / s);
                let mean = row.iter().sum::<f64>() / 5.0;
                assert!((costs.fold(0.0, f64::max) / mean - told).abs() < 1e-9);
                assert!(*told < 2.0, "{told}");
            }
            assert!(found.rank_max_over_mean >= found.bound_max_over_mean - 1e-9);
            assert_eq!(found.duplicates, found.placement.duplicates(4));
            let homes = |group: u32| {
                let slots = found.placement.physical_to_logical.iter().enumerate();
                let mine = slots.filter(|(_, e)| **e / 2 == group);
                let mut nodes: Vec<usize> = mine.map(|(slot, _)| slot / 6).collect();
                nodes.dedup();
                nodes.len()
            };
            if keep {
                assert!((0..4).all(|group| homes(group) == 1));
            }
        }
    }

    proptest! {
        #[test]
        fn no_worse_than_the_placement_of_the_sum(rows in proptest::collection::vec(
            proptest::collection::vec(0.1f64..10.0, 12), 2..4)
        ) {
            let shape = Shape { experts: 12, redundant: 4, ranks: 4, nodes: 1, groups: 1 };
            let refs: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
            let ours = robust(&refs, &shape, &[], false);
            let normal: Vec<Vec<f64>> = rows.iter().map(|r| {
                let s: f64 = r.iter().sum();
                r.iter().map(|x| x / s).collect()
            }).collect();
            for of in [&normal, &rows] {
                let sum: Vec<f64> = (0..12).map(|e| of.iter().map(|r| r[e]).sum()).collect();
                let theirs = best(&sum, &shape, &[], false).placement;
                let worst = rows.iter().map(|r| theirs.max_over_mean(r, 4)).fold(1.0, f64::max);
                prop_assert!(ours.rank_max_over_mean <= worst + 1e-9);
            }
            prop_assert!(ours.rank_max_over_mean >= ours.bound_max_over_mean - 1e-9);
            prop_assert!(ours.placement.logical_count.iter().all(|c| *c > 0));
        }
    }
}
