//! Replays of serving engines, their closed form, and a recorded trace on engines with prefix caches.
//!
//! With `PLANNER_SHARED` set the trace is the Mooncake conversation trace; otherwise one of its size
//! is made up.

use std::hint::black_box;
use std::path::PathBuf;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planner_core::kv::trace::{Format, Options, Reader, Request, Unordered};
use planner_core::serving::closed::{Arrivals as At, Mean, steady};
use planner_core::serving::deployment::Backend;
use planner_core::serving::engine::policy::Policy;
use planner_core::serving::engine::prefixes::{Trace, play_trace};
use planner_core::serving::engine::{Settings, Workspace, play};
use planner_core::serving::load::{Arrivals, Lengths, Load};
use planner_core::serving::outcome::Limits;
use planner_core::serving::steps::{Pass, StepTimes};

/// Step times with the shape of the cost model: a few roots and an exponential.
struct Times;

impl StepTimes for Times {
    fn decode_s(&self, n: f64, context: f64) -> f64 {
        let experts = 0.006 * (1.0 - (-0.03 * n).exp());
        let dense = (1e-9 + (3e-6 * n).powi(3)).cbrt();
        0.003 + experts + dense + 5e-6 * n + 1.2e-9 * n * context
    }
    fn prefill_s(&self, pass: &Pass) -> f64 {
        let context = pass.past + pass.tokens / pass.prompts / 2.0;
        (1.2e-5 * pass.tokens + 8e-10 * pass.tokens * context).hypot(0.012)
    }
}

const BACKENDS: [(Backend, &str); 3] = [
    (Backend::Vllm, "vllm"),
    (Backend::Sglang, "sglang"),
    (Backend::Trtllm, "trtllm"),
];

fn policy(backend: Backend) -> Policy {
    Policy {
        latency_s: 0.02,
        recv_interval: if backend == Backend::Sglang { 10 } else { 1 },
        ..Policy::new(backend, 256, 8192, 1 << 21)
    }
}

fn load(concurrency: u32) -> Load {
    let lengths = |tokens| Lengths { tokens, low: 0.8 };
    Load {
        arrivals: Arrivals::Closed { concurrency },
        input: lengths(1024),
        output: lengths(1024),
        requests: None,
        prefix_hit_ratio: 0.0,
        acceptance: None,
        seed: 0,
    }
}

const ONE: Settings = Settings {
    workers: 1,
    routing: planner_core::serving::engine::drive::Routing::LeastLoaded,
    tabulate: true,
};

/// One deployment at 64 clients, 640 requests: table, replay, quantiles.
fn closed_loop(c: &mut Criterion) {
    let mut group = c.benchmark_group("serving/closed loop, 64 clients, 640 requests");
    group.throughput(Throughput::Elements(1));
    for (backend, name) in BACKENDS {
        let (policy, load, mut space) = (policy(backend), load(64), Workspace::default());
        group.bench_function(name, |b| {
            b.iter(|| {
                play(
                    &policy,
                    &Times,
                    black_box(&load),
                    &ONE,
                    &Limits::NONE,
                    &mut space,
                )
            });
        });
    }
    group.finish();
}

fn closed_form(c: &mut Criterion) {
    let mut group = c.benchmark_group("serving/closed form");
    group.throughput(Throughput::Elements(1));
    let mean = Mean {
        input: 921.6,
        hit: 0.0,
        output: 921.6,
        arrivals: At::Clients(64.0),
    };
    for (backend, name) in BACKENDS {
        let policy = policy(backend);
        group.bench_function(name, |b| {
            b.iter(|| steady(&policy, &Times, black_box(&mean)))
        });
    }
    group.finish();
}

/// The trace with keys of 512 tokens.
fn trace() -> Trace {
    let shared = std::env::var_os("PLANNER_SHARED").map(PathBuf::from);
    let file = shared.map(|s| s.join("truth/traces/mooncake_conversation_trace.jsonl"));
    let options = Options {
        format: Format::Mooncake,
        block_tokens: 512,
        trace_block_tokens: None,
        skip_bad: 0,
        unordered: Unordered::Reject,
        regrid: false,
    };
    if let Some(mut reader) = file.and_then(|f| Reader::open(&f, options).ok()) {
        return Trace::read(512, &mut |r: &mut Request| reader.next(r)).expect("a trace");
    }
    let mut i = 0;
    let made_up = &mut |r: &mut Request| {
        let (talk, turn) = (i % 3000, i / 3000 + 1);
        *r = Request {
            arrival_s: i as f64 * 0.3,
            input_tokens: turn * 6 * 512,
            output_tokens: 340,
            keys: (0..turn * 6).map(|b| 1000 * talk + b).collect(),
        };
        i += 1;
        Ok(i <= 12_000)
    };
    Trace::read(512, made_up).expect("a trace")
}

/// The trace three times as fast as recorded, on 16 engines.
fn recorded(c: &mut Criterion) {
    let mut group = c.benchmark_group("serving/conversation trace, 16 engines with prefix caches");
    let (trace, policy, mut space) = (trace(), policy(Backend::Vllm), Workspace::default());
    let settings = Settings { workers: 16, ..ONE };
    group
        .throughput(Throughput::Elements(trace.len() as u64))
        .sample_size(20);
    let load = (&trace, 3.0);
    let out =
        play_trace(&policy, &Times, load, &settings, &Limits::NONE, &mut space).expect("a replay");
    let sum = |f: fn(&planner_core::serving::engine::replica::Job) -> u32| {
        space.jobs().iter().map(|j| f64::from(f(j))).sum::<f64>()
    };
    println!(
        "hit ratio {:.3}, mean TTFT {:.3} s",
        sum(|j| j.hit) / sum(|j| j.input),
        out.ttft_s.mean
    );
    group.bench_function("replay", |b| {
        b.iter(|| {
            play_trace(
                &policy,
                &Times,
                black_box(load),
                &settings,
                &Limits::NONE,
                &mut space,
            )
        });
    });
    group.finish();
}

criterion_group!(benches, closed_loop, closed_form, recorded);
criterion_main!(benches);
