use proptest::prelude::*;

use super::copies::Copies;
use super::*;
use crate::layout::axes::Choice;
use crate::layout::shape::Shape;
use crate::serving::rules::Check;
use crate::units::Dtype;

pub(crate) const BF16: Precision = Precision {
    attention: Dtype::Bf16,
    dense: Dtype::Bf16,
    experts: Dtype::Bf16,
    kv: Dtype::Bf16,
};

const DEFAULTS: Defaults = Defaults {
    memory_share: 0.9,
    recv_interval: 1,
    block_tokens: 32,
};

pub(crate) fn engine(tp: u32, pp: u32) -> Engine {
    Engine {
        tp,
        pp,
        attention_dp: 1,
        pcp: 1,
        ep: 1,
        moe_tp: tp,
        dcp: 1,
        max_batch: 64,
        max_batched_tokens: 8192,
        block_tokens: 32,
        recv_interval: 1,
        memory_share: 0.9,
        spec_tokens: 0,
        redundant_experts: 0,
    }
}

pub(crate) fn moe(gpus: u64) -> Space {
    Space {
        facts: Facts {
            shape: Shape {
                layers: 61,
                heads: 128,
                width: 2048,
                expert_width: 2048,
                experts: 256,
                expert_groups: 32,
                ..Shape::default()
            },
            gpus,
            node: 8,
            latent: true,
            windowed: false,
            draft_heads: 1,
            input: 4096,
            context: 5120,
            clients: None,
        },
        axes: Axes {
            modes: Mode::ALL.to_vec(),
            engine: EngineAxes::default(),
            prefill: EngineAxes::default(),
        },
    }
}

fn dense(gpus: u64) -> Space {
    let mut space = moe(gpus);
    space.facts.shape = Shape {
        layers: 80,
        heads: 64,
        kv_heads: vec![8],
        width: 28_672,
        ..Shape::default()
    };
    space.facts.latent = false;
    space.facts.draft_heads = 0;
    space
}

fn kind(backend: Backend) -> Kind {
    Kind {
        backend,
        precision: BF16,
        defaults: DEFAULTS,
    }
}

const BACKENDS: [Backend; 3] = [Backend::Vllm, Backend::Sglang, Backend::Trtllm];

#[test]
fn a_dense_model_has_no_expert_axes() {
    let found = dense(16)
        .engines(&kind(Backend::Vllm), Side::Mixed)
        .unwrap();
    assert!(
        found
            .layouts
            .iter()
            .all(|e| e.ep == 1 && e.attention_dp == 1)
    );
    assert!(found.layouts.iter().any(|e| (e.tp, e.pp) == (16, 1)));
    assert!(found.layouts.iter().any(|e| (e.tp, e.pp) == (8, 2)));
    assert!(
        found.layouts.iter().any(|e| (e.tp, e.dcp) == (16, 2)),
        "V7: 16 > 8 heads"
    );
    assert!(found.layouts.iter().all(|e| e.tp > 8 || e.dcp == 1));
}

#[test]
fn prompts_are_cut_only_where_asked_and_only_to_prefill() {
    let asked = |backend, side, pcp| {
        let mut space = moe(16);
        space.axes.engine.pcp = pcp;
        space.axes.prefill.pcp = space.axes.engine.pcp.clone();
        let found = space.engines(&kind(backend), side).unwrap();
        let degrees = found.layouts.iter().map(|e| (e.attention_dp, e.pcp));
        degrees
            .filter(|&(_, pcp)| pcp > 1)
            .collect::<std::collections::BTreeSet<_>>()
    };
    let upto = || {
        Some(Choice::Range {
            min: None,
            max: Some(4),
        })
    };
    assert!(asked(Backend::Sglang, Side::Mixed, None).is_empty());
    assert!(asked(Backend::Sglang, Side::Decode, upto()).is_empty());
    assert!(
        asked(Backend::Trtllm, Side::Prefill, upto()).is_empty(),
        "R11"
    );
    let both = asked(Backend::Sglang, Side::Prefill, upto());
    assert!(both.contains(&(1, 2)) && both.contains(&(4, 4)) && !both.contains(&(16, 2)));
    let alone = asked(Backend::Vllm, Side::Mixed, upto());
    assert_eq!(
        alone.into_iter().collect::<Vec<_>>(),
        [(1, 2), (1, 4)],
        "V17"
    );
}

#[test]
fn backends_differ_in_what_they_accept() {
    let has = |backend, want: &dyn Fn(&Engine) -> bool| {
        let found = moe(16).engines(&kind(backend), Side::Mixed).unwrap();
        found.layouts.iter().any(want)
    };
    let hybrid = |e: &Engine| e.tp == 8 && e.ep == 4;
    assert_eq!(BACKENDS.map(|b| has(b, &hybrid)), [false, true, true]);
    let partial = |e: &Engine| e.tp == 8 && e.attention_dp == 4;
    assert_eq!(BACKENDS.map(|b| has(b, &partial)), [true, true, false]);
    let context = |e: &Engine| e.dcp > 1;
    assert_eq!(BACKENDS.map(|b| has(b, &context)), [true, true, false]);
}

/// Backends that accept an engine of a side, in blocks of fp8.
fn accept(space: &Space, side: Side, engine: Engine) -> [bool; 3] {
    let precision = Precision {
        experts: Dtype::Fp8Block,
        ..BF16
    };
    BACKENDS.map(|backend| {
        let candidate = Candidate {
            backend,
            precision: &precision,
            side,
            engine: &engine,
        };
        first_broken(&space.facts, Level::Layout, &candidate).is_none()
    })
}

#[test]
fn vllm_alone_cuts_blocks_of_weights() {
    let mut space = moe(16);
    space.facts.shape.expert_width = 1536;
    // 384, 192 and 96 columns of an expert a GPU: 3, 1.5 and 0.75 blocks.
    let kept = [4, 8, 16].map(|tp| accept(&space, Side::Mixed, engine(tp, 1)));
    assert_eq!(
        kept,
        [[true; 3], [true, false, false], [true, false, false]]
    );
    let whole = Engine {
        ep: 8,
        moe_tp: 1,
        ..engine(8, 1)
    };
    assert_eq!(accept(&space, Side::Mixed, whole), [true; 3]);
}

#[test]
fn drafts_of_sglang_stay_out_of_pipelines_but_in_prefill() {
    let drafts = Engine {
        spec_tokens: 1,
        ..engine(8, 2)
    };
    let sides = [Side::Mixed, Side::Prefill, Side::Decode];
    let kept = sides.map(|side| accept(&moe(16), side, drafts)[1]);
    assert_eq!(kept, [false, true, false]);
}

#[test]
fn a_decode_engine_of_vllm_cuts_latents_over_all_ranks() {
    let cut = |dcp| Engine {
        dcp,
        ..engine(8, 1)
    };
    let kept = [2, 8].map(|dcp| accept(&moe(16), Side::Decode, cut(dcp))[0]);
    assert_eq!(kept, [false, true]);
    assert!(accept(&moe(16), Side::Mixed, cut(2))[0]);
    let mut states = moe(16);
    states.facts.shape.state_heads = 16;
    assert!(!accept(&states, Side::Mixed, cut(2))[0]);
}

#[test]
fn copies_of_experts_fill_ranks() {
    let found = moe(72)
        .engines(&kind(Backend::Sglang), Side::Decode)
        .unwrap();
    let wide = |e: &&Engine| e.ep == 72 && e.attention_dp == 72 && e.spec_tokens == 0 && e.dcp == 1;
    let copies: Vec<u32> = found
        .layouts
        .iter()
        .filter(wide)
        .map(|e| e.redundant_experts)
        .collect();
    assert_eq!(copies, [32, 104]);
}

#[test]
fn pins_hold_and_contradictions_are_counted_under_their_rule() {
    let mut space = moe(16);
    space.axes.engine.tp = Some(Choice::Pin(6));
    let found = space.engines(&kind(Backend::Vllm), Side::Mixed).unwrap();
    assert!(found.layouts.is_empty());
    let rejected: u64 = found.broken.iter().map(|(n, _)| n.sum()).sum();
    assert_eq!(rejected, found.total.sum());
    assert!(rejected > 0);
    let first = found.broken.iter().position(|(n, _)| n.sum() > 0).unwrap();
    assert_eq!(RULES[first].id, "G3");
}

#[test]
fn pairs_of_workers_are_counted_without_a_walk() {
    for gpus in [1, 7, 24, 64] {
        for (a, b) in [(1, 1), (2, 8), (8, 3), (64, 64)] {
            let copies = Copies {
                gpus,
                decode: None,
                prefill: None,
            };
            assert_eq!(copies.count_pairs(a, b), copies.pairs(a, b).count() as u128);
        }
    }
}

proptest! {
    /// Enumeration equals brute force: every grid that multiplies out and obeys every rule.
    #[test]
    fn enumeration_equals_brute_force(
        gpus in 1_u64..40, node in prop::sample::select(vec![1_u64, 2, 4, 8]),
        which in 0_usize..3, dense_model in any::<bool>(),
    ) {
        let mut space = if dense_model { dense(gpus) } else { moe(gpus) };
        space.facts.node = node;
        let kind = kind(BACKENDS[which]);
        let found = space.engines(&kind, Side::Mixed).unwrap();
        let pinned: u32 = (gpus as u32 / node as u32).max(1);
        let stages: Vec<u32> = (1..=gpus as u32)
            .filter(|&tp| {
                let nodes = tp / node as u32;
                let whole = tp % node as u32 == 0 && nodes <= pinned && axes::smooth(nodes).contains(&nodes);
                node % u64::from(tp) == 0 || whole
            })
            .collect();
        let mut wanted = Vec::new();
        for &tp in &stages {
            for pp in axes::smooth(axes::PP_LIMIT).into_iter().filter(|pp| tp * pp <= gpus as u32) {
                for attention_dp in 1..=tp {
                    for ep in 1..=tp {
                        brute(&space.facts, &kind, &Engine {
                            attention_dp, ep, moe_tp: tp / ep, max_batch: 1, max_batched_tokens: 1,
                            ..engine(tp, pp)
                        }, &mut wanted);
                    }
                }
            }
        }
        let key = |e: &Engine| (e.tp, e.pp, e.attention_dp, e.ep, e.dcp, e.redundant_experts, e.spec_tokens);
        wanted.sort_by_key(key);
        let mut got = found.layouts.clone();
        got.sort_by_key(key);
        prop_assert_eq!(got, wanted);
    }

    /// total = obeying + rejected, whatever is pinned.
    #[test]
    fn every_layout_is_accounted_for(
        gpus in 1_u64..70, tp in prop::option::of(1_u32..70), ep in prop::option::of(1_u32..70),
        which in 0_usize..3,
    ) {
        let mut space = moe(gpus);
        space.axes.engine.tp = tp.map(Choice::Pin);
        space.axes.engine.ep = ep.map(Choice::Pin);
        let kind = kind(BACKENDS[which]);
        let found = space.engines(&kind, Side::Mixed).unwrap();
        let lists = space.flags(&kind, Side::Mixed).unwrap();
        let kept: u64 = found.layouts.iter().map(|e| lists.flags(e).len() as u64).sum();
        let rejected: u64 = found.broken.iter().map(|(n, _)| n.sum()).sum();
        prop_assert_eq!(found.total.sum(), kept + rejected);
    }
}

/// Adds the variants of a grid that obey every layout rule, values tried by hand.
fn brute(facts: &Facts, kind: &Kind, bare: &Engine, out: &mut Vec<Engine>) {
    let drafts = if facts.draft_heads > 0 { 0..=3 } else { 0..=0 };
    for dcp in [1, 2, 4, 8] {
        for redundant_experts in 0..=2 * bare.ep {
            let filled = (facts.shape.experts as u32 + redundant_experts).is_multiple_of(bare.ep);
            let least = redundant_experts < 2 * bare.ep && filled;
            if facts.shape.is_moe() && bare.ep > 1 && !least {
                continue;
            }
            for spec_tokens in drafts.clone() {
                let engine = Engine {
                    dcp,
                    redundant_experts,
                    spec_tokens,
                    ..*bare
                };
                let candidate = Candidate {
                    backend: kind.backend,
                    precision: &kind.precision,
                    side: Side::Mixed,
                    engine: &engine,
                };
                let obeys = RULES.iter().all(|rule| match rule.check {
                    Check::Engine(Level::Layout, holds) => {
                        !rule.binds(kind.backend) || holds(facts, &candidate)
                    }
                    _ => true,
                });
                if obeys {
                    out.push(engine);
                }
            }
        }
    }
}
