//! Prefill and decode on engines of their own: queue, transfer, slots.
//!
//! ```text
//! send ─► least loaded prefill worker, first in first out, prompts of a pass up to its budget
//!      ─► the cache moves: one pull at a time over the links of either side
//!         end = max(start + t, pass end + t/G),  start ≥ pass end − pass·(1 − 1/G),  t = bytes/rate
//!      ─► least loaded decode worker: a slot and room in its pool, then decode steps undisturbed
//! ```
//!
//! The first token is shown when the request has its slot.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

use super::engine::policy::Policy;
use super::engine::replica::{Job, Replica, Rules, Until};
use super::steps::{Pass, StepTimes};

/// Links between the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From the end of the prefill to the first byte, and from the last byte to the slot, s.
    pub fixed_s: f64,
    /// Bytes of the cache per prompt token, whole model.
    pub token_bytes: f64,
    /// Bytes of the cache whatever the prompt.
    pub state_bytes: f64,
    /// Rate at which one request's cache moves, bytes/s.
    pub bytes_per_s: f64,
    /// Requests that leave a prefill worker at that rate at once: its attention replicas.
    pub sources: u32,
    /// Requests that reach a decode worker at that rate at once.
    pub sinks: u32,
    /// Groups of layers that move as they are done (1: all after the pass).
    pub layer_groups: u32,
}

/// The two pools.
#[derive(Debug)]
pub struct Split<'a, P: ?Sized, D: ?Sized> {
    /// Budget and limits of a prefill worker.
    pub prefill_policy: &'a Policy,
    /// Times of its passes.
    pub prefill_times: &'a P,
    /// Prefill workers.
    pub prefill_workers: u32,
    /// Rules of a decode worker; latencies outside the engines are those of its policy.
    pub decode: &'a Rules<'a, D>,
    /// Decode workers.
    pub decode_workers: u32,
    /// Between them.
    pub link: Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A request reaches the prefill pool.
    Arrive { job: u32 },
    /// A pass ends.
    Passed { worker: u32 },
    /// A request's cache has reached a decode worker.
    Land { job: u32, worker: u32 },
}

/// Time as ordered bits (no time is negative), number, event.
type Event = Reverse<(u64, u32, What)>;

/// State of a prefill worker.
#[derive(Debug, Default)]
struct Worker {
    queue: VecDeque<u32>,
    pass: Vec<u32>,
    tokens: u64,
    span_s: f64,
    busy_s: f64,
    link_free_s: f64,
}

/// Memory of replays, used again and again.
#[derive(Debug, Default)]
pub struct Space {
    events: BinaryHeap<Event>,
    workers: Vec<Worker>,
    /// Decode workers.
    pub replicas: Vec<Replica>,
    sinks: Vec<Sink>,
    ended: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sink {
    coming: u32,
    link_free_s: f64,
}

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// So many clients, each sends when its last request is answered.
    Clients(u32),
    /// At the times of the requests.
    Timed,
}

struct Replay<'a, P: ?Sized, D: ?Sized> {
    split: &'a Split<'a, P, D>,
    space: &'a mut Space,
    jobs: &'a mut [Job],
    next: usize,
    number: u32,
}

const NOTHING: Until = Until {
    start_s: f64::INFINITY,
    end_s: f64::NEG_INFINITY,
};

/// Plays `jobs`; gives the share of time that prefill workers compute.
pub fn play<P: StepTimes + ?Sized, D: StepTimes + ?Sized>(
    split: &Split<'_, P, D>,
    sending: Sending,
    jobs: &mut [Job],
    space: &mut Space,
) -> f64 {
    space.reset(split);
    let first = match sending {
        Sending::Clients(n) => n as usize,
        Sending::Timed => jobs.len(),
    };
    let mut replay = Replay {
        split,
        space,
        jobs,
        next: 0,
        number: 0,
    };
    for _ in 0..first {
        replay.send((sending != Sending::Timed).then_some(0.0));
    }
    while replay.event() {}
    let last_s = jobs.iter().map(|j| j.finish_s).fold(0.0, f64::max);
    let busy: f64 = space.workers.iter().map(|w| w.busy_s).sum();
    busy / (last_s.max(f64::MIN_POSITIVE) * f64::from(split.prefill_workers))
}

impl Space {
    fn reset<P: ?Sized, D: ?Sized>(&mut self, split: &Split<'_, P, D>) {
        let (sources, sinks) = (
            split.prefill_workers as usize,
            split.decode_workers as usize,
        );
        self.events.clear();
        self.workers.resize_with(sources, Worker::default);
        for w in &mut self.workers {
            w.queue.clear();
            w.pass.clear();
            (w.tokens, w.span_s, w.busy_s, w.link_free_s) = (0, 0.0, 0.0, 0.0);
        }
        self.replicas.resize_with(sinks, Replica::default);
        for r in &mut self.replicas {
            r.reset(split.decode.policy);
            r.idle();
        }
        self.sinks.clear();
        self.sinks.resize(sinks, Sink::default());
    }
}

impl<P: StepTimes + ?Sized, D: StepTimes + ?Sized> Replay<'_, P, D> {
    fn at(&mut self, time_s: f64, what: What) {
        self.number += 1;
        self.space
            .events
            .push(Reverse((time_s.max(0.0).to_bits(), self.number, what)));
    }

    /// The next request that fits is sent, now or at its own time.
    fn send(&mut self, now_s: Option<f64>) {
        while let Some(job) = self.jobs.get_mut(self.next) {
            if let Some(t) = now_s {
                job.send_s = t;
            }
            self.next += 1;
            if self.split.decode.fits(job) {
                let seen_s = self.split.decode.seen_s(job);
                let job = self.next as u32 - 1;
                self.at(seen_s, What::Arrive { job });
                return;
            }
        }
    }

    /// The next event of all; false if there is none.
    fn event(&mut self) -> bool {
        let mut sooner = (f64::INFINITY, 0);
        for (i, replica) in self.space.replicas.iter().enumerate() {
            if replica.horizon_s() < sooner.0 {
                sooner = (replica.horizon_s(), i);
            }
        }
        let event_s = self.space.events.peek().map(|e| f64::from_bits(e.0.0));
        if event_s.is_some_and(|t| t <= sooner.0) {
            if let Some(Reverse((bits, _, what))) = self.space.events.pop() {
                self.handle(f64::from_bits(bits), what);
            }
            return true;
        }
        if sooner.0.is_infinite() {
            return false;
        }
        self.decode(sooner.1, sooner.0);
        true
    }

    fn handle(&mut self, now_s: f64, what: What) {
        match what {
            What::Arrive { job } => {
                let least = |w: &Worker| w.tokens;
                let workers = &mut self.space.workers;
                let to = (0..workers.len())
                    .min_by_key(|i| least(&workers[*i]))
                    .unwrap_or(0);
                let worker = &mut workers[to];
                worker.tokens += u64::from(self.jobs[job as usize].input);
                worker.queue.push_back(job);
                if worker.pass.is_empty() {
                    self.start_pass(to, now_s);
                }
            }
            What::Passed { worker } => {
                self.finish_pass(worker as usize, now_s);
                self.start_pass(worker as usize, now_s);
            }
            What::Land { job, worker } => {
                let at = worker as usize;
                self.space.sinks[at].coming -= 1;
                self.space.replicas[at].offer(job, now_s);
                self.plan(at);
            }
        }
    }

    fn start_pass(&mut self, at: usize, now_s: f64) {
        let policy = self.split.prefill_policy;
        let worker = &mut self.space.workers[at];
        let (mut tokens, mut past) = (0, 0.0);
        while let Some(&id) = worker.queue.front() {
            let job = &mut self.jobs[id as usize];
            let new = job.input - job.hit;
            let full = worker.pass.len() >= policy.max_batch as usize;
            if !worker.pass.is_empty() && (full || tokens + new > policy.max_batched_tokens) {
                break;
            }
            worker.queue.pop_front();
            worker.pass.push(id);
            job.start_s = now_s;
            tokens += new;
            past += f64::from(new) * f64::from(job.hit);
        }
        if worker.pass.is_empty() {
            return;
        }
        let pass = Pass {
            tokens: f64::from(tokens),
            prompts: worker.pass.len() as f64,
            past: past / f64::from(tokens.max(1)),
        };
        worker.span_s = policy.host_s + self.split.prefill_times.prefill_s(&pass);
        worker.busy_s += worker.span_s;
        let end_s = now_s + worker.span_s;
        self.at(end_s, What::Passed { worker: at as u32 });
    }

    /// Sends the caches of a pass to decode workers.
    fn finish_pass(&mut self, at: usize, now_s: f64) {
        let mut pass = std::mem::take(&mut self.space.workers[at].pass);
        for id in pass.drain(..) {
            let job = &self.jobs[id as usize];
            self.space.workers[at].tokens -= u64::from(job.input);
            let replicas = &self.space.replicas;
            let load = |i: &usize| replicas[*i].load() + self.space.sinks[*i].coming as usize;
            let to = (0..replicas.len()).min_by_key(load).unwrap_or(0);
            let bytes =
                self.split.link.token_bytes * f64::from(job.input) + self.split.link.state_bytes;
            let land_s = self.pull(at, to, now_s, bytes);
            self.space.sinks[to].coming += 1;
            self.at(
                land_s,
                What::Land {
                    job: id,
                    worker: to as u32,
                },
            );
        }
        self.space.workers[at].pass = pass;
    }

    /// End of a transfer: one at a time over the links of either side.
    fn pull(&mut self, from: usize, to: usize, now_s: f64, bytes: f64) -> f64 {
        let link = &self.split.link;
        let groups = f64::from(link.layer_groups);
        let (source, sink) = (&mut self.space.workers[from], &mut self.space.sinks[to]);
        let span_s = bytes / link.bytes_per_s;
        let earliest = now_s - source.span_s * (1.0 - 1.0 / groups);
        let start_s = earliest.max(source.link_free_s).max(sink.link_free_s);
        let end_s = (start_s + span_s).max(now_s + span_s / groups);
        source.link_free_s = end_s - span_s * (1.0 - 1.0 / f64::from(link.sources));
        sink.link_free_s = end_s - span_s * (1.0 - 1.0 / f64::from(link.sinks));
        end_s + link.fixed_s
    }

    /// Plays a decode worker up to its next change, and plans the one after.
    fn decode(&mut self, at: usize, until_s: f64) {
        let until = Until {
            start_s: f64::INFINITY,
            end_s: until_s,
        };
        if self.advance(at, until) {
            self.plan(at);
        }
    }

    fn plan(&mut self, at: usize) {
        while self.advance(at, NOTHING) {}
    }

    /// True if something ended.
    fn advance(&mut self, at: usize, until: Until) -> bool {
        let mut ended = std::mem::take(&mut self.space.ended);
        ended.clear();
        let replica = &mut self.space.replicas[at];
        replica.forget_horizon();
        replica.advance(self.split.decode, self.jobs, until, &mut ended);
        let (now_s, any) = (replica.clock_s(), !ended.is_empty());
        for _ in 0..ended.len() {
            self.send(Some(now_s));
        }
        self.space.ended = ended;
        any
    }
}

/// Workers of the two pools that carry most requests a second on a number of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Match {
    /// Prefill workers.
    pub prefill: u32,
    /// Decode workers.
    pub decode: u32,
    /// Requests a second of the slower pool.
    pub requests_per_s: f64,
}

/// The best integers: most requests a second of the slower pool, then fewest GPUs. `rates`: requests
/// a second of one prefill and one decode worker; `gpus`: their GPUs. None if not one of each fits.
///
/// ```
/// use planner_core::serving::disagg::match_rates;
/// // A prefill worker of 4 GPUs does 6 requests/s, a decode worker of 8 GPUs 10: on 64 GPUs seven
/// // and four carry 40, six and five 36.
/// let best = match_rates([6.0, 10.0], [4, 8], 64).unwrap();
/// assert_eq!((best.prefill, best.decode, best.requests_per_s), (7, 4, 40.0));
/// ```
#[must_use]
pub fn match_rates(rates: [f64; 2], gpus: [u32; 2], most: u32) -> Option<Match> {
    let mut best: Option<(Match, u32)> = None;
    for prefill in 1..=most / gpus[0].max(1) {
        let room = (most - prefill * gpus[0]) / gpus[1].max(1);
        let wanted = (f64::from(prefill) * rates[0] / rates[1]).ceil();
        let decode = room.min(wanted.max(1.0) as u32);
        if decode == 0 {
            break;
        }
        let requests_per_s = (f64::from(prefill) * rates[0]).min(f64::from(decode) * rates[1]);
        let used = prefill * gpus[0] + decode * gpus[1];
        let better = best.is_none_or(|(b, n)| {
            requests_per_s > b.requests_per_s || (requests_per_s == b.requests_per_s && used < n)
        });
        if better {
            let found = Match {
                prefill,
                decode,
                requests_per_s,
            };
            best = Some((found, used));
        }
    }
    best.map(|(m, _)| m)
}

#[cfg(test)]
mod tests;
