//! DeepSeek's expert-parallel load balancer, map for map.
//!
//! Pack expert groups to nodes, replicate the heaviest expert of a node while slots are left, pack
//! the replicas to the GPUs of the node; globally when the nodes do not share the groups evenly.
//! Source: deepseek-ai/EPLB (MIT), described in the DeepSeek-V3 report §3.4; written anew. Loads are
//! f32 and added in the reference's order, so that maps without ties are identical.

use super::shape::{Placement, Shape};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Orders non-negative f32 as integers, ties by index.
fn ascending(weight: f32, index: usize) -> u64 {
    u64::from(weight.to_bits()) << 32 | index as u64
}

/// Heavier first, ties by index.
fn descending(weight: f32, index: usize) -> u64 {
    u64::from(!weight.to_bits()) << 32 | index as u64
}

/// Scratch memory of a run of layers.
#[derive(Debug, Default)]
struct Scratch {
    keys: Vec<u64>,
    heap: BinaryHeap<Reverse<u64>>,
    held: Vec<u32>,
}

/// Longest-processing-time packing of `weights` into packs of equal size: the position of each
/// item, pack · size + rank in pack.
fn pack(weights: &[f32], packs: usize, scratch: &mut Scratch, position: &mut Vec<u32>) {
    let size = weights.len() / packs;
    position.clear();
    if size == 1 {
        position.extend(0..weights.len() as u32);
        return;
    }
    position.resize(weights.len(), 0);
    scratch.keys.clear();
    scratch
        .keys
        .extend(weights.iter().enumerate().map(|(i, w)| descending(*w, i)));
    scratch.keys.sort_unstable();
    scratch.held.clear();
    scratch.held.resize(packs, 0);
    scratch.heap.clear();
    scratch
        .heap
        .extend((0..packs).map(|p| Reverse(ascending(0.0, p))));
    for key in &scratch.keys {
        let item = *key as u32 as usize;
        let Some(mut lightest) = scratch.heap.peek_mut() else {
            return;
        };
        let pack = lightest.0 as u32 as usize;
        let load = f32::from_bits((lightest.0 >> 32) as u32) + weights[item];
        position[item] = (pack * size) as u32 + scratch.held[pack];
        scratch.held[pack] += 1;
        if scratch.held[pack] as usize == size {
            std::collections::binary_heap::PeekMut::pop(lightest);
        } else {
            *lightest = Reverse(ascending(load, pack));
        }
    }
}

/// Gives each of the extra slots to the expert with the heaviest replica. Appends to `slots` the
/// experts of all slots and to `counts` the replicas of each expert.
fn replicate(weights: &[f32], slots_wanted: usize, slots: &mut Vec<u32>, counts: &mut Vec<u32>) {
    slots.clear();
    slots.extend(0..weights.len() as u32);
    counts.clear();
    counts.resize(weights.len(), 1);
    let mut heap: BinaryHeap<u64> = weights
        .iter()
        .enumerate()
        .map(|(i, w)| heaviest(*w, i))
        .collect();
    for _ in weights.len()..slots_wanted {
        let Some(mut top) = heap.peek_mut() else {
            return;
        };
        let e = !(*top as u32) as usize;
        slots.push(e as u32);
        counts[e] += 1;
        *top = heaviest(weights[e] / counts[e] as f32, e);
    }
}

/// Key of a max-heap that gives the lowest index among equals.
fn heaviest(weight: f32, index: usize) -> u64 {
    u64::from(weight.to_bits()) << 32 | u64::from(!(index as u32))
}

/// Places every layer. `loads` is layers × experts, row after row; the shape has been checked.
///
/// ```
/// use planner_core::moe::{Shape, eplb::eplb};
/// // README example of the reference, first layer: 12 experts, 4 spare slots, 8 GPUs on 2 nodes.
/// let loads = [90., 132., 40., 61., 104., 165., 39., 4., 73., 56., 183., 86.];
/// let shape = Shape { experts: 12, redundant: 4, ranks: 8, nodes: 2, groups: 4 };
/// let placed = &eplb(&loads, &shape)[0];
/// assert_eq!(placed.physical_to_logical, [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]);
/// ```
#[must_use]
pub fn eplb(loads: &[f32], shape: &Shape) -> Vec<Placement> {
    let mut scratch = Scratch::default();
    loads
        .chunks(shape.experts as usize)
        .map(|row| place(row, shape, &mut scratch))
        .collect()
}

fn place(loads: &[f32], shape: &Shape, scratch: &mut Scratch) -> Placement {
    let (nodes, groups) = if shape.groups.is_multiple_of(shape.nodes) {
        (shape.nodes as usize, shape.groups as usize)
    } else {
        (1, 1)
    };
    let experts = loads.len();
    let group_size = experts / groups;
    let group_loads: Vec<f32> = loads.chunks(group_size).map(|g| g.iter().sum()).collect();
    let mut position = Vec::new();
    pack(&group_loads, nodes, scratch, &mut position);

    // Experts in the order of the nodes that their groups went to.
    let mut by_node = vec![0u32; experts];
    for (group, place) in position.iter().enumerate() {
        for i in 0..group_size {
            by_node[*place as usize * group_size + i] = (group * group_size + i) as u32;
        }
    }
    let slots = shape.slots() as usize / nodes;
    let mut map = vec![0u32; shape.slots() as usize];
    let mut logical_count = vec![0u32; experts];
    let (mut owners, mut counts, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (node, members) in by_node.chunks(experts / nodes).enumerate() {
        weights.clear();
        weights.extend(members.iter().map(|&e| loads[e as usize]));
        replicate(&weights, slots, &mut owners, &mut counts);
        let replica_loads: Vec<f32> = owners
            .iter()
            .map(|&o| weights[o as usize] / counts[o as usize] as f32)
            .collect();
        pack(
            &replica_loads,
            shape.ranks as usize / nodes,
            scratch,
            &mut position,
        );
        for (owner, place) in owners.iter().zip(&position) {
            map[node * slots + *place as usize] = members[*owner as usize];
        }
        for (member, count) in members.iter().zip(&counts) {
            logical_count[*member as usize] = *count;
        }
    }
    Placement {
        physical_to_logical: map,
        logical_count,
    }
}

/// The public test loads: 1 + (SplitMix64 ≫ 11) mod 1,000,003, row after row.
///
/// ```
/// let loads = planner_core::moe::eplb::tie_free_loads(101, 3);
/// assert_eq!(loads, [90667.0, 944742.0, 422239.0]);
/// ```
#[must_use]
pub fn tie_free_loads(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| (1 + (super::rng::split_mix64(&mut state) >> 11) % 1_000_003) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_layer_gives_every_spare_slot_to_expert_zero() {
        let shape = Shape {
            experts: 4,
            redundant: 4,
            ranks: 4,
            nodes: 1,
            groups: 1,
        };
        assert_eq!(eplb(&[0.0; 4], &shape)[0].logical_count, [5, 1, 1, 1]);
    }

    #[test]
    fn hierarchical_replicas_are_per_node() {
        // README layer 2: expert 7 (157, the fourth heaviest) is not replicated.
        let loads = [
            20., 107., 104., 64., 19., 197., 187., 157., 172., 86., 16., 27.,
        ];
        let shape = Shape {
            experts: 12,
            redundant: 4,
            ranks: 8,
            nodes: 2,
            groups: 4,
        };
        let placed = &eplb(&loads, &shape)[0];
        assert_eq!(
            placed.physical_to_logical,
            [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]
        );
        assert_eq!(placed.logical_count[7], 1);
    }

    #[test]
    fn one_slot_a_rank_is_not_packed() {
        let shape = Shape {
            experts: 4,
            redundant: 1,
            ranks: 5,
            nodes: 1,
            groups: 1,
        };
        assert_eq!(
            eplb(&[1., 2., 9., 4.], &shape)[0].physical_to_logical,
            [0, 1, 2, 3, 2]
        );
    }

    proptest! {
        #[test]
        fn every_expert_is_somewhere_and_every_slot_is_used(
            loads in proptest::collection::vec(0.0f32..1e6, 24), spare in 0u32..6, nodes in 1u32..4
        ) {
            let shape = Shape { experts: 24, redundant: spare * 12, ranks: 12, nodes, groups: 6 };
            let placed = &eplb(&loads, &shape)[0];
            prop_assert_eq!(placed.physical_to_logical.len() as u32, shape.slots());
            prop_assert!(placed.logical_count.iter().all(|c| *c >= 1));
            prop_assert_eq!(&Placement::from_map(placed.physical_to_logical.clone(), 24), placed);
        }
    }
}
