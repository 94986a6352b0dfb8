//! Replays one deployment many times, for instruction counts: `serving_once vllm 200`.

use planner_core::serving::deployment::Backend;
use planner_core::serving::engine::policy::Policy;
use planner_core::serving::engine::{Settings, Workspace, play};
use planner_core::serving::load::{Arrivals, Lengths, Load};
use planner_core::serving::outcome::Limits;
use planner_core::serving::steps::{Pass, StepTimes};

struct Times;

impl StepTimes for Times {
    fn decode_s(&self, n: f64, context: f64) -> f64 {
        let experts = 0.006 * (1.0 - (-0.03 * n).exp());
        0.003 + experts + 5e-6 * n + 1.2e-9 * n * context
    }
    fn prefill_s(&self, pass: &Pass) -> f64 {
        let context = pass.past + pass.tokens / pass.prompts / 2.0;
        (1.2e-5 * pass.tokens + 8e-10 * pass.tokens * context).hypot(0.012)
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let backend = match args.next().as_deref() {
        Some("sglang") => Backend::Sglang,
        Some("trtllm") => Backend::Trtllm,
        _ => Backend::Vllm,
    };
    let times: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(200);
    let policy = Policy {
        latency_s: 0.02,
        recv_interval: if backend == Backend::Sglang { 10 } else { 1 },
        ..Policy::new(backend, 256, 8192, 1 << 21)
    };
    let lengths = |tokens| Lengths { tokens, low: 0.8 };
    let load = Load {
        arrivals: Arrivals::Closed { concurrency: 64 },
        input: lengths(1024),
        output: lengths(1024),
        requests: None,
        prefix_hit_ratio: 0.0,
        acceptance: None,
        seed: 0,
    };
    let settings = Settings {
        workers: 1,
        routing: Default::default(),
        tabulate: true,
    };
    let (mut space, mut sum) = (Workspace::default(), 0.0);
    for _ in 0..times {
        let out = play(&policy, &Times, &load, &settings, &Limits::NONE, &mut space);
        sum += out.expect("a replay").ttft_s.mean;
    }
    println!("{:.6} s", sum / f64::from(times));
}
