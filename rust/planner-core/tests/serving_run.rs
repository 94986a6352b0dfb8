//! A published vLLM run against the request-level replay. Skipped where the shared data is not
//! mounted; the same mechanisms are tested on small cases beside the code.

use std::path::PathBuf;

use planner_core::kv::trace::{Format, Options, Reader, Request, Unordered};
use planner_core::serving::deployment::Backend;
use planner_core::serving::engine::policy::Policy;
use planner_core::serving::engine::prefixes::{Trace, play_trace};
use planner_core::serving::engine::{Settings, Workspace};
use planner_core::serving::outcome::Limits;
use planner_core::serving::steps::{Pass, StepTimes};

/// Step times fitted on another run (Llama-3.1-8B on an RTX PRO 6000; docs/kv-scheduler.md).
struct OtherRun;

impl StepTimes for OtherRun {
    fn decode_s(&self, n: f64, context: f64) -> f64 {
        0.0283 + 8.42e-6 * n + 4.6e-9 * n * context
    }
    fn prefill_s(&self, pass: &Pass) -> f64 {
        0.0283 + 29.2e-6 * pass.tokens
    }
}

fn trace() -> Option<Trace> {
    let root = std::env::var("PLANNER_SHARED").unwrap_or_else(|_| "../../../shared".into());
    let runs = PathBuf::from(root).join("truth/traces/vllm_runs");
    let file = runs.join("sharegpt-llama-3.1-8b-300-sps10.jsonl.gz");
    if !file.exists() {
        assert!(
            std::env::var("CI").is_err(),
            "{} is missing",
            file.display()
        );
        eprintln!("skipped: {} is not there", file.display());
        return None;
    }
    let options = Options {
        format: Format::Tokens,
        block_tokens: 16,
        trace_block_tokens: None,
        skip_bad: 0,
        unordered: Unordered::Reject,
        regrid: false,
    };
    let mut reader = Reader::open(&file, options).unwrap();
    let mut next = |r: &mut Request| {
        let more = reader.next(r)?;
        r.keys.clear(); // the run had its prefix cache off
        Ok(more)
    };
    Some(Trace::read(16, &mut next).unwrap())
}

/// vLLM 0.19, RTX 4090, Llama-3.1-8B, 2,588 blocks of 16, 300 requests at 10/s: makespan 183.6 s, mean
/// TTFT 65.46 s, mean TPOT 32.4 ms, 49 requests at most.
#[test]
fn a_published_run_within_fifteen_percent() {
    let Some(trace) = trace() else { return };
    let mut policy = Policy::new(Backend::Vllm, 256, 2048, 2588 * 16);
    // The fixed time of a step is in the time of its prompts already.
    policy.decode_share = 0.0;
    let settings = Settings {
        workers: 1,
        routing: Default::default(),
        tabulate: false,
    };
    let mut space = Workspace::default();
    let load = (&trace, 1.0);
    let out = play_trace(
        &policy,
        &OtherRun,
        load,
        &settings,
        &Limits::NONE,
        &mut space,
    )
    .unwrap();
    println!("{out:?}");
    let near = |value: f64, measured: f64| (value / measured - 1.0).abs() < 0.15;
    assert_eq!((out.requests, out.rejected), (300, 0));
    assert!(near(out.makespan_s, 183.6), "{out:?}");
    assert!(near(out.ttft_s.mean, 65.46), "{out:?}");
    assert!(near(out.ttft_s.p90, 121.1), "{out:?}");
    assert!(near(out.tpot_s.mean, 0.0324), "{out:?}");
    assert!(near(f64::from(out.peak_running), 49.0), "{out:?}");
    assert!(out.saturated && out.preemptions > 0);
}
