use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::layout::axes::Choice;
use crate::layout::rules::first_broken_index;
use crate::layout::shape::Shape;

/// A small mixture-of-experts model on `world` GPUs.
pub(crate) fn facts() -> Facts {
    Facts {
        world: 16,
        domain: 4,
        seq: 4096,
        batch: 64,
        shape: Shape {
            layers: 12,
            heads: 16,
            kv_heads: vec![2],
            state_heads: 0,
            state_groups: Vec::new(),
            width: 64,
            expert_width: 24,
            experts: 8,
            expert_groups: 8,
            tied: false,
        },
        cp_by_heads: false,
        overlap_ep: false,
        pipeline_outermost: true,
    }
}

pub(crate) fn layout() -> Layout {
    Layout {
        tp: 2,
        pp: 4,
        dp: 2,
        shard_group: 2,
        ..ONE
    }
}

/// DeepSeek-V3 as far as rules see it.
pub(crate) fn deepseek(world: u64, batch: u64) -> Facts {
    Facts {
        world,
        domain: 8,
        shape: Shape {
            layers: 61,
            heads: 128,
            kv_heads: Vec::new(),
            width: 2048,
            expert_width: 2048,
            experts: 256,
            expert_groups: 32,
            ..facts().shape
        },
        batch,
        ..facts()
    }
}

/// Every candidate by nested loops, and the first rule that it breaks.
fn brute_force(space: &Space) -> (Vec<Layout>, BTreeMap<usize, u64>, u64) {
    let c = &space.candidates;
    let (mut good, mut bad, mut total) = (Vec::new(), BTreeMap::new(), 0);
    let mut visit = |layout: Layout| {
        total += 1;
        match first_broken_index(&space.facts, space.framework, &layout) {
            Some(rule) => *bad.entry(rule).or_insert(0) += 1,
            None => good.push(layout),
        }
    };
    let mut grids = Vec::new();
    for &tp in &c.tp {
        for &cp in &c.cp {
            for &ep in &c.ep {
                for &etp in &c.etp {
                    for (pp, dp) in space.stages(tp, cp) {
                        grids.push(Layout {
                            tp,
                            cp,
                            ep,
                            etp,
                            pp,
                            dp,
                            ..ONE
                        });
                    }
                }
            }
        }
    }
    for grid in grids {
        for &micro_batch in &c.micro_batch {
            for &sequence_parallel in space.sequence(grid.tp) {
                for &(recompute, n) in &c.recompute {
                    for &(schedule, vpp) in &c.plan {
                        for &(sharding, g) in &c.sharding {
                            visit(Layout {
                                micro_batch,
                                sequence_parallel,
                                recompute,
                                recompute_layers: space.recompute_layers(recompute, n, grid.pp),
                                schedule,
                                vpp,
                                sharding,
                                shard_group: space.shard_group(sharding, g, &grid),
                                ..grid
                            });
                        }
                    }
                }
            }
        }
    }
    (good, bad, total)
}

fn assert_equal(facts: Facts, framework: Framework, axes: &Axes) -> u64 {
    let space = Space::from_facts(facts, framework, axes).unwrap();
    let found = space.enumerate();
    let (good, bad, total) = brute_force(&space);
    let mut listed = Vec::new();
    for group in &found.groups {
        for prefix in &group.prefixes {
            for offset in 0..prefix.size() {
                listed.push(space.layout(group, prefix, offset).unwrap());
            }
            assert_eq!(space.layout(group, prefix, prefix.size()), None);
        }
    }
    assert_eq!(listed, good, "{framework:?}");
    let counted: BTreeMap<usize, u64> = found
        .counts
        .rejected
        .iter()
        .copied()
        .enumerate()
        .filter(|&(_, n)| n > 0)
        .collect();
    assert_eq!(counted, bad, "{framework:?}");
    assert_eq!(found.counts.total, total);
    assert_eq!(total, found.counts.feasible + found.counts.all_rejected());
    found.counts.feasible
}

#[test]
fn enumeration_equals_brute_force_for_every_framework() {
    for &framework in Framework::ALL {
        let dense = Facts {
            shape: Shape {
                experts: 0,
                expert_width: 0,
                expert_groups: 0,
                ..facts().shape
            },
            ..facts()
        };
        assert!(assert_equal(facts(), framework, &Axes::default()) > 1000);
        assert!(assert_equal(dense, framework, &Axes::default()) > 500);
    }
}

#[test]
fn enumeration_equals_brute_force_off_the_powers_of_two() {
    for world in [1, 6, 12, 24] {
        let odd = Facts {
            world,
            batch: 48,
            domain: 6,
            shape: Shape {
                layers: 10,
                tied: true,
                ..facts().shape
            },
            ..facts()
        };
        for &framework in Framework::ALL {
            assert_equal(odd.clone(), framework, &Axes::default());
        }
        let hybrid = Facts {
            shape: Shape {
                state_heads: 12,
                state_groups: vec![2, 4],
                ..odd.shape
            },
            overlap_ep: true,
            cp_by_heads: true,
            pipeline_outermost: false,
            ..odd
        };
        assert_equal(hybrid, Framework::Megatron, &Axes::default());
    }
}

#[test]
fn axes_pin_bound_and_list() {
    let axes = Axes {
        tp: Some(Choice::Pin(2)),
        pp: Some(Choice::List(vec![4, 1, 4])),
        dp: Some(Choice::Range {
            min: Some(2),
            max: None,
        }),
        ep: Some(Choice::List(vec![1, 3, 8])),
        recompute_layers: Some(vec![1, 2, 99]),
        shard_group: Some(vec![2, 3]),
        schedule: Some(vec![Schedule::DualPipe, Schedule::OneFOneB]),
        ..Axes::default()
    };
    assert!(assert_equal(facts(), Framework::Generic, &axes) > 100);
    let json: Axes = serde_json::from_str(r#"{"tp": 2, "pp": [4, 1], "dp": {"min": 2}}"#).unwrap();
    assert_eq!(json.dp, axes.dp);
    let bad = |axes: Axes| axes.candidates(&facts()).unwrap_err().to_string();
    assert!(
        bad(Axes {
            tp: Some(Choice::Pin(3)),
            ..Axes::default()
        })
        .contains("divide the 16 GPUs")
    );
    assert!(
        bad(Axes {
            pp: Some(Choice::List(vec![])),
            ..Axes::default()
        })
        .contains("no value")
    );
    let contradiction = Axes {
        vpp: Some(Choice::Pin(4)),
        schedule: Some(vec![Schedule::OneFOneB]),
        ..Axes::default()
    };
    assert!(bad(contradiction).contains("interleaved"));
    let full = Axes {
        tp: Some(Choice::Pin(16)),
        pp: Some(Choice::Pin(16)),
        ..Axes::default()
    };
    assert!(Space::from_facts(facts(), Framework::Generic, &full).is_err());
}

#[test]
fn large_worlds_are_counted_without_visiting() {
    for (world, batch) in [(1024, 15_360), (98_304, 294_912), (131_072, 245_760)] {
        let space = Space::from_facts(deepseek(world, batch), Framework::Generic, &Axes::default())
            .unwrap();
        let counts = space.enumerate().counts;
        assert!(counts.feasible > 1_000_000, "{counts:?}");
        assert_eq!(counts.total, counts.feasible + counts.all_rejected());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn enumeration_equals_brute_force(
        world in 1u64..=8, layers in 1u64..9, batch in 1u64..13, heads in 1u64..9,
        kv in 1u64..5, experts in 0u64..7, width in 1u64..17, seq in 1u64..33,
        framework in 0usize..4, switches in 0u8..16,
    ) {
        let shape = Shape {
            layers, heads: heads * kv, kv_heads: vec![kv], experts, width, expert_width: width,
            tied: switches & 1 == 1, ..facts().shape
        };
        let facts = Facts {
            world, batch, seq, shape, domain: 4, cp_by_heads: switches & 2 == 2,
            overlap_ep: switches & 4 == 4, pipeline_outermost: switches & 8 == 8,
        };
        let axes = Axes { vpp: Some(Choice::List(vec![1, 2, 3])), ..Axes::default() };
        assert_equal(facts, Framework::ALL[framework], &axes);
    }
}
