use super::{Ids, Options, Policy, Replay, replay};
use crate::error::{Error, Result};
use crate::kv::trace::{self, Format, Reader, Unordered};

const TRACE: &str = r#"{"timestamp": 0, "input_length": 30, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 5, "input_length": 8, "output_length": 5, "hash_ids": [9]}
{"timestamp": 9, "input_length": 30, "output_length": 5, "hash_ids": [1, 2, 3]}
"#;

fn options(policy: Policy, ids: Ids, capacities: &[u64]) -> Options {
    Options {
        block_tokens: 10,
        capacities: capacities.iter().copied().map(Some).collect(),
        policy,
        ids,
        curve: false,
        sample: 1.0,
        layers: None,
    }
}

fn reader(text: &str) -> Result<Reader> {
    let options = trace::Options {
        format: Format::Mooncake,
        block_tokens: 10,
        trace_block_tokens: None,
        skip_bad: 0,
        unordered: Unordered::Reject,
        regrid: false,
    };
    Reader::from_bytes("t", text.to_owned(), options)
}

fn run(text: &str, options: &Options) -> Result<Replay> {
    replay(&mut reader(text)?, options, &|| false)
}

#[test]
fn counts_tokens_and_evictions() {
    let out = run(TRACE, &options(Policy::Lru, Ids::All, &[3, 4, 1])).unwrap();
    assert_eq!(
        (out.requests, out.total_blocks, out.unique_blocks),
        (3, 7, 4)
    );
    let hits: Vec<u64> = out.points.iter().map(|p| p.hit_blocks).collect();
    assert_eq!(hits, [2, 3, 0]);
    assert_eq!(out.points[1].hit_tokens, 30);
    assert_eq!(out.points[0].evictions, 2);
    assert_eq!(out.points[2].oversized_requests, 2);
}

#[test]
fn the_engine_rule_leaves_a_token_to_compute() {
    // 30 tokens are three whole blocks, but an identical resend hits only two of them.
    let out = run(TRACE, &options(Policy::Lru, Ids::Full, &[10])).unwrap();
    assert_eq!(out.total_blocks, 6);
    assert_eq!(out.points[0].hit_blocks, 2);
}

#[test]
fn an_evicted_head_ends_the_prefix() {
    // [1, 2, 3] cached, 1 evicted: the hit is 0, not 2 (llm-d-inference-sim#701).
    for policy in [Policy::Naive, Policy::Fifo] {
        let out = run(TRACE, &options(policy, Ids::All, &[3])).unwrap();
        assert_eq!(out.points[0].hit_blocks, 0);
    }
}

#[test]
fn no_blocks_no_hits() {
    for policy in [Policy::Lru, Policy::Fifo, Policy::Naive] {
        let out = run(TRACE, &options(policy, Ids::All, &[0])).unwrap();
        assert_eq!(out.points[0].hit_blocks, 0);
    }
}

#[test]
fn a_curve_needs_lru() {
    let mut o = options(Policy::Fifo, Ids::All, &[]);
    o.curve = true;
    assert!(matches!(run(TRACE, &o), Err(Error::Field { field, .. }) if field == "policy"));
}

#[test]
fn interrupts() {
    let line = r#"{"timestamp": 0, "input_length": 8, "output_length": 5, "hash_ids": [9]}"#;
    let text = format!("{line}\n").repeat(2000);
    let out = replay(
        &mut reader(&text).unwrap(),
        &options(Policy::Lru, Ids::All, &[3]),
        &|| true,
    );
    assert_eq!(out, Err(Error::Interrupted));
}

#[test]
fn a_sample_comes_near_the_truth() {
    let mut text = String::new();
    for i in 0..4000u64 {
        let a = i * i % 701;
        let b = 10_000 + a;
        text += &format!(
            "{{\"timestamp\": {i}, \"input_length\": 20, \"output_length\": 1, \"hash_ids\": [{a}, {b}]}}\n"
        );
    }
    let mut o = options(Policy::Lru, Ids::All, &[300, 600]);
    let exact = run(&text, &o).unwrap();
    o.sample = 0.3;
    let sampled = run(&text, &o).unwrap();
    for (e, s) in exact.points.iter().zip(&sampled.points) {
        assert!((e.hit_ratio - s.hit_ratio).abs() < 0.1, "{e:?} {s:?}");
    }
}
