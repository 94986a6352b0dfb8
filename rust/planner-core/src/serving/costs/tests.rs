//! Values by hand, limits and properties of steps and passes.

use super::super::deployment::Engine;
use super::super::fixture::{FP8, HARDWARE, SOFTWARE, costs, dense, engine, latent_moe};
use super::super::steps::{Pass, StepTimes};
use proptest::prelude::*;

fn pass(tokens: f64, prompts: f64, past: f64) -> Pass {
    Pass {
        tokens,
        prompts,
        past,
    }
}

#[test]
fn terms_add_up() {
    for (model, engine, ops) in [(dense(), engine(4), 34.0), (latent_moe(), engine(8), 75.0)] {
        let c = costs(&model, &engine);
        let t = c.decode_terms(32.0, 2000.0);
        assert_eq!(t.total_s(), c.decode_s(32.0, 2000.0));
        let p = c.prefill_terms(&pass(8192.0, 4.0, 0.0));
        assert_eq!(p.total_s(), c.prefill_s(&pass(8192.0, 4.0, 0.0)));
        assert!((p.gpu_s().hypot(32.0 * ops * 1e-5) - p.gpu_s() - p.launch_s).abs() < 1e-12);
    }
}

#[test]
fn one_sequence_of_a_dense_model_by_hand() {
    let t = costs(&dense(), &engine(1)).decode_terms(1.0, 1000.0);
    let scaled = 1.0 + 4.0 / 16_384.0;
    // 32 layers · 4096·(32 + 16 + 32)·128 bytes at 3.2 TB/s; the FLOP of one token vanish.
    let projections = 32.0 * 41_943_040.0 * scaled / 3.2e12;
    assert!((t.projections_s / projections - 1.0).abs() < 1e-6);
    let mlp = 32.0 * 3.0 * 4096.0 * 14_336.0 * scaled / 3.2e12;
    assert!((t.dense_s / mlp - 1.0).abs() < 1e-6);
    // 1,000 keys · 32 layers · 2·8·128 bytes at 3.2 TB/s, joined with 4·32·128 FLOP at 0.5 PFLOP/s.
    let (read, compute) = (32.0 * 2048.0 / 3.2e12, 32.0 * 16_384.0 / 5e14);
    let core = 1000.0 * super::decode::join(read, compute);
    assert!((t.core_s / core - 1.0).abs() < 1e-9);
    // Ten operators of attention, four of the MLP, four casts of five.
    assert!((t.operators_s - 32.0 * 34.0 * 1e-6).abs() < 1e-9);
    assert_eq!(t.exchange_s, 0.0);
    assert!((t.host_s - 1.005e-3).abs() < 1e-12);
}

#[test]
fn a_large_batch_wakes_every_expert_once() {
    let c = costs(&latent_moe(), &engine(8));
    let expert = 3.0 * 4096.0 * 2048.0 / 8.0 * (1.0 + 4.0 / 16_384.0);
    let one = c.decode_terms(1.0, 10.0).experts_s;
    assert!((one / (32.0 * 8.0 * expert / 3.2e12) - 1.0).abs() < 1e-3);
    let all = c.decode_terms(1e4, 10.0).experts_s;
    let read = 32.0 * 256.0 * expert / 3.2e12;
    let compute = 32.0 * 1e4 * 8.0 * 2.0 * 3.0 * 4096.0 * 2048.0 / 8.0 / 1e15;
    assert!((all / super::decode::join(read, compute) - 1.0).abs() < 1e-6);
}

#[test]
fn context_ranks_share_a_prompt_and_gather_its_keys() {
    let cut = Engine {
        pcp: 4,
        ..engine(8)
    };
    let prompt = pass(32_768.0, 1.0, 0.0);
    let (heads, parts) = (
        costs(&dense(), &engine(8)).prefill_terms(&prompt),
        costs(&dense(), &cut).prefill_terms(&prompt),
    );
    // A quarter of the queries and four times the heads: the same pairs and products on each GPU.
    assert!((parts.core_s / heads.core_s - 1.0).abs() < 1e-12);
    // 8,192 own tokens in 32 layers: two all-reduces over two GPUs, and three times the keys and
    // values of four heads in 16 bits.
    let (reduced, keys) = (2.0 * 4096.0 * 2.0, 3.0 * 4.0 * 256.0 * 2.0);
    let link = HARDWARE.link_rate * super::super::fixture::cluster().scale_up.bytes_per_s;
    let exchange = 32.0 * 8192.0 * (reduced + keys) / link;
    assert!((parts.exchange_s / exchange - 1.0).abs() < 1e-9);
    assert!(parts.exchange_s < heads.exchange_s);
    // Steps are those of two GPUs, since all ranks decode the same tokens.
    let two = costs(&dense(), &engine(2)).decode_terms(8.0, 1000.0);
    assert_eq!(costs(&dense(), &cut).decode_terms(8.0, 1000.0), two);
}

#[test]
fn attention_replicas_exchange_tokens_not_the_batch() {
    let replicas = Engine {
        attention_dp: 8,
        ep: 8,
        moe_tp: 1,
        ..engine(8)
    };
    let c = costs(&latent_moe(), &replicas);
    let t = c.decode_terms(64.0, 1000.0);
    let latency = 32.0 * 2.0 * 4.0 * 5e-6 * 1.45;
    let sent = 32.0 * 8.0 * 4.633 * 4096.0 * 3.0 / 225e9;
    assert!((t.exchange_s / (latency + sent) - 1.0).abs() < 1e-3);
    // Fewer sequences than replicas: the busiest has one.
    assert_eq!(
        c.decode_terms(2.0, 1000.0).core_s,
        c.decode_terms(8.0, 1000.0).core_s
    );
}

#[test]
fn drafts_are_verified_together() {
    let drafting = Engine {
        spec_tokens: 3,
        ..engine(8)
    };
    let (plain, spec) = (
        costs(&latent_moe(), &engine(8)),
        costs(&latent_moe(), &drafting),
    );
    let (one, four) = (
        plain.decode_terms(1.0, 1000.0),
        spec.decode_terms(1.0, 1000.0),
    );
    assert_eq!(four.experts_s, plain.decode_terms(4.0, 1000.0).experts_s);
    assert!(four.total_s() < 2.0 * one.total_s());
    assert!((four.draft_s - 3.0 * 3e-4).abs() < 1e-12);
}

#[test]
fn a_layout_that_does_not_multiply_out_is_named() {
    use super::super::deployment::Backend;
    let (model, cluster) = (latent_moe(), super::super::fixture::cluster());
    let setting = super::Setting {
        model: &model,
        cluster: &cluster,
        hardware: &HARDWARE,
        software: &SOFTWARE,
        backend: Backend::Vllm,
        routing: super::super::routing::Routing::UNIFORM,
        measured: None,
    };
    let wrong = Engine { ep: 4, ..engine(8) };
    let error = super::Costs::new(&setting, &FP8, &wrong, super::Role::Both).unwrap_err();
    assert!(error.to_string().contains("ep"));
}

#[test]
fn passes_of_one_token_are_launch_bound_and_long_ones_grow_with_the_square() {
    let c = costs(&dense(), &engine(1));
    let one = c.prefill_terms(&pass(1.0, 1.0, 0.0));
    assert!(one.launch_s > 0.5 * one.total_s());
    let long = |s: f64| c.prefill_terms(&pass(s, 1.0, 0.0)).core_s;
    assert!((long(2e5) / long(1e5) - 4.0).abs() < 1e-9);
    assert_eq!(c.prefill_s(&pass(0.0, 0.0, 0.0)), 0.0);
}

/// Step of 64 requests with these passes over the rows of experts, on eight GPUs.
fn with_row_passes(passes: f64, ep: u32) -> f64 {
    use super::super::deployment::Backend;
    let (model, cluster) = (latent_moe(), super::super::fixture::cluster());
    let hardware = super::Hardware {
        expert_row_passes: passes,
        ..HARDWARE
    };
    let setting = super::Setting {
        model: &model,
        cluster: &cluster,
        hardware: &hardware,
        software: &SOFTWARE,
        backend: Backend::Vllm,
        routing: super::super::routing::Routing::UNIFORM,
        measured: None,
    };
    let engine = Engine {
        ep,
        moe_tp: 8 / ep,
        ..engine(8)
    };
    let costs = super::Costs::new(&setting, &FP8, &engine, super::Role::Both).unwrap();
    costs.decode_terms(64.0, 1000.0).experts_s
}

#[test]
fn experts_that_are_cut_move_every_row_on_every_gpu() {
    let moved = |ep| with_row_passes(5.0, ep) - with_row_passes(0.0, ep);
    // 32 layers, 64 tokens of 8 experts, 5 passes over 4,096 elements of 2 bytes at 4 TB/s.
    let by_hand = 32.0 * 64.0 * 8.0 * 5.0 * 4096.0 * 2.0 / 4e12;
    assert!((moved(1) / by_hand - 1.0).abs() < 1e-9);
    // Whole experts: an eighth, and what the fullest of eight has beyond it.
    let (rows, largest) = (64.0, super::decode::normal_max(8));
    let fullest = super::decode::hottest(rows, rows * 7.0 / 8.0, largest);
    assert!((moved(8) / by_hand - fullest / 512.0).abs() < 1e-9);
}

proptest! {
    #[test]
    fn more_work_takes_longer(b in 1.0..500.0_f64, context in 1.0..50_000.0_f64, dp in 0_u32..4) {
        let engine = Engine {
            attention_dp: 1 << dp, ep: 8, moe_tp: 1, ..engine(8)
        };
        let c = costs(&latent_moe(), &engine);
        let t = c.decode_s(b, context);
        prop_assert!(t.is_finite() && t > 0.0);
        prop_assert!(c.decode_s(b + 1.0, context) >= t);
        prop_assert!(c.decode_s(b, context + 1.0) >= t);
        let p = c.prefill_s(&pass(b * 10.0, 2.0, context));
        prop_assert!(c.prefill_s(&pass(b * 20.0, 2.0, context)) > p);
        prop_assert!(c.prefill_s(&pass(b * 10.0, 2.0, context + 1.0)) > p);
    }

    #[test]
    fn parts_of_a_prompt_cost_no_less_than_the_whole(
        tokens in 100.0..50_000.0_f64, cut in 0.1..0.9_f64,
    ) {
        let c = costs(&dense(), &engine(2));
        let head = c.prefill_terms(&pass(tokens * cut, 1.0, 0.0));
        let tail = c.prefill_terms(&pass(tokens * (1.0 - cut), 1.0, tokens * cut));
        let whole = c.prefill_terms(&pass(tokens, 1.0, 0.0));
        prop_assert!((head.core_s + tail.core_s) / whole.core_s > 1.0 - 1e-9);
        prop_assert!(head.total_s() + tail.total_s() >= whole.total_s());
    }
}
