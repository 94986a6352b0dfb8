//! Engines that prefill and decode, at every setting of their flags, in closed form.

use super::Options;
use super::account::{Example, Tally};
use super::bound::{Bar, Layout};
use super::costed::{Costed, Ready, SideOf};
use super::kept::{DEPTH, Kept, Point, density};
use super::request::Job;
use super::traffic::Demand;
use crate::serving::closed::{Arrivals, Steady};
use crate::serving::deployment::{Engine, Pool};
use crate::serving::engine::policy::Policy;
use crate::serving::space::{Side, Status};
use crate::serving::steps::StepTimes;

/// One layout under one token budget and block: its slots are gone through in ascending order.
struct Column<'a> {
    job: &'a Job,
    side: &'a SideOf,
    costed: &'a Costed,
    /// Numbers of workers, ascending.
    workers: &'a [u32],
    exhaustive: bool,
    /// Workers from this place on are served by fewer slots already.
    served: usize,
}

/// An engine with its flags, ready to run.
pub(super) struct Running<'a> {
    pub engine: &'a Engine,
    pub policy: &'a Policy,
    pub kv_tokens: f64,
}

/// Every deployment of one setting in closed form, by number of engines. Where the search chooses
/// the clients, the largest number stands for all, as in the search.
pub(super) fn every(
    job: &Job,
    side: &SideOf,
    costed: &Costed,
    run: &Running<'_>,
    each: &mut dyn FnMut(&Point, &Steady),
) {
    let workers = job.copies.single(costed.engine.gpus());
    let column = Column {
        job,
        side,
        costed,
        workers: &workers,
        exhaustive: true,
        served: workers.len(),
    };
    if let (Demand::Chosen, Some(&most)) = (job.traffic.demand, workers.last()) {
        let (point, steady) = column.filled(run, most, column.held(run));
        each(&point, &steady);
        return;
    }
    for at in 0..workers.len() {
        let (point, steady) = column.shared(run, at);
        each(&point, &steady);
    }
}

pub(super) fn layout(
    job: &Job,
    side: &SideOf,
    costed: &Costed,
    options: &Options,
    bar: &Bar<'_>,
    (kept, tally): (&mut Kept, &mut Tally),
) {
    let flags = side.flags(&costed.engine);
    let workers = job.copies.single(costed.engine.gpus());
    let all = workers.len() as u128;
    let lean = side.leanest(&costed.engine);
    let found = side.memory(job, &lean);
    if let Some(status) = side.lacks(job, &lean, &found) {
        tally.lacks(status, all * flags.len() as u128);
        return;
    }
    let policy = side.policy(job, &lean, found.kv_tokens);
    let bound = Layout {
        costs: &costed.costs,
        policy: &policy,
        gpus: lean.gpus(),
        held: (found.kv_tokens / job.traffic.tokens()).max(1.0),
    };
    let most = workers.last().copied().unwrap_or(1);
    if !options.exhaustive && bound.hopeless(job, bar, most) {
        tally.pruned += all * flags.len() as u128;
        return;
    }
    for &block_tokens in &flags.blocks {
        for &max_batched_tokens in &flags.budgets {
            let cache = side.cache(
                job,
                &Engine {
                    max_batched_tokens,
                    block_tokens,
                    ..costed.engine
                },
                &flags.batches,
            );
            let mut column = Column {
                job,
                side,
                costed,
                workers: &workers,
                exhaustive: options.exhaustive,
                served: workers.len(),
            };
            for &max_batch in &flags.batches {
                let engine = Engine {
                    max_batch,
                    max_batched_tokens,
                    block_tokens,
                    ..costed.engine
                };
                if column.served == 0 {
                    tally.pruned += all;
                    continue;
                }
                match side.ready(job, &engine, &cache) {
                    Ready::Breaks(rule) => {
                        let (kind, side) = (side.number, Side::Mixed);
                        tally.breaks(rule, all, Example { kind, side, engine });
                    }
                    Ready::Lacks(status) => tally.lacks(status, all),
                    Ready::Runs(policy, kv_tokens) => {
                        let running = Running {
                            engine: &engine,
                            policy: &policy,
                            kv_tokens,
                        };
                        column.slots(&running, kept, tally);
                    }
                }
            }
        }
    }
}

impl Column<'_> {
    /// One number of slots.
    fn slots(&mut self, run: &Running<'_>, kept: &mut Kept, tally: &mut Tally) {
        match self.job.traffic.demand {
            Demand::Chosen => self.chosen(run, kept, tally),
            Demand::Clients(_) | Demand::Rate(..) => self.given(run, kept, tally),
        }
    }

    /// As many clients as slots and pool hold. Every number of engines does the same, so the
    /// largest stands for all.
    fn chosen(&mut self, run: &Running<'_>, kept: &mut Kept, tally: &mut Tally) {
        let all = self.workers.len() as u128;
        let Some(&workers) = self.workers.last() else {
            return;
        };
        let held = self.held(run);
        if f64::from(run.engine.max_batch) >= held && !self.exhaustive {
            self.served = 0; // more slots stay empty
        }
        let (point, steady) = self.filled(run, workers, held);
        let status = self.judge(&point, steady.saturated, kept, tally);
        if status == Status::Ok {
            tally.evaluated += 1;
            tally.pruned += all - 1;
        } else {
            tally.lacks(status, all);
        }
    }

    /// Requests that the cache holds.
    fn held(&self, run: &Running<'_>) -> f64 {
        let each = self.job.traffic.tokens() + run.policy.waste_tokens();
        (run.kv_tokens / each).floor().max(1.0)
    }

    /// Engines with as many clients as slots and cache hold.
    fn filled(&self, run: &Running<'_>, workers: u32, held: f64) -> (Point, Steady) {
        let clients = f64::from(run.engine.max_batch).min(held);
        let all = clients * f64::from(workers);
        self.point(run, workers, Arrivals::Clients(clients), all)
    }

    /// Given clients or a given rate, shared by the engines: more engines are never slower, so the
    /// fewest that keep the limits are looked for, and some more for the front.
    fn given(&mut self, run: &Running<'_>, kept: &mut Kept, tally: &mut Tally) {
        let end = self.served;
        tally.pruned += (self.workers.len() - end) as u128; // fewer slots do the same
        let mut why = Status::Rate;
        let mut low = 0;
        if self.fails(run, end - 1).is_none() {
            let mut high = end - 1;
            while low < high {
                let middle = low.midpoint(high);
                match self.fails(run, middle) {
                    Some(status) => (why, low) = (status, middle + 1),
                    None => high = middle,
                }
            }
        } else {
            low = end;
        }
        if low > 0 {
            let at = low - 1;
            let (point, steady) = self.shared(run, at);
            let status = self.judge(&point, steady.saturated, kept, tally);
            why = if status == Status::Ok { why } else { status };
            tally.lacks(why, low as u128);
        }
        let last = self.fastest_s(run);
        let mut free = end;
        for at in low..end {
            let (point, steady) = self.shared(run, at);
            if !steady.saturated {
                free = free.min(at);
            }
            let dense = density(self.job, point.tokens_per_s, point.gpus());
            if !self.exhaustive && at >= low + DEPTH && kept.beaten(last, dense) {
                tally.pruned += (end - at) as u128;
                break;
            }
            match self.judge(&point, steady.saturated, kept, tally) {
                Status::Ok => tally.evaluated += 1,
                status => tally.lacks(status, 1),
            }
        }
        if !self.exhaustive {
            self.served = free; // from here on, more slots stay empty
        }
    }

    /// Least time per output token that the layout can give.
    fn fastest_s(&self, run: &Running<'_>) -> f64 {
        let traffic = &self.job.traffic;
        let context = traffic.input + traffic.output / 2.0;
        self.costed.costs.decode_s(1.0, context) / run.policy.tokens_per_step
    }

    /// Why the engines of a place in the list do not keep up or keep the limits.
    fn fails(&self, run: &Running<'_>, at: usize) -> Option<Status> {
        let (point, steady) = self.shared(run, at);
        match status(self.job, &point, steady.saturated) {
            Status::Ok => None,
            other => Some(other),
        }
    }

    fn shared(&self, run: &Running<'_>, at: usize) -> (Point, Steady) {
        let workers = self.workers[at];
        match self.job.traffic.demand {
            Demand::Clients(clients) => {
                let fullest = f64::from(clients.div_ceil(workers));
                self.point(run, workers, Arrivals::Clients(fullest), f64::from(clients))
            }
            Demand::Rate(rate, cv) => {
                let own = Arrivals::Rate(rate / f64::from(workers), cv);
                self.point(run, workers, own, 0.0)
            }
            Demand::Chosen => self.point(run, workers, Arrivals::Clients(1.0), f64::from(workers)),
        }
    }

    /// Closed form of so many engines, and of one of them.
    fn point(
        &self,
        run: &Running<'_>,
        workers: u32,
        own: Arrivals,
        clients: f64,
    ) -> (Point, Steady) {
        let job = self.job;
        let mean = job.traffic.mean(own, run.kv_tokens * f64::from(workers));
        let steady = self.costed.steady(run.policy, &mean);
        let requests_per_s = match own {
            // Clients beyond what each engine has evenly make no difference to the sum.
            Arrivals::Clients(each) => steady.requests_per_s * clients / each,
            Arrivals::Rate(..) => steady.requests_per_s * f64::from(workers),
        };
        let mut point = Point {
            kind: self.side.number,
            number: self.costed.number,
            prefill: None,
            decode: Pool {
                workers,
                engine: *run.engine,
            },
            clients: clients as u32,
            kv_tokens: run.kv_tokens,
            ttft_s: steady.ttft_s,
            tpot_s: steady.tpot_s,
            tokens_per_s: requests_per_s * job.traffic.output,
            overshoot: 0.0,
        };
        point.overshoot = overshoot(job, &point);
        (point, steady)
    }

    fn judge(&self, point: &Point, saturated: bool, kept: &mut Kept, tally: &mut Tally) -> Status {
        judge(self.job, point, saturated, kept, tally)
    }
}

/// The worse of the two times over their limits.
pub(super) fn overshoot(job: &Job, point: &Point) -> f64 {
    let (ttft, tpot) = (job.goal.ttft_limit_s(), job.goal.tpot_limit_s());
    (point.ttft_s / ttft).max(point.tpot_s / tpot)
}

/// Whether a closed form keeps the limits.
pub(super) fn status(job: &Job, point: &Point, saturated: bool) -> Status {
    if saturated && !matches!(job.traffic.demand, Demand::Chosen | Demand::Clients(_)) {
        Status::Rate
    } else if point.tpot_s > job.goal.tpot_limit_s() {
        Status::Tpot
    } else if point.ttft_s > job.goal.ttft_limit_s() {
        Status::Ttft
    } else {
        Status::Ok
    }
}

/// Keeps a deployment where it belongs: among the best, on the front, among the misses.
pub(super) fn judge(
    job: &Job,
    point: &Point,
    saturated: bool,
    kept: &mut Kept,
    tally: &mut Tally,
) -> Status {
    let status = status(job, point, saturated);
    match status {
        Status::Ok => kept.offer(job, point),
        Status::Rate => {}
        _ => tally.misses.offer(job, point),
    }
    // The front shows what speed costs, so the limit on speed does not bind it.
    if matches!(status, Status::Ok | Status::Tpot) && point.ttft_s <= job.goal.ttft_limit_s() {
        kept.offer_front(job, point);
    }
    status
}
