//! What a replay or the closed form says of a deployment under a load.

use serde::{Deserialize, Serialize};

pub use super::timeline::{REQUESTS, TIMELINE, request_table, timeline_table};

use super::engine::books::Books;
use super::engine::replica::Job;
use crate::stats::Quantiles;

/// Limits of a service level: a request is good if it keeps both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Longest time to first token, s.
    pub ttft_s: f64,
    /// Longest time per output token, s.
    pub tpot_s: f64,
}

impl Limits {
    /// No limit.
    pub const NONE: Self = Self {
        ttft_s: f64::INFINITY,
        tpot_s: f64::INFINITY,
    };
}

/// A deployment under a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests sent.
    pub requests: u32,
    /// Those that fit no pool; they are in no mean.
    pub rejected: u32,
    /// First token − send, s.
    pub ttft_s: Quantiles,
    /// (Last token − first token) / (tokens − 1), s, over requests of two tokens and more.
    pub tpot_s: Quantiles,
    /// From send to admission, mean, s.
    pub queue_s: f64,
    /// From first send to last token, s.
    pub makespan_s: f64,
    /// Requests a second. Closed loop: clients over the mean time of a request (Little's law), so
    /// neither the start nor the end counts; otherwise requests over makespan.
    pub requests_per_s: f64,
    /// Tokens of answers a second, likewise.
    pub output_tokens_per_s: f64,
    /// Requests a second that keep both limits.
    pub goodput_per_s: f64,
    /// Share of requests that keep both limits.
    pub good_ratio: f64,
    /// Requests that run, mean over time and engines.
    pub mean_running: f64,
    /// Most requests that decoded at once in an engine.
    pub peak_running: u32,
    /// Highest share of a KV pool that was held.
    pub peak_kv_ratio: f64,
    /// Times that a request lost its blocks.
    pub preemptions: u32,
    /// Share of time in which a request that the engine had seen found no slot or no room.
    pub blocked_ratio: f64,
    /// More is asked than the deployment gives: in a closed loop requests wait for slots or room
    /// for more than 5 % of the time; in an open loop the queue grows without bound, and latencies
    /// say only how long the replay was.
    pub saturated: bool,
}

/// Share of blocked time above which a closed loop counts as saturated.
const BLOCKED: f64 = 0.05;
/// Growth of the number of open requests, over arrivals, above which an open loop does.
const GROWTH: f64 = 0.05;

/// Requests of one engine and how many engines do the same.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// Its requests.
    pub jobs: &'a [Job],
    /// Its clients: the first so many requests are the start burst.
    pub clients: u32,
    /// Engines like it.
    pub engines: u32,
}

impl Share<'_> {
    /// What a request stands for: the burst is a tenth of all, also where fewer than ten requests a
    /// client were played.
    fn weights(&self) -> (usize, f64, f64) {
        let (n, first) = (
            self.jobs.len(),
            (self.clients as usize).min(self.jobs.len()),
        );
        let all = f64::from(self.engines) * f64::from(self.clients);
        if n <= first {
            return (first, all / n.max(1) as f64, 0.0);
        }
        (
            first,
            0.1 * all / first as f64,
            0.9 * all / (n - first) as f64,
        )
    }
}

/// Sums over requests of a closed loop, weighted.
#[derive(Default)]
struct Sums {
    weight: f64,
    latency: f64,
    output: f64,
    queue: f64,
    good: f64,
    makespan_s: f64,
    sent: u32,
    rejected: u32,
}

impl Sums {
    #[inline]
    fn add(&mut self, job: &Job, [ttft_s, tpot_s]: [f64; 2], weight: f64, limits: &Limits) {
        self.weight += weight;
        self.latency += weight * (job.finish_s - job.send_s);
        self.output += weight * f64::from(job.output);
        self.queue += weight * (job.start_s - job.send_s);
        let good = ttft_s <= limits.ttft_s && (job.output == 1 || tpot_s <= limits.tpot_s);
        self.good += if good { weight } else { 0.0 };
        self.makespan_s = self.makespan_s.max(job.finish_s);
    }
}

/// Room for the values of a quantile.
#[derive(Debug, Default)]
pub struct Scratch {
    plain: [Vec<f64>; 2],
    /// Σ of the plain values.
    sums: [f64; 2],
    weighted: [Vec<(f64, f64)>; 2],
}

impl Outcome {
    /// Of a closed loop: engines with their own clients.
    #[must_use]
    pub fn closed(shares: &[Share<'_>], limits: &Limits, scratch: &mut Scratch) -> Self {
        let plain = shares.len() == 1 && {
            let (_, first, rest) = shares[0].weights();
            (first - rest).abs() < 1e-9 * first
        };
        scratch.clear();
        let mut sums = Sums::default();
        for share in shares {
            let (burst, first, rest) = share.weights();
            sums.sent += share.jobs.len() as u32 * share.engines;
            for (i, job) in share.jobs.iter().enumerate() {
                if job.finish_s.is_nan() {
                    sums.rejected += share.engines;
                    continue;
                }
                let weight = if i < burst { first } else { rest };
                let times_s = [job.ttft_s(), job.tpot_s()];
                sums.add(job, times_s, weight, limits);
                scratch.push(job, times_s, (!plain).then_some(weight));
            }
        }
        let clients: u32 = shares.iter().map(|s| s.clients * s.engines).sum();
        let rate = if sums.latency > 0.0 {
            f64::from(clients) * sums.weight / sums.latency
        } else {
            0.0
        };
        let [ttft_s, tpot_s] = scratch.quantiles(plain);
        let mut out = Self {
            ttft_s,
            tpot_s,
            ..Self::default()
        };
        out.fill(&sums, rate);
        out
    }

    /// Of requests that came on their own.
    #[must_use]
    pub fn open(jobs: &[Job], limits: &Limits, scratch: &mut Scratch) -> Self {
        scratch.clear();
        let mut sums = Sums {
            sent: jobs.len() as u32,
            ..Sums::default()
        };
        for job in jobs {
            if job.finish_s.is_nan() {
                sums.rejected += 1;
                continue;
            }
            let times_s = [job.ttft_s(), job.tpot_s()];
            sums.add(job, times_s, 1.0, limits);
            scratch.push(job, times_s, None);
        }
        let span_s = sums.makespan_s - jobs.first().map_or(0.0, |j| j.send_s);
        let rate = if span_s > 0.0 {
            sums.weight / span_s
        } else {
            0.0
        };
        let [ttft_s, tpot_s] = scratch.quantiles(true);
        let mut out = Self {
            ttft_s,
            tpot_s,
            saturated: grows(jobs),
            ..Self::default()
        };
        out.fill(&sums, rate);
        out.makespan_s = span_s;
        out
    }

    fn fill(&mut self, sums: &Sums, rate: f64) {
        let weight = sums.weight.max(f64::MIN_POSITIVE);
        self.requests = sums.sent;
        self.rejected = sums.rejected;
        self.queue_s = sums.queue / weight;
        self.makespan_s = sums.makespan_s;
        self.requests_per_s = rate;
        self.output_tokens_per_s = rate * sums.output / weight;
        self.good_ratio = sums.good / weight;
        self.goodput_per_s = rate * self.good_ratio;
    }

    /// Adds what the engines saw; `closed`: time blocked marks saturation.
    pub fn book<'a>(
        &mut self,
        books: impl Iterator<Item = &'a Books>,
        kv_tokens: u64,
        closed: bool,
    ) {
        let (mut blocked, mut area, mut engines) = (0.0, 0.0, 0.0);
        for b in books {
            self.peak_running = self.peak_running.max(b.peak_running);
            let share = b.peak_held / (kv_tokens as f64).max(1.0);
            self.peak_kv_ratio = self.peak_kv_ratio.max(share.min(1.0));
            self.preemptions += b.preemptions;
            blocked += b.blocked_s;
            area += b.area_s;
            engines += 1.0;
        }
        let span_s = self.makespan_s.max(f64::MIN_POSITIVE) * f64::max(engines, 1.0);
        self.blocked_ratio = blocked / span_s;
        self.mean_running = area / span_s;
        if closed {
            self.saturated = self.blocked_ratio > BLOCKED;
        }
    }
}

/// Whether the number of open requests grew over the second half of the arrivals by more than a
/// twentieth of the requests that came in it.
fn grows(jobs: &[Job]) -> bool {
    let (Some(first), Some(last)) = (jobs.first(), jobs.last()) else {
        return false;
    };
    let (half_s, end_s) = ((first.send_s + last.send_s) / 2.0, last.send_s);
    let open_at = |t: f64| {
        jobs.iter()
            .filter(|j| j.send_s <= t && j.finish_s > t)
            .count() as f64
    };
    let came = jobs.iter().filter(|j| j.send_s > half_s).count() as f64;
    open_at(end_s) - open_at(half_s) > GROWTH * came + 3.0 * came.sqrt()
}

impl Scratch {
    fn clear(&mut self) {
        self.plain.iter_mut().for_each(Vec::clear);
        self.weighted.iter_mut().for_each(Vec::clear);
        self.sums = [0.0; 2];
    }

    #[inline]
    fn push(&mut self, job: &Job, times_s: [f64; 2], weight: Option<f64>) {
        let counted = 1 + usize::from(job.output > 1);
        for (i, time_s) in times_s.into_iter().enumerate().take(counted) {
            if let Some(w) = weight {
                self.weighted[i].push((time_s, w));
            } else {
                self.plain[i].push(time_s);
                self.sums[i] += time_s;
            }
        }
    }

    fn quantiles(&mut self, plain: bool) -> [Quantiles; 2] {
        if plain {
            let [ttft, tpot] = &mut self.plain;
            let [a, b] = self.sums;
            [Quantiles::select(ttft, a), Quantiles::select(tpot, b)]
        } else {
            self.weighted.each_mut().map(|v| Quantiles::weighted(v))
        }
    }
}
