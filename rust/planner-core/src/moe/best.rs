//! Our own balancer: replication and packing by local search, with a lower bound on the answer.
//!
//! EPLB replicates to lower the heaviest replica and packs greedily. Both can lose: a rank holds
//! several replicas, so the heaviest replica is not the fullest rank. Here counts and packing are
//! searched together; the start is the better of ours and EPLB's, so the answer is never worse.

use super::bound::lower_bound;
use super::counts::{greedy_counts, search_counts};
use super::eplb::eplb;
use super::pack::{Packing, replicas};
use super::shape::{Placement, Shape};
use serde::Serialize;

/// A placement of one layer, how full its fullest rank is, and how low it could be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balanced {
    /// The map.
    #[serde(flatten)]
    pub placement: Placement,
    /// Fullest rank over the mean (load over speed, where speeds are given).
    pub rank_max_over_mean: f64,
    /// No placement of these slots is below this.
    pub bound_max_over_mean: f64,
}

/// Swaps stop when the fullest rank is this near the bound.
pub const NEAR: f64 = 1e-4;
/// Counts are searched only where swaps leave the fullest rank this far from the bound.
pub const FAR: f64 = 5e-4;

/// Balances one layer. `speeds` has one relative speed per rank, or is empty for equal ranks.
/// With `keep_groups` the replicas of a router group stay on one node, as in hierarchical EPLB.
///
/// ```
/// use planner_core::moe::{Shape, best::best};
/// // The FlashLB example: EPLB gives 232, the optimum with evenly split replicas is 590/3.
/// let loads = [600., 560., 120., 120., 20., 10., 10., 10.];
/// let shape = Shape { experts: 8, redundant: 8, ranks: 8, nodes: 1, groups: 1 };
/// let placed = best(&loads, &shape, &[], false);
/// assert!((placed.rank_max_over_mean * 181.25 - 590.0 / 3.0).abs() < 1e-9);
/// ```
#[must_use]
pub fn best(loads: &[f64], shape: &Shape, speeds: &[f64], keep_groups: bool) -> Balanced {
    let equal = vec![1.0; shape.ranks as usize];
    let speeds = if speeds.is_empty() { &equal } else { speeds };
    let total: f64 = loads.iter().sum();
    let rated = eplb(&loads.iter().map(|x| *x as f32).collect::<Vec<_>>(), shape).swap_remove(0);
    if total <= 0.0 {
        return Balanced {
            placement: rated,
            rank_max_over_mean: 1.0,
            bound_max_over_mean: 1.0,
        };
    }
    let mean = total / speeds.iter().sum::<f64>();
    let bound = lower_bound(loads, shape, speeds);
    let packing = if keep_groups && shape.hierarchical() {
        by_node(loads, shape, speeds)
    } else {
        global(loads, shape, speeds, bound, &rated)
    };
    let cost = packing.fullest(speeds).1;
    Balanced {
        placement: packing.placement(shape.experts),
        rank_max_over_mean: (cost / mean).max(bound / mean),
        bound_max_over_mean: bound / mean,
    }
}

/// Best of: our counts and packing, EPLB's map mended by swaps.
fn global(loads: &[f64], shape: &Shape, speeds: &[f64], bound: f64, rated: &Placement) -> Packing {
    let goal = bound * (1.0 + NEAR);
    let counts = greedy_counts(loads, shape.slots());
    let equal = speeds.iter().all(|s| *s == speeds[0]);
    let mut ours = pack(loads, &counts, speeds, goal, equal);
    let mut cost = ours.fullest(speeds).1;
    if cost > bound * (1.0 + FAR) {
        let found = search_counts(loads, counts, speeds, goal, ours);
        ours = found.0;
        cost = found.1;
    }
    // Near the bound EPLB's map is not mended, but it may still be the better of two good ones.
    let theirs = if cost > bound * (1.0 + FAR) {
        mended(rated, loads, speeds, goal, equal)
    } else {
        Packing::of(rated, loads, speeds.len())
    };
    if theirs.fullest(speeds).1 < cost * (1.0 - 1e-12) {
        ours = theirs;
    }
    let limit = ours.fullest(speeds).1;
    ours.separate(speeds, limit);
    ours
}

/// EPLB's map, mended by swaps; its counts paired anew where that is exact.
fn mended(rated: &Placement, loads: &[f64], speeds: &[f64], goal: f64, equal: bool) -> Packing {
    let slots = rated.physical_to_logical.len();
    if equal && slots == 2 * speeds.len() {
        return pack(loads, &rated.logical_count, speeds, goal, equal);
    }
    let mut theirs = Packing::of(rated, loads, speeds.len());
    theirs.improve(speeds, goal, 2 * slots);
    theirs
}

/// Packs given counts: pairs exactly where a rank has two slots, else longest first and swaps.
#[must_use]
pub fn pack(loads: &[f64], counts: &[u32], speeds: &[f64], goal: f64, equal: bool) -> Packing {
    let items = replicas(loads, counts);
    if equal && items.len() == 2 * speeds.len() {
        return Packing::paired(&items);
    }
    let mut packing = Packing::longest_first(&items, speeds);
    packing.improve(speeds, goal, 2 * items.len());
    packing
}

/// Groups to nodes as EPLB packs them, then the best placement of each node on its own ranks.
fn by_node(loads: &[f64], shape: &Shape, speeds: &[f64]) -> Packing {
    let nodes = shape.nodes as usize;
    let group = (shape.experts / shape.groups) as usize;
    let sums: Vec<f64> = loads.chunks(group).map(|g| g.iter().sum()).collect();
    let node_speeds: Vec<f64> = speeds
        .chunks(speeds.len() / nodes)
        .map(|s| s.iter().sum())
        .collect();
    let mut items: Vec<(f64, u32)> = sums.iter().zip(0..).map(|(w, g)| (*w, g)).collect();
    items.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut groups = Packing::longest_first(&items, &node_speeds);
    groups.improve(&node_speeds, 0.0, 2 * items.len());
    let rated = eplb(&loads.iter().map(|x| *x as f32).collect::<Vec<_>>(), shape).swap_remove(0);
    let theirs = Packing::of(&rated, loads, speeds.len());
    let ours = place_nodes(loads, shape, speeds, &node_members(&groups, nodes));
    let same_groups = place_nodes(loads, shape, speeds, &members_of(&rated, shape));
    let cost = |p: &Packing| p.fullest(speeds).1;
    [ours, same_groups, theirs]
        .into_iter()
        .min_by(|a, b| cost(a).total_cmp(&cost(b)))
        .unwrap_or_else(|| unreachable!("three candidates"))
}

fn node_members(groups: &Packing, nodes: usize) -> Vec<Vec<u32>> {
    (0..nodes)
        .map(|n| {
            let mut members: Vec<u32> = groups.rank(n).iter().map(|g| g.1).collect();
            members.sort_unstable();
            members
        })
        .collect()
}

/// The groups on each node of a hierarchical placement.
fn members_of(placement: &Placement, shape: &Shape) -> Vec<Vec<u32>> {
    let group = shape.experts / shape.groups;
    let size = placement.physical_to_logical.len() / shape.nodes as usize;
    placement
        .physical_to_logical
        .chunks(size)
        .map(|slots| {
            let mut members: Vec<u32> = slots.iter().map(|e| e / group).collect();
            members.sort_unstable();
            members.dedup();
            members
        })
        .collect()
}

fn place_nodes(loads: &[f64], shape: &Shape, speeds: &[f64], nodes: &[Vec<u32>]) -> Packing {
    let group = shape.experts / shape.groups;
    let ranks = speeds.len() / nodes.len();
    let mut all = Packing {
        size: shape.slots_per_rank() as usize,
        slots: Vec::new(),
        loads: Vec::new(),
    };
    for (node, groups) in nodes.iter().enumerate() {
        let experts: Vec<u32> = groups
            .iter()
            .flat_map(|g| g * group..(g + 1) * group)
            .collect();
        let own: Vec<f64> = experts.iter().map(|e| loads[*e as usize]).collect();
        let sub = Shape {
            experts: own.len() as u32,
            redundant: shape.slots() / shape.nodes - own.len() as u32,
            ranks: ranks as u32,
            nodes: 1,
            groups: 1,
        };
        let speeds = &speeds[node * ranks..(node + 1) * ranks];
        let rated = eplb(&own.iter().map(|x| *x as f32).collect::<Vec<_>>(), &sub).swap_remove(0);
        let bound = lower_bound(&own, &sub, speeds);
        let placed = global(&own, &sub, speeds, bound, &rated);
        all.slots
            .extend(placed.slots.iter().map(|(w, e)| (*w, experts[*e as usize])));
        all.loads.extend(placed.loads);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::eplb::tie_free_loads;
    use proptest::prelude::*;

    fn shape(experts: u32, redundant: u32, ranks: u32) -> Shape {
        Shape {
            experts,
            redundant,
            ranks,
            nodes: 1,
            groups: 1,
        }
    }

    #[test]
    fn uniform_loads_come_within_a_thousandth() {
        let loads: Vec<f64> = tie_free_loads(1, 256)
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        let placed = best(&loads, &shape(256, 32, 32), &[], false);
        assert!(
            placed.rank_max_over_mean < 1.001,
            "{}",
            placed.rank_max_over_mean
        );
        assert_eq!(placed.placement.duplicates(32), 0);
    }

    #[test]
    fn near_the_bound_the_better_of_two_good_placements_is_kept() {
        for seed in 0..200 {
            let single = tie_free_loads(seed, 96);
            let loads: Vec<f64> = single.iter().map(|x| f64::from(*x)).collect();
            let s = shape(96, 12, 4);
            let theirs = eplb(&single, &s)[0].max_over_mean(&loads, 4);
            let ours = best(&loads, &s, &[], false).rank_max_over_mean;
            assert!(ours <= theirs * (1.0 + 1e-12), "{seed}: {ours} {theirs}");
        }
    }

    #[test]
    fn idle_layers_are_balanced() {
        let placed = best(&[0.0; 8], &shape(8, 0, 4), &[], false);
        assert_eq!(
            (placed.rank_max_over_mean, placed.bound_max_over_mean),
            (1.0, 1.0)
        );
    }

    #[test]
    fn unequal_gpus() {
        let placed = best(&[3.0, 1.0, 1.0, 1.0], &shape(4, 0, 2), &[2.0, 1.0], false);
        assert!((placed.rank_max_over_mean - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn never_worse_than_eplb_never_below_the_bound(
            loads in proptest::collection::vec(0.0f64..1e4, 24), spare in 0u32..4, nodes in 1u32..4
        ) {
            let s = Shape { experts: 24, redundant: spare * 12, ranks: 12, nodes, groups: 6 };
            let f: Vec<f32> = loads.iter().map(|x| *x as f32).collect();
            let theirs = eplb(&f, &s)[0].max_over_mean(&loads, 12);
            for keep in [false, true] {
                let ours = best(&loads, &s, &[], keep);
                prop_assert!(ours.rank_max_over_mean <= theirs * (1.0 + 1e-9), "{keep} {} {theirs}", ours.rank_max_over_mean);
                prop_assert!(ours.rank_max_over_mean >= ours.bound_max_over_mean - 1e-12);
                prop_assert!(ours.placement.logical_count.iter().all(|c| *c >= 1));
                let again = ours.placement.max_over_mean(&loads, 12);
                prop_assert!((again - ours.rank_max_over_mean).abs() < 1e-9);
            }
        }
    }
}
