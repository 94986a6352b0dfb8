use proptest::prelude::*;

use super::{Options, Outcome, Policy, StepTime, run};
use crate::error::Result;
use crate::kv::trace::Request;
use crate::table::Data;

fn options(policy: Policy, blocks: u64) -> Options {
    Options {
        policy,
        blocks,
        block_tokens: 16,
        max_seqs: 64,
        max_batched_tokens: 512,
        long_prefill_tokens: 0,
        prefix_caching: false,
        reserve_prompt: true,
        watermark: 0.0,
        unhashed_first: false,
        conservativeness: 1.0,
        step: StepTime {
            base_s: 0.01,
            prefill_token_s: 1e-5,
            decode_s: 1e-4,
            context_token_s: 0.0,
        },
    }
}

fn request(arrival_s: f64, input_tokens: u64, output_tokens: u64, keys: &[u64]) -> Request {
    Request {
        arrival_s,
        input_tokens,
        output_tokens,
        keys: keys.to_vec(),
    }
}

fn play(options: &Options, trace: &[Request]) -> Result<Outcome> {
    let mut rest = trace.iter();
    let mut next = |r: &mut Request| {
        Ok(rest.next().is_some_and(|t| {
            r.clone_from(t);
            true
        }))
    };
    run(options, &mut next, &|| false)
}

fn column(outcome: &Outcome, name: &str) -> Vec<f64> {
    let at = outcome
        .requests
        .columns
        .iter()
        .position(|c| c.name == name)
        .unwrap();
    match &outcome.requests.data[at] {
        Data::F64(v) => v.clone(),
        Data::U32(v) => v.iter().map(|x| f64::from(*x)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_request_by_hand() {
    // 1,000 tokens in chunks of 512: two prefill steps, then four decodes.
    let out = play(&options(Policy::Vllm, 100), &[request(0.0, 1000, 5, &[])]).unwrap();
    let prefill = 2.0 * 0.01 + 1000.0 * 1e-5;
    assert!((column(&out, "ttft_s")[0] - prefill).abs() < 1e-12);
    assert!((column(&out, "tpot_s")[0] - 0.0101).abs() < 1e-12);
    assert_eq!(out.summary.steps, 6);
    assert_eq!(out.summary.peak_occupancy_ratio, 0.63); // 1,004 tokens are 63 blocks
}

#[test]
fn the_whole_prompt_is_reserved() {
    // vllm#45388: 2,048 blocks; prompts of 25,596 and 19,196 tokens are 1,600 and 1,200 blocks.
    let trace = [request(0.0, 25_596, 4, &[]), request(0.0, 19_196, 4, &[])];
    let mut o = options(Policy::Vllm, 2048);
    o.max_batched_tokens = 26_000;
    let out = play(&o, &trace).unwrap();
    assert_eq!((out.summary.preemptions, out.summary.peak_running), (0, 1));
    o.reserve_prompt = false;
    let out = play(&o, &trace).unwrap();
    assert!(out.summary.preemptions > 0);
    assert_eq!(out.summary.finished, 2);
}

#[test]
fn recomputation_is_no_prefix_hit() {
    // vllm#25780: random prompts, so no hit, however often requests are preempted.
    let keys = |i: u64| (0..20).map(|b| 1000 * i + b).collect::<Vec<_>>();
    let trace: Vec<_> = (0..12).map(|i| request(0.0, 330, 200, &keys(i))).collect();
    let mut o = options(Policy::Vllm, 150);
    o.prefix_caching = true;
    let out = play(&o, &trace).unwrap();
    assert!(out.summary.preemptions > 0);
    assert_eq!(out.summary.hit_tokens, 0);
}

#[test]
fn equal_prompts_share_blocks_but_one_token_is_computed() {
    let keys: Vec<u64> = (0..20).collect();
    let trace = [request(0.0, 320, 2, &keys), request(10.0, 320, 2, &keys)];
    let mut o = options(Policy::Vllm, 100);
    o.prefix_caching = true;
    let out = play(&o, &trace).unwrap();
    assert_eq!(column(&out, "hit_tokens"), [0.0, 304.0]);
    assert!(column(&out, "ttft_s")[1] < column(&out, "ttft_s")[0]);
}

#[test]
fn what_never_fits_is_rejected_with_its_shortfall() {
    for policy in [Policy::Vllm, Policy::Sglang] {
        let trace = [request(0.0, 2000, 10, &[]), request(0.0, 100, 10, &[])];
        let out = play(&options(policy, 50), &trace).unwrap();
        let first = out.summary.first_rejected.unwrap();
        assert_eq!(
            (first.request, first.blocks, first.shortfall_blocks),
            (0, 126, 76)
        );
        assert_eq!((out.summary.rejected, out.summary.finished), (1, 1));
    }
}

#[test]
fn no_blocks_reject_everything() {
    let out = play(&options(Policy::Vllm, 0), &[request(0.0, 10, 1, &[])]).unwrap();
    assert_eq!(
        (
            out.summary.rejected,
            out.summary.finished,
            out.summary.steps
        ),
        (1, 0, 0)
    );
}

#[test]
fn sglang_prefills_before_it_decodes() {
    let trace = [request(0.0, 100, 50, &[]), request(0.05, 100, 50, &[])];
    let out = play(&options(Policy::Sglang, 100), &trace).unwrap();
    // The second prompt runs alone, in the next step after its arrival.
    assert!(column(&out, "ttft_s")[1] < 0.03);
    assert_eq!(out.summary.finished, 2);
}

#[test]
fn sglang_retracts_the_youngest_answer() {
    let trace: Vec<_> = (0..10)
        .map(|i| request(f64::from(i) * 0.1, 100, 400, &[]))
        .collect();
    let mut o = options(Policy::Sglang, 120);
    o.conservativeness = 0.1;
    let out = play(&o, &trace).unwrap();
    assert!(out.summary.preemptions > 0);
    assert_eq!(column(&out, "preemptions")[0], 0.0);
    assert_eq!(out.summary.finished, 10);
}

#[test]
fn bad_options() {
    let trace = [request(0.0, 10, 1, &[])];
    let mut o = options(Policy::Vllm, 10);
    o.max_seqs = 0;
    assert!(play(&o, &trace).is_err());
    let mut o = options(Policy::Vllm, 10);
    o.step = StepTime {
        base_s: 0.0,
        prefill_token_s: 0.0,
        decode_s: 0.0,
        context_token_s: 0.0,
    };
    assert!(play(&o, &trace).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn everything_that_fits_ends_and_nothing_leaks(
        shapes in prop::collection::vec((1u64..600, 1u64..80, 0u64..4, 0.0f64..0.3), 1..40),
        blocks in 30u64..120,
        sglang in any::<bool>(),
        prefix_caching in any::<bool>(),
        reserve_prompt in any::<bool>(),
        unhashed_first in any::<bool>(),
    ) {
        let mut time = 0.0;
        let trace: Vec<_> = shapes.iter().map(|(input, output, family, gap)| {
            time += gap;
            let keys: Vec<u64> = (0..input.div_ceil(16)).map(|b| family * 1000 + b).collect();
            request(time, *input, *output, &keys)
        }).collect();
        let policy = if sglang { Policy::Sglang } else { Policy::Vllm };
        let o = Options { prefix_caching, reserve_prompt, unhashed_first, ..options(policy, blocks) };
        let out = play(&o, &trace).unwrap();
        let s = &out.summary;
        prop_assert_eq!(s.finished + s.rejected, trace.len() as u64);
        prop_assert!(s.peak_occupancy_ratio <= 1.0);
        prop_assert!(s.peak_running <= 64);
        let (queue, ttft) = (column(&out, "queue_s"), column(&out, "ttft_s"));
        for (q, t) in queue.iter().zip(&ttft) {
            prop_assert!(q.is_nan() || (*q >= 0.0 && t > q));
        }
        // The same input gives the same bytes.
        prop_assert_eq!(format!("{:?}", play(&o, &trace).unwrap()), format!("{out:?}"));
    }
}
