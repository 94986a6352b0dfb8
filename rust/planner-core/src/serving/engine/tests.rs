use proptest::prelude::*;

use super::policy::Policy;
use super::{Settings, Workspace, play};
use crate::serving::deployment::Backend;
use crate::serving::load::{Arrivals, Lengths, Load};
use crate::serving::outcome::{Limits, Outcome};
use crate::serving::steps::{Pass, StepTimes};

/// Step times linear in everything.
pub(crate) struct Linear {
    pub base_s: f64,
    pub prefill_token_s: f64,
    pub sequence_s: f64,
    pub context_s: f64,
}

impl StepTimes for Linear {
    fn decode_s(&self, n: f64, c: f64) -> f64 {
        self.base_s + self.sequence_s * n + self.context_s * n * c
    }
    fn prefill_s(&self, p: &Pass) -> f64 {
        self.base_s + self.prefill_token_s * p.tokens
    }
}

pub(crate) const TIMES: Linear = Linear {
    base_s: 0.01,
    prefill_token_s: 2e-5,
    sequence_s: 5e-5,
    context_s: 2e-9,
};

const BACKENDS: [Backend; 3] = [Backend::Vllm, Backend::Sglang, Backend::Trtllm];

pub(crate) fn load(concurrency: u32, input: u32, output: u32) -> Load {
    Load {
        arrivals: Arrivals::Closed { concurrency },
        input: Lengths {
            tokens: input,
            low: 0.8,
        },
        output: Lengths {
            tokens: output,
            low: 0.8,
        },
        requests: None,
        prefix_hit_ratio: 0.0,
        acceptance: None,
        seed: 7,
    }
}

fn open(rate_per_s: f64, requests: u32) -> Load {
    Load {
        arrivals: Arrivals::Open {
            rate_per_s,
            cv: 1.0,
        },
        requests: Some(requests),
        ..load(1, 1000, 200)
    }
}

const ONE: Settings = Settings {
    workers: 1,
    routing: super::drive::Routing::LeastLoaded,
    tabulate: false,
};

fn policy(backend: Backend) -> Policy {
    Policy::new(backend, 256, 8192, 4_000_000)
}

fn run(policy: &Policy, load: &Load) -> (Outcome, Workspace) {
    let mut space = Workspace::default();
    let out = play(policy, &TIMES, load, &ONE, &Limits::NONE, &mut space).unwrap();
    (out, space)
}

#[test]
fn alone_a_request_is_its_prefill_and_its_steps() {
    for backend in BACKENDS {
        let mut load = load(1, 1000, 100);
        (load.input.low, load.output.low) = (1.0, 1.0);
        let (out, _) = run(&policy(backend), &load);
        let decode = TIMES.decode_s(1.0, 1000.0 + 1.0 + 49.0);
        assert!(
            (out.ttft_s.mean - 0.03).abs() < 1e-12,
            "{backend:?} {out:?}"
        );
        assert!(
            (out.tpot_s.mean / decode - 1.0).abs() < 1e-9,
            "{backend:?} {out:?}"
        );
        assert_eq!((out.requests, out.rejected, out.saturated), (10, 0, false));
    }
}

#[test]
fn two_clients_of_vllm_by_hand() {
    // Both prompts share the first step; all later steps decode two, until both end together.
    let mut load = load(2, 1000, 11);
    (load.input.low, load.output.low, load.requests) = (1.0, 1.0, Some(2));
    let (out, _) = run(&policy(Backend::Vllm), &load);
    assert!((out.ttft_s.max - (0.01 + 2e-5 * 2000.0)).abs() < 1e-12);
    let decode = TIMES.decode_s(2.0, 1000.0 + 1.0 + 4.5);
    assert!((out.tpot_s.max / decode - 1.0).abs() < 1e-12);
}

#[test]
fn decoding_stands_still_in_sglang_and_goes_on_in_the_others() {
    let load = load(16, 4000, 200);
    let sglang = run(&policy(Backend::Sglang), &load).0.tpot_s.mean;
    for backend in [Backend::Vllm, Backend::Trtllm] {
        let mut p = policy(backend);
        for share in [0.0, 0.5] {
            p.decode_share = share;
            assert!(
                run(&p, &load).0.tpot_s.mean < 0.99 * sglang,
                "{backend:?} {share}"
            );
        }
    }
}

#[test]
fn a_long_poll_makes_requests_wait() {
    let mut p = policy(Backend::Sglang);
    p.latency_s = 0.05;
    let often = run(&p, &load(16, 1000, 200)).0;
    p.recv_interval = 30;
    let rarely = run(&p, &load(16, 1000, 200)).0;
    assert!(
        rarely.ttft_s.mean > often.ttft_s.mean + 0.05,
        "{often:?} {rarely:?}"
    );
}

#[test]
fn slots_queue_and_saturate() {
    let mut p = policy(Backend::Trtllm);
    p.max_batch = 8;
    let (out, _) = run(&p, &load(16, 1000, 200));
    assert!(out.saturated && out.peak_running == 8);
    assert!(out.ttft_s.mean > 1.0);
}

#[test]
fn a_small_pool_preempts_or_reserves() {
    for backend in BACKENDS {
        let mut p = policy(backend);
        p.kv_tokens = 20_000;
        let (out, space) = run(&p, &load(32, 1000, 800));
        assert_eq!(
            out.preemptions > 0,
            backend != Backend::Trtllm,
            "{backend:?} {out:?}"
        );
        assert!(out.saturated && out.peak_kv_ratio > 0.85);
        assert!(space.jobs().iter().all(|j| j.finish_s > j.first_s));
    }
}

#[test]
fn sglang_retracts() {
    let mut p = policy(Backend::Sglang);
    p.kv_tokens = 20_000;
    p.reserve = super::policy::Reserve::Expected {
        first: 0.05,
        least: 0.01,
        steps: 100.0,
    };
    let (out, space) = run(&p, &load(32, 500, 1500));
    assert!(out.preemptions > 0);
    assert!(space.jobs().iter().all(|j| j.finish_s > j.first_s));
}

#[test]
fn what_never_fits_is_rejected() {
    for backend in BACKENDS {
        let mut p = policy(backend);
        p.kv_tokens = 950;
        let (out, _) = run(&p, &load(4, 1000, 100));
        assert!(out.rejected > 0 && out.rejected < 40, "{out:?}");
        p.kv_tokens = 100;
        let (out, _) = run(&p, &load(4, 1000, 100));
        assert_eq!((out.rejected, out.output_tokens_per_s), (40, 0.0));
    }
}

#[test]
fn ranks_wait_for_each_other() {
    let mut p = policy(Backend::Trtllm);
    let at_once = run(&p, &load(32, 1000, 200)).0;
    (p.attention_dp, p.dp_wait_steps) = (8, 50);
    let (out, space) = run(&p, &load(32, 1000, 200));
    assert!(out.ttft_s.mean > at_once.ttft_s.mean);
    assert!(space.jobs().iter().all(|j| j.finish_s.is_finite()));
}

#[test]
fn speculation_shortens_answers() {
    let mut p = policy(Backend::Vllm);
    let plain = run(&p, &load(8, 1000, 400)).0;
    p.tokens_per_step = 2.5;
    let quick = run(&p, &load(8, 1000, 400)).0;
    let ratio = plain.tpot_s.mean / quick.tpot_s.mean;
    assert!((1.9..2.6).contains(&ratio), "{ratio}");
}

#[test]
fn an_open_loop_below_and_above_capacity() {
    for backend in BACKENDS {
        let p = policy(backend);
        let calm = run(&p, &open(2.0, 2000)).0;
        assert!(!calm.saturated && calm.ttft_s.p90 < 0.5, "{calm:?}");
        let flooded = run(&p, &open(60.0, 4000)).0;
        assert!(flooded.saturated, "{flooded:?}");
    }
}

#[test]
fn bad_policies_and_loads() {
    let mut space = Workspace::default();
    let mut p = policy(Backend::Vllm);
    p.max_batch = 0;
    assert!(
        play(
            &p,
            &TIMES,
            &load(1, 10, 10),
            &ONE,
            &Limits::NONE,
            &mut space
        )
        .is_err()
    );
    let p = policy(Backend::Vllm);
    for bad in [
        load(0, 10, 10),
        load(1, 0, 10),
        load(1, 10, 0),
        open(0.0, 10),
    ] {
        assert!(play(&p, &TIMES, &bad, &ONE, &Limits::NONE, &mut space).is_err());
    }
}

fn shapes() -> impl Strategy<Value = (Policy, Load, u32)> {
    let numbers = (
        1u32..40,
        1u32..3000,
        1u32..300,
        1u32..40,
        3_300u64..60_000,
        0usize..3,
    );
    let knobs = (
        1u32..31,
        1.0f64..3.0,
        1u32..9,
        1u32..5,
        0.0f64..0.2,
        any::<bool>(),
    );
    (numbers, knobs).prop_map(
        |((c, input, output, slots, kv, b), (poll, tau, dp, workers, lat, closed))| {
            let mut p = Policy::new(BACKENDS[b], slots, 2048, kv);
            (p.recv_interval, p.tokens_per_step, p.attention_dp) = (poll, tau, dp);
            (p.dp_wait_steps, p.latency_s) = (20, lat);
            let mut l = load(c, input, output);
            if !closed {
                l.arrivals = Arrivals::Open {
                    rate_per_s: f64::from(c),
                    cv: 1.0,
                };
                l.requests = Some(200);
            }
            (p, l, workers)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn every_request_ends_once_and_in_order((p, l, workers) in shapes()) {
        let mut space = Workspace::default();
        let settings = Settings { workers, ..ONE };
        let out = play(&p, &TIMES, &l, &settings, &Limits::NONE, &mut space).unwrap();
        prop_assert_eq!(out.rejected, 0);
        for j in space.jobs() {
            prop_assert!(j.start_s >= j.send_s + p.latency_s - 1e-9, "{:?}", j);
            prop_assert!(j.first_s > j.start_s && j.finish_s >= j.first_s, "{:?}", j);
        }
        // Prompts are computed once, and again only after a preemption.
        let prompts: u64 = space.jobs().iter().map(|j| u64::from(j.input)).sum();
        let computed: u64 = space.replicas.iter().map(|r| r.books.prompt_tokens).sum();
        if out.preemptions == 0 {
            prop_assert_eq!(prompts, computed);
        } else {
            prop_assert!(computed > prompts);
        }
        // The same input gives the same bytes.
        let again = play(&p, &TIMES, &l, &settings, &Limits::NONE, &mut space).unwrap();
        prop_assert_eq!(format!("{out:?}"), format!("{again:?}"));
    }

    #[test]
    fn running_is_rate_times_time((p, l, _) in shapes()) {
        // Little's law, exactly: the integral of running requests is the sum of their times.
        let mut space = Workspace::default();
        let out = play(&p, &TIMES, &l, &ONE, &Limits::NONE, &mut space).unwrap();
        prop_assume!(out.preemptions == 0);
        let held: f64 = space.jobs().iter().map(|j| j.finish_s - j.start_s).sum();
        let area: f64 = space.replicas.iter().map(|r| r.books.area_s).sum();
        prop_assert!((area / held - 1.0).abs() < 1e-6, "{} {}", area, held);
    }

    #[test]
    fn longer_prompts_wait_longer(c in 1u32..64, input in 200u32..3000, b in 0usize..3) {
        let p = policy(BACKENDS[b]);
        let short = run(&p, &load(c, input, 200)).0;
        let long = run(&p, &load(c, input * 3 / 2, 200)).0;
        prop_assert!(long.ttft_s.mean >= short.ttft_s.mean * 0.999, "{:?} {:?}", short, long);
    }

    #[test]
    fn more_engines_are_never_worse(c in 2u32..64, b in 0usize..3, workers in 1u32..5) {
        let mut space = Workspace::default();
        let p = policy(BACKENDS[b]);
        let mut go = |workers| {
            let s = Settings { workers, ..ONE };
            play(&p, &TIMES, &load(c, 2000, 300), &s, &Limits::NONE, &mut space).unwrap()
        };
        let (few, many) = (go(workers), go(workers * 2));
        prop_assert!(many.output_tokens_per_s >= few.output_tokens_per_s * 0.99);
        prop_assert!(many.tpot_s.mean <= few.tpot_s.mean * 1.01);
    }
}
