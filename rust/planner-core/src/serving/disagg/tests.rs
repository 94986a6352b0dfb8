use proptest::prelude::*;

use super::{Link, Sending, Space, Split, play};
use crate::kv::transfer::exposed_s;
use crate::serving::deployment::Backend;
use crate::serving::engine::policy::Policy;
use crate::serving::engine::replica::{Job, Rules};
use crate::serving::engine::tests::{Linear, TIMES};
use crate::serving::steps::{Pass, StepTimes};

const LINK: Link = Link {
    fixed_s: 0.005,
    token_bytes: 70_000.0,
    state_bytes: 0.0,
    bytes_per_s: 20e9,
    sources: 1,
    sinks: 1,
    layer_groups: 1,
};

struct Setup {
    prefill: Policy,
    decode: Policy,
    workers: [u32; 2],
    link: Link,
}

fn setup() -> Setup {
    Setup {
        prefill: Policy::new(Backend::Trtllm, 64, 8192, 1 << 24),
        decode: Policy::new(Backend::Trtllm, 64, 8192, 1 << 24),
        workers: [1, 1],
        link: LINK,
    }
}

fn run(s: &Setup, sending: Sending, jobs: &mut [Job]) -> f64 {
    let decode = Rules {
        policy: &s.decode,
        times: &TIMES,
        decode_only: true,
    };
    let split: Split<'_, Linear, Linear> = Split {
        prefill_policy: &s.prefill,
        prefill_times: &TIMES,
        prefill_workers: s.workers[0],
        decode: &decode,
        decode_workers: s.workers[1],
        link: s.link,
    };
    play(&split, sending, jobs, &mut Space::default())
}

fn jobs(n: usize, input: u32, output: u32) -> Vec<Job> {
    vec![Job::new(0.0, input, 0, output); n]
}

fn mean(jobs: &[Job], f: impl Fn(&Job) -> f64) -> f64 {
    jobs.iter().map(f).sum::<f64>() / jobs.len() as f64
}

fn prefill_s(tokens: f64) -> f64 {
    TIMES.prefill_s(&Pass {
        tokens,
        prompts: 1.0,
        past: 0.0,
    })
}

#[test]
fn alone_it_is_prefill_transfer_and_steps() {
    for groups in [1, 16] {
        let mut s = setup();
        s.link.layer_groups = groups;
        let mut all = jobs(5, 4000, 100);
        run(&s, Sending::Clients(1), &mut all);
        let (prefill, moved) = (prefill_s(4000.0), 4000.0 * 70_000.0 / 20e9);
        let ttft = prefill + exposed_s(moved, prefill, f64::from(groups)) + 0.005;
        assert!(
            all.iter().all(|j| (j.ttft_s() - ttft).abs() < 1e-9),
            "{all:?}"
        );
        let decode = TIMES.decode_s(1.0, 4000.0 + 1.0 + 49.0);
        assert!((mean(&all, Job::tpot_s) / decode - 1.0).abs() < 1e-9);
    }
}

#[test]
fn decoding_is_not_disturbed() {
    let mut all = jobs(320, 4000, 200);
    run(&setup(), Sending::Clients(32), &mut all);
    let most = TIMES.decode_s(32.0, 4200.0);
    assert!(all.iter().all(|j| j.tpot_s() <= most));
}

#[test]
fn slots_queue_before_the_first_token() {
    let mut s = setup();
    let mut free = jobs(320, 1000, 200);
    run(&s, Sending::Clients(32), &mut free);
    s.decode.max_batch = 16;
    let mut tight = jobs(320, 1000, 200);
    run(&s, Sending::Clients(32), &mut tight);
    assert!(mean(&tight, Job::ttft_s) > 5.0 * mean(&free, Job::ttft_s));
}

#[test]
fn a_saturated_prefill_pool_leaves_what_littles_law_says() {
    // 64 clients, prefill 0.17 s each in passes of one: 64 · 0.17 s a round, less what decoding takes.
    let mut all = jobs(640, 8000, 50);
    let busy = run(&setup(), Sending::Clients(64), &mut all);
    assert!(busy > 0.9, "{busy}");
    let round = 64.0 * prefill_s(8000.0);
    let late = &all[64..576];
    let latency = mean(late, |j| j.finish_s - j.send_s);
    assert!((latency / round - 1.0).abs() < 0.02, "{latency} {round}");
}

#[test]
fn pulls_share_the_links() {
    let mut s = setup();
    s.link.bytes_per_s = 1e9;
    s.workers = [4, 1];
    let mut all = jobs(4, 1000, 50);
    run(&s, Sending::Clients(4), &mut all);
    let mut ends: Vec<f64> = all.iter().map(Job::ttft_s).collect();
    ends.sort_by(f64::total_cmp);
    // Four passes end together; their caches reach the one decode worker one after the other.
    assert!(ends[3] - ends[0] > 2.9 * 0.07, "{ends:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_request_ends_once(
        lengths in prop::collection::vec((1u32..4000, 1u32..200), 1..120),
        clients in 1u32..40, workers in (1u32..5, 1u32..5), slots in 1u32..40,
        groups in 1u32..20,
    ) {
        let mut s = setup();
        s.workers = workers.into();
        (s.decode.max_batch, s.link.layer_groups) = (slots, groups);
        let fresh: Vec<Job> = lengths.iter().map(|(i, o)| Job::new(0.0, *i, 0, *o)).collect();
        let (mut one, mut again) = (fresh.clone(), fresh.clone());
        run(&s, Sending::Clients(clients), &mut one);
        run(&s, Sending::Clients(clients), &mut again);
        prop_assert_eq!(format!("{one:?}"), format!("{again:?}"));
        for j in &one {
            prop_assert!(j.start_s >= j.send_s && j.first_s > j.start_s && j.finish_s >= j.first_s);
            prop_assert!(j.finish_s.is_finite());
        }
    }

    #[test]
    fn timed_requests_all_end(gaps in prop::collection::vec(0.0f64..0.2, 1..100), workers in 1u32..4) {
        let mut s = setup();
        s.workers = [workers, workers];
        let mut now = 0.0;
        let mut all: Vec<Job> = gaps.iter().map(|g| { now += g; Job::new(now, 900, 0, 30) }).collect();
        run(&s, Sending::Timed, &mut all);
        prop_assert!(all.iter().all(|j| j.finish_s > j.first_s && j.first_s > j.send_s));
    }
}
