//! Drivers: who sends the next request when, and to which engine.

use serde::{Deserialize, Serialize};

use super::replica::{Job, Replica, Rules};
use crate::serving::steps::StepTimes;

/// Which engine a request goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// The one with fewest unfinished requests, of equal ones the first.
    #[default]
    LeastLoaded,
    /// One after the other.
    RoundRobin,
}

impl<T: StepTimes + ?Sized> Rules<'_, T> {
    /// When the engine can see a request.
    #[inline]
    #[must_use]
    pub fn seen_s(&self, job: &Job) -> f64 {
        let policy = self.policy;
        job.send_s + policy.latency_s + policy.token_latency_s * f64::from(job.input)
    }

    /// Whether a request fits the pool at all.
    #[inline]
    #[must_use]
    pub fn fits(&self, job: &Job) -> bool {
        u64::from(job.input) + u64::from(job.output) <= self.policy.kv_tokens
    }
}

/// Plays `jobs` with `clients` that send their next request when the last is answered; all start
/// at 0. Requests that fit no pool are dropped (their `finish_s` stays NaN).
pub fn closed<T: StepTimes + ?Sized>(
    rules: &Rules<'_, T>,
    clients: u32,
    replica: &mut Replica,
    jobs: &mut [Job],
    ended: &mut Vec<u32>,
) {
    let mut next = 0;
    let mut send = |replica: &mut Replica, jobs: &mut [Job], now_s: f64| {
        while let Some(job) = jobs.get_mut(next) {
            job.send_s = now_s;
            next += 1;
            if rules.fits(job) {
                replica.offer(next as u32 - 1, rules.seen_s(job));
                return;
            }
        }
    };
    replica.reset(rules.policy);
    for _ in 0..clients {
        send(replica, jobs, 0.0);
    }
    loop {
        ended.clear();
        replica.run(rules, jobs, f64::INFINITY, ended);
        if ended.is_empty() {
            return;
        }
        for _ in 0..ended.len() {
            send(replica, jobs, replica.clock_s());
        }
    }
}

/// Plays `jobs`, in order of sending, on several engines. `hit` gives the prompt tokens that an
/// engine has cached when a request is sent to it.
pub fn open<T: StepTimes + ?Sized>(
    rules: &Rules<'_, T>,
    routing: Routing,
    replicas: &mut [Replica],
    jobs: &mut [Job],
    hit: &mut dyn FnMut(usize, usize) -> Option<u32>,
) {
    let mut ended = Vec::new();
    replicas.iter_mut().for_each(|r| r.reset(rules.policy));
    for i in 0..jobs.len() {
        if !rules.fits(&jobs[i]) {
            continue;
        }
        let now_s = jobs[i].send_s;
        let to = match routing {
            Routing::RoundRobin => i % replicas.len(),
            Routing::LeastLoaded => least_loaded(rules, replicas, jobs, now_s, &mut ended),
        };
        if let Some(tokens) = hit(to, i) {
            jobs[i].hit = tokens.min(jobs[i].input - 1);
        }
        let seen_s = rules.seen_s(&jobs[i]);
        let replica = &mut replicas[to];
        play_until(rules, replica, jobs, now_s, &mut ended);
        replica.offer(i as u32, seen_s);
    }
    for replica in replicas {
        play_until(rules, replica, jobs, f64::INFINITY, &mut ended);
    }
}

fn least_loaded<T: StepTimes + ?Sized>(
    rules: &Rules<'_, T>,
    replicas: &mut [Replica],
    jobs: &mut [Job],
    now_s: f64,
    ended: &mut Vec<u32>,
) -> usize {
    let mut best = (usize::MAX, 0);
    for (i, replica) in replicas.iter_mut().enumerate() {
        play_until(rules, replica, jobs, now_s, ended);
        best = best.min((replica.load(), i));
    }
    best.1
}

/// Plays everything that happens before `limit_s`.
#[inline]
fn play_until<T: StepTimes + ?Sized>(
    rules: &Rules<'_, T>,
    replica: &mut Replica,
    jobs: &mut [Job],
    limit_s: f64,
    ended: &mut Vec<u32>,
) {
    while replica.horizon_s() < limit_s {
        ended.clear();
        replica.run(rules, jobs, limit_s, ended);
    }
}
