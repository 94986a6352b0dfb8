//! Prefill and decode engines apart.
//!
//! A prefill engine comes down to two numbers: GPUs, and the requests a second that it takes while
//! the time to first token keeps its limit. A decode engine with n clients comes down to GPUs, time
//! per output token, and requests a second. With workers x and y the deployment gives
//! min(x·μ_p, y·μ_d); fewer decode clients than n are looked at as settings of their own, so only
//! pairs whose prefill keeps up, x = ⌈y·μ_d/μ_p⌉, need to be compared. Prefill engines are taken in
//! the order of GPUs per request, and no further than a continuous bound allows.

use super::Options;
use rayon::prelude::*;

use super::account::{Example, Tally, obeying, product};
use super::agg::{judge, overshoot};
use super::bound::Bar;
use super::costed::{Costed, Ready, SideOf};
use super::kept::{Kept, Point, density};
use super::request::Job;
use super::traffic::Demand;
use crate::serving::closed::Arrivals;
use crate::serving::deployment::{Engine, Pool};
use crate::serving::engine::policy::Policy;
use crate::serving::space::copies::Histogram;
use crate::serving::space::{Side, Status};
use crate::serving::steps::{Pass, StepTimes};

/// Share of a prefill engine's time that is planned for at most: the closed form of a queue says
/// little beyond.
const BUSIEST: f64 = 0.9;

/// Share of a closed loop's requests that belong to the burst at its start.
const BURST: f64 = 0.1;

/// A prefill engine with its flags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub engine: Engine,
    /// Number of its layout.
    pub number: u32,
    gpus: f64,
    /// Pass of one prompt, s.
    one_s: f64,
    /// Requests a second at full passes.
    pub most_per_s: f64,
    /// Requests a second within the limit on the time to first token.
    rate_per_s: f64,
    /// Outside the queue and the pass: client, transfer, s.
    outside_s: f64,
}

/// Prefill engines that can keep the limit, in the order of GPUs per request.
#[derive(Debug)]
pub(super) struct Sources {
    pub list: Vec<Source>,
    /// The same, by GPUs.
    count: Histogram,
}

impl Source {
    /// Time to first token when one engine takes so many requests a second, s. A tenth are those of
    /// a closed loop's clients that start together, as in a replay (0: they come on their own).
    fn ttft_s(&self, rate_per_s: f64, start: f64) -> f64 {
        let busy = (rate_per_s * self.one_s).min(0.95);
        let steady_s = self.outside_s + self.one_s + busy * self.one_s / (2.0 * (1.0 - busy));
        let burst_s = self.outside_s + start / self.most_per_s / 2.0;
        steady_s + BURST * (burst_s - steady_s).max(0.0)
    }

    fn new(
        job: &Job,
        side: &SideOf,
        costed: &Costed,
        engine: &Engine,
        policy: &Policy,
        kv: f64,
    ) -> Self {
        let mean = job.traffic.mean(Arrivals::Clients(1.0), kv);
        let new = (mean.input - mean.hit).max(1.0);
        let pass_s = |prompts: f64| {
            let pass = Pass {
                tokens: new * prompts,
                prompts,
                past: mean.hit,
            };
            costed.costs.prefill_s(&pass) + policy.host_s
        };
        let together = (f64::from(engine.max_batched_tokens) / new)
            .floor()
            .max(1.0);
        let (one_s, full_s) = (pass_s(1.0), pass_s(together) / together);
        let software = job.software(side.kind.backend);
        let (bytes, _) = job.cache_bytes(&side.kind, mean.input);
        let outside_s = policy.latency_s
            + policy.token_latency_s * mean.input
            + software.transfer_s
            + bytes / software.transfer_bytes_per_s;
        let mut source = Self {
            engine: *engine,
            number: costed.number,
            gpus: f64::from(engine.gpus()),
            one_s,
            most_per_s: 1.0 / full_s.min(one_s),
            rate_per_s: 0.0,
            outside_s,
        };
        source.rate_per_s = source.within(job.goal.ttft_limit_s());
        source
    }

    /// Most requests a second that keep a limit on the time to first token.
    fn within(&self, limit_s: f64) -> f64 {
        let wait_s = limit_s - self.outside_s - self.one_s;
        if wait_s <= 0.0 {
            return 0.0;
        }
        // wait = ρ·s / (2(1 − ρ)), ρ = λ·s
        let busy = if wait_s.is_finite() {
            let w = 2.0 * wait_s / self.one_s;
            (w / (1.0 + w)).min(BUSIEST)
        } else {
            BUSIEST
        };
        (busy / self.one_s).max(if busy >= BUSIEST {
            BUSIEST * self.most_per_s
        } else {
            0.0
        })
    }
}

/// Prefill engines; what the others lack is counted for every decode engine beside them.
pub(super) fn sources(job: &Job, side: &SideOf, tally: &mut Tally, decode: &SideOf) -> Sources {
    let others = obeying(&decode.engines);
    let mut found = Sources {
        list: Vec::new(),
        count: Histogram::default(),
    };
    let parts: Vec<(Vec<Source>, Tally)> = side
        .costed
        .par_iter()
        .map(|costed| {
            let (mut one, mut count) = (Histogram::default(), Tally::default());
            one.add(costed.engine.gpus(), 1);
            let beside = product(job, &one, &others, true);
            let found = settings(job, side, costed, beside, &mut count);
            (found, count)
        })
        .collect();
    for (list, count) in parts {
        for source in &list {
            found.count.add(source.engine.gpus(), 1);
        }
        found.list.extend(list);
        *tally = std::mem::take(tally).merge(count);
    }
    // Of engines of as many GPUs one that takes fewer requests, steadily and in a burst, is never in
    // the best pair.
    // Stable: of equal engines the first of the space.
    let need = |s: &Source| s.gpus / s.rate_per_s;
    found.list.sort_by(|a, b| need(a).total_cmp(&need(b)));
    let mut seen = std::collections::BTreeMap::new();
    found.list.retain(|s| {
        let most = seen.entry(s.engine.gpus()).or_insert(0.0);
        let more = s.most_per_s > *most;
        *most = s.most_per_s.max(*most);
        more
    });
    found
}

/// Settings of a prefill layout that can keep the limit.
fn settings(
    job: &Job,
    side: &SideOf,
    costed: &Costed,
    beside: u128,
    tally: &mut Tally,
) -> Vec<Source> {
    let flags = side.flags(&costed.engine);
    let lean = side.leanest(&costed.engine);
    if let Some(status) = side.lacks(job, &lean, &side.memory(job, &lean)) {
        tally.lacks(status, beside * flags.len() as u128);
        return Vec::new();
    }
    let mut found = Vec::new();
    for &block_tokens in &flags.blocks {
        for &max_batched_tokens in &flags.budgets {
            let base = Engine {
                max_batched_tokens,
                block_tokens,
                ..costed.engine
            };
            let cache = side.cache(job, &base, &flags.batches);
            for &max_batch in &flags.batches {
                let engine = Engine { max_batch, ..base };
                match side.ready(job, &engine, &cache) {
                    Ready::Breaks(rule) => {
                        let (kind, side) = (side.number, Side::Prefill);
                        tally.breaks(rule, beside, Example { kind, side, engine });
                    }
                    Ready::Lacks(status) => tally.lacks(status, beside),
                    Ready::Runs(policy, kv) => {
                        let source = Source::new(job, side, costed, &engine, &policy, kv);
                        if source.rate_per_s > 0.0 {
                            found.push(source);
                        } else {
                            tally.lacks(Status::Ttft, beside);
                        }
                    }
                }
            }
        }
    }
    found
}

pub(super) fn layout(
    job: &Job,
    (side, sources): (&SideOf, &Sources),
    costed: &Costed,
    options: &Options,
    bar: &Bar<'_>,
    (kept, tally): (&mut Kept, &mut Tally),
) {
    let mut one = Histogram::default();
    one.add(costed.engine.gpus(), 1);
    let all = product(job, &sources.count, &one, true);
    let flags = side.flags(&costed.engine);
    let lean = side.leanest(&costed.engine);
    if let Some(status) = side.lacks(job, &lean, &side.memory(job, &lean)) {
        tally.lacks(status, all * flags.len() as u128);
        return;
    }
    for &block_tokens in &flags.blocks {
        for &max_batched_tokens in &flags.budgets {
            let base = Engine {
                max_batched_tokens,
                block_tokens,
                ..costed.engine
            };
            let cache = side.cache(job, &base, &flags.batches);
            let mut full = false;
            for &max_batch in &flags.batches {
                let engine = Engine { max_batch, ..base };
                if full && !options.exhaustive {
                    tally.pruned += all; // more slots stay empty
                    continue;
                }
                match side.ready(job, &engine, &cache) {
                    Ready::Breaks(rule) => {
                        let (kind, side) = (side.number, Side::Decode);
                        tally.breaks(rule, all, Example { kind, side, engine });
                    }
                    Ready::Lacks(status) => tally.lacks(status, all),
                    Ready::Runs(policy, kv_tokens) => {
                        let sink = Sink::new(job, costed, engine, &policy, kv_tokens);
                        full = f64::from(max_batch) >= sink.held;
                        if !options.exhaustive && sink.hopeless(job, sources, bar) {
                            tally.pruned += all;
                        } else {
                            sink.pair(job, side, sources, all, kept, tally);
                        }
                    }
                }
            }
        }
    }
}

/// A decode engine with its flags.
pub(super) struct Sink {
    engine: Engine,
    number: u32,
    kv_tokens: f64,
    /// Requests that the cache holds.
    held: f64,
    /// Requests that run.
    pub running: f64,
    tpot_s: f64,
    /// Requests a second.
    rate_per_s: f64,
    /// Half a step, which a request waits before its first.
    wait_s: f64,
}

impl Sink {
    pub fn new(
        job: &Job,
        costed: &Costed,
        engine: Engine,
        policy: &Policy,
        kv_tokens: f64,
    ) -> Self {
        let traffic = &job.traffic;
        let held = (kv_tokens / (traffic.tokens() + policy.waste_tokens()))
            .floor()
            .max(1.0);
        let running = f64::from(engine.max_batch).min(held);
        let context = traffic.input + traffic.output / 2.0;
        let step_s = costed.costs.decode_s(running, context) + policy.host_s;
        let steps = (traffic.output - 1.0).max(0.0) / policy.tokens_per_step;
        Self {
            engine,
            number: costed.number,
            kv_tokens,
            held,
            running,
            tpot_s: steps * step_s / (traffic.output - 1.0).max(1.0),
            rate_per_s: running / (steps * step_s).max(f64::MIN_POSITIVE),
            wait_s: step_s / 2.0,
        }
    }

    /// Whether the best prefill engine, in any numbers, leaves it behind what was found.
    fn hopeless(&self, job: &Job, sources: &Sources, bar: &Bar<'_>) -> bool {
        let Some(first) = sources.list.first() else {
            return false;
        };
        let gpus = f64::from(self.engine.gpus());
        let cheap = job.traffic.output / (gpus / self.rate_per_s + first.gpus / first.rate_per_s);
        bar.hopeless(self.tpot_s, cheap, cheap)
    }

    /// The best prefill engines beside this decode engine, and how many of each.
    fn pair(
        &self,
        job: &Job,
        side: &SideOf,
        sources: &Sources,
        all: u128,
        kept: &mut Kept,
        tally: &mut Tally,
    ) {
        let mut best: Option<(f64, Point)> = None;
        let mut looked = 0;
        let gpus = f64::from(self.engine.gpus());
        for source in &sources.list {
            // Continuous numbers of workers bound what integers can reach.
            let bound =
                job.traffic.output / (gpus / self.rate_per_s + source.gpus / source.rate_per_s);
            if best.is_some_and(|(dense, _)| bound <= dense) {
                break;
            }
            if self.engine.gpus() + source.engine.gpus() > job.gpus {
                continue;
            }
            if let Some(point) = self.matched(job, side, source) {
                looked += 1;
                let dense = density(job, point.tokens_per_s, point.gpus());
                if best.is_none_or(|(least, _)| dense > least) {
                    best = Some((dense, point));
                }
            }
        }
        let Some((_, point)) = best else {
            tally.pruned += all;
            return;
        };
        // Only the best was judged; the others have its time per output token and give less.
        match judge(job, &point, false, kept, tally) {
            Status::Ok => {
                tally.evaluated += looked.min(all);
                tally.pruned += all - looked.min(all);
            }
            status => tally.lacks(status, all),
        }
    }

    /// Prefill engines beside y decode engines: as many as their rate and the limit on the time to
    /// first token ask for, the burst at the start of a closed loop included.
    fn beside(&self, job: &Job, source: &Source, y: f64) -> f64 {
        let rate = y * self.rate_per_s;
        let least = (rate / source.rate_per_s - 1e-9).ceil().max(1.0);
        let limit_s = job.goal.ttft_limit_s() - self.wait_s;
        let clients = y * self.running;
        let keeps = |x: f64| source.ttft_s(rate / x, clients / x) <= limit_s;
        let most = (f64::from(job.gpus) / source.gpus).floor().max(least);
        if keeps(least) || !keeps(most) {
            return least;
        }
        let (mut low, mut high) = (least, most);
        while high - low > 1.0 {
            let middle = ((low + high) / 2.0).floor();
            if keeps(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// Numbers of workers that match in rate.
    pub fn matched(&self, job: &Job, side: &SideOf, source: &Source) -> Option<Point> {
        let gpus = f64::from(self.engine.gpus());
        let most = f64::from(job.gpus);
        let fits = |x: f64, y: f64| x * source.gpus + y * gpus <= most;
        let (x, y) = match job.traffic.demand {
            Demand::Chosen => {
                // The largest y whose prefill engines still fit; what they take rises with y.
                let (mut low, mut high) = (1, (job.gpus / self.engine.gpus()).max(1));
                while low < high {
                    let middle = (low + high).div_ceil(2);
                    if fits(
                        self.beside(job, source, f64::from(middle)),
                        f64::from(middle),
                    ) {
                        low = middle;
                    } else {
                        high = middle - 1;
                    }
                }
                let y = match &job.copies.decode {
                    None => low,
                    Some(list) => list.iter().copied().rfind(|&n| n <= low)?,
                };
                let (y, wanted) = (f64::from(y), self.beside(job, source, f64::from(y)));
                // Where even one decode engine takes more than all prefill engines give, it idles.
                let left = ((most - y * gpus) / source.gpus).floor().max(1.0);
                if wanted > left && job.copies.prefill.is_none() {
                    let point = self.point(job, side, source, (left, y));
                    let keeps = point.ttft_s <= job.goal.ttft_limit_s();
                    return (keeps && fits(left, y)).then_some(point);
                }
                (wanted, y)
            }
            Demand::Rate(rate, _) => {
                let y = stated(job.copies.decode.as_ref(), rate / self.rate_per_s)?;
                ((rate / source.rate_per_s).ceil().max(1.0), y)
            }
            Demand::Clients(clients) => {
                let first_s = source.outside_s + source.one_s + self.wait_s;
                let each = self.running + self.rate_per_s * first_s;
                let y = stated(job.copies.decode.as_ref(), f64::from(clients) / each)?;
                (self.beside(job, source, y), y)
            }
        };
        let x = stated(job.copies.prefill.as_ref(), x)?;
        fits(x, y).then(|| self.point(job, side, source, (x, y)))
    }

    fn point(&self, job: &Job, side: &SideOf, source: &Source, (x, y): (f64, f64)) -> Point {
        let given = match job.traffic.demand {
            Demand::Rate(rate, _) => rate,
            Demand::Chosen => y * self.rate_per_s,
            // Clients that do not fill the slots give what Little's law says.
            Demand::Clients(clients) => {
                let first_s = source.outside_s + source.one_s + self.wait_s;
                let round_s = first_s + self.running / self.rate_per_s;
                (f64::from(clients) / round_s).min(y * self.rate_per_s)
            }
        };
        let rate = given.min(x * source.rate_per_s);
        let start = match job.traffic.demand {
            Demand::Rate(..) => 0.0,
            _ if rate < given => rate / self.rate_per_s * self.running,
            _ => y * self.running,
        };
        let ttft_s = source.ttft_s(rate / x, start / x) + self.wait_s;
        let clients = match job.traffic.demand {
            Demand::Chosen => (start + rate * source.ttft_s(rate / x, 0.0)) as u32,
            Demand::Clients(clients) => clients,
            Demand::Rate(..) => 0,
        };
        let mut point = Point {
            kind: side.number,
            number: self.number,
            prefill: Some(Pool {
                workers: x as u32,
                engine: source.engine,
            }),
            decode: Pool {
                workers: y as u32,
                engine: self.engine,
            },
            clients,
            kv_tokens: self.kv_tokens,
            ttft_s,
            tpot_s: self.tpot_s,
            tokens_per_s: rate * job.traffic.output,
            overshoot: 0.0,
        };
        point.overshoot = overshoot(job, &point);
        point
    }
}

/// Engines that are at least as many as needed: the next whole number, or of those that are stated.
fn stated(list: Option<&Vec<u32>>, needed: f64) -> Option<f64> {
    let least = (needed - 1e-9).ceil().max(1.0);
    match list {
        None => Some(least),
        Some(list) => list.iter().map(|&n| f64::from(n)).find(|&n| n >= least),
    }
}
