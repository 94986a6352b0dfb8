//! Bounds: what a layout can reach at most, before its flags are gone through.
//!
//! With r requests running, a decode step takes D(r), an answer S steps, and each prompt stalls the
//! others by s. The closed form then obeys
//!
//! ```text
//! time per token   ≥ S·D(r) / (O − 1)
//! rate             ≤ 1 / (S·D(r)/r + s·r/n)     closed loop of n clients
//! rate             ≤ 1 / (S·D(r)/r + s)         requests that come on their own
//! ```
//!
//! D rises with r, so over r in [a, b] the right sides are at most those with D(a) and 1/b. A layout
//! is skipped when the front already has something as fast and as dense for every such interval, and
//! the best that was found does more.

use super::kept::{Kept, density};
use super::request::{Job, Objective};
use super::traffic::Demand;
use crate::serving::closed;
use crate::serving::costs::Costs;
use crate::serving::deployment::Backend;
use crate::serving::engine::policy::Policy;
use crate::serving::space::axes::slots;
use crate::serving::steps::{Pass, StepTimes};

/// How far a replay, or the three rounds of the closed form, may be beyond a bound.
const SLACK: f64 = 0.05;

/// What has been found before a round.
pub(super) struct Bar<'a> {
    found: &'a Kept,
    /// Throughput that gets among the best.
    dense: f64,
    /// Tokens a second and GPU used that get among the cheapest.
    cheap: f64,
    tpot_limit_s: f64,
}

impl<'a> Bar<'a> {
    pub fn new(job: &Job, found: &'a Kept) -> Self {
        let last = found.last();
        let first = |objective: Objective| {
            let list = &found.objectives[objective as usize];
            list.first().map_or(f64::NEG_INFINITY, |(worth, _)| worth.0)
        };
        let (mut dense, mut cheap) = (first(Objective::Throughput), first(Objective::Cost));
        match (job.goal.objective, job.traffic.demand) {
            (Objective::Throughput, _) => dense = last,
            (Objective::Cost, _) => cheap = last,
            // Fewer GPUs than these at the given rate are so many tokens a second and GPU.
            (Objective::Gpus, Demand::Rate(rate, _)) => dense = rate * job.traffic.output / -last,
            (Objective::Gpus, _) => dense = f64::NEG_INFINITY,
        }
        Self {
            found,
            dense,
            cheap,
            tpot_limit_s: job.goal.tpot_limit_s(),
        }
    }

    /// Whether nothing at least as slow as `tpot_s` for a user, and no denser or cheaper than these,
    /// can matter.
    pub fn hopeless(&self, tpot_s: f64, dense: f64, cheap: f64) -> bool {
        let more = 1.0 + SLACK;
        let late = tpot_s > self.tpot_limit_s;
        let poor = dense * more < self.dense && cheap * more < self.cheap;
        (late || poor) && self.found.beaten(tpot_s, dense * more)
    }
}

/// An engine that prefills and decodes, as its bounds need it.
pub(super) struct Layout<'a> {
    pub costs: &'a Costs,
    pub policy: &'a Policy,
    pub gpus: u32,
    /// Most requests that its cache holds, whatever the flags.
    pub held: f64,
}

impl Layout<'_> {
    /// Whether no setting of the layout's flags can matter.
    pub fn hopeless(&self, job: &Job, bar: &Bar<'_>, workers: u32) -> bool {
        let traffic = &job.traffic;
        let context = traffic.input + traffic.output / 2.0;
        let steps = (traffic.output - 1.0).max(0.0) / self.policy.tokens_per_step;
        let dp = f64::from(self.policy.attention_dp);
        let most = match traffic.demand {
            Demand::Clients(clients) => self.held.min(f64::from(clients)),
            _ => self.held,
        };
        let (mut low, mut decode_s) = (1.0, self.costs.decode_s(1.0, context));
        let pass_s = self.pass_s(job);
        for slot in slots() {
            let high = (f64::from(slot) * dp).min(most).max(low);
            let decode_high_s = self.costs.decode_s(high, context);
            let stall_s = match self.policy.backend {
                Backend::Sglang => pass_s,
                Backend::Vllm | Backend::Trtllm => {
                    (pass_s - (1.0 - self.policy.decode_share) * decode_high_s).max(0.0)
                }
            };
            let share = match traffic.demand {
                Demand::Rate(..) => 1.0,
                // Nobody stalls himself, and fewer run than there are clients.
                _ => (low - 1.0) / most.max(1.0),
            };
            let rate = 1.0 / (steps * decode_s / high + stall_s * share).max(1e-12);
            let tokens_per_s = rate * traffic.output;
            let tpot_s = steps * decode_s / (traffic.output - 1.0).max(1.0);
            let all = tokens_per_s * f64::from(workers);
            let dense = density(job, all, workers * self.gpus);
            if !bar.hopeless(tpot_s, dense, tokens_per_s / f64::from(self.gpus)) {
                return false;
            }
            if high >= most {
                break;
            }
            (low, decode_s) = (high, decode_high_s);
        }
        true
    }

    /// Least time of a prompt's passes, s.
    fn pass_s(&self, job: &Job) -> f64 {
        let mean = job
            .traffic
            .mean(closed::Arrivals::Clients(1.0), f64::INFINITY);
        let new = (mean.input - mean.hit).max(1.0);
        let pass = Pass {
            tokens: new,
            prompts: 1.0,
            past: mean.hit,
        };
        // Chunks repeat the fixed part of a pass, so one whole pass is least.
        self.costs.prefill_s(&pass) + self.policy.host_s
    }
}
