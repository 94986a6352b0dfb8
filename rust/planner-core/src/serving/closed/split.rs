//! Closed form of a deployment whose prefill and decode engines are apart.

use super::{Arrivals, BURST, Mean, ROUNDS, Steady, slots};
use crate::serving::disagg::Link;
use crate::serving::engine::policy::Policy;
use crate::serving::steps::{Pass, StepTimes};

/// Prefill and decode on engines of their own, in means.
#[derive(Debug)]
pub struct Split<'a, P: ?Sized, D: ?Sized> {
    /// Budget and limits of a prefill worker.
    pub prefill_policy: &'a Policy,
    /// Times of its passes.
    pub prefill_times: &'a P,
    /// Prefill workers.
    pub prefill_workers: u32,
    /// Limits of a decode worker; latencies outside the engines are those of its policy.
    pub decode_policy: &'a Policy,
    /// Times of its steps.
    pub decode_times: &'a D,
    /// Decode workers.
    pub decode_workers: u32,
    /// Between them.
    pub link: Link,
}

impl<P: StepTimes + ?Sized, D: StepTimes + ?Sized> Split<'_, P, D> {
    /// Means of the whole deployment (arrivals are those of all workers), and the share of time that
    /// prefill workers compute.
    ///
    /// Prefill workers are one M/D/1 queue each; full passes bound the rate from above. Decode steps
    /// are undisturbed.
    #[must_use]
    pub fn steady(&self, mean: &Mean) -> (Steady, f64) {
        let new = (mean.input - mean.hit).max(1.0);
        let pass = |prompts: f64| {
            let pass = Pass {
                tokens: new * prompts,
                prompts,
                past: mean.hit,
            };
            self.prefill_times.prefill_s(&pass) + self.prefill_policy.host_s
        };
        let together = (f64::from(self.prefill_policy.max_batched_tokens) / new)
            .floor()
            .max(1.0);
        let (one_s, full_s) = (pass(1.0), pass(together) / together);
        let workers = f64::from(self.prefill_workers);
        let most = workers / full_s.min(one_s);
        let move_s = self.link.fixed_s
            + (self.link.token_bytes * mean.input + self.link.state_bytes)
                / self.link.bytes_per_s
                / f64::from(self.link.layer_groups);
        let policy = self.decode_policy;
        let outside = policy.latency_s + policy.token_latency_s * mean.input + move_s;
        let steps = (mean.output - 1.0).max(0.0) / policy.tokens_per_step;
        let slots = slots(policy, mean) * f64::from(self.decode_workers);
        let mut found = Steady::default();
        let mut rate = match mean.arrivals {
            Arrivals::Clients(c) => c / (outside + one_s),
            Arrivals::Rate(r, _) => r,
        };
        let mut decode_s = 0.0;
        for round in 0..4 * ROUNDS {
            let busy = (rate * one_s / workers).min(0.95);
            let wait_s = busy * one_s / (2.0 * (1.0 - busy));
            let mut first_s = outside + wait_s + one_s + decode_s / 2.0;
            // A step has one request at least.
            let takers = f64::from(self.decode_workers);
            let running = (found.running.min(slots) / takers).max(1.0);
            decode_s = self
                .decode_times
                .decode_s(running, mean.input + mean.output / 2.0)
                + policy.host_s;
            let decoding_s = steps * decode_s;
            let given = slots / decoding_s.max(f64::MIN_POSITIVE);
            let (asked, mut saturated) = match mean.arrivals {
                Arrivals::Clients(c) => (c / (first_s + decoding_s), false),
                Arrivals::Rate(r, _) => (r, r > most.min(given)),
            };
            let next = asked.min(most).min(given);
            rate = if round == 0 {
                next
            } else {
                (rate + next) / 2.0
            };
            if let Arrivals::Clients(c) = mean.arrivals {
                let left = c / rate - decoding_s;
                saturated = asked > 0.95 * most.min(given);
                first_s = first_s.max(left);
                let burst = outside + c / workers * full_s.min(one_s) / 2.0;
                first_s = BURST * burst.max(first_s) + (1.0 - BURST) * first_s;
            }
            found = Steady {
                ttft_s: first_s,
                tpot_s: decoding_s / (mean.output - 1.0).max(1.0),
                requests_per_s: rate,
                running: rate * decoding_s,
                kv_ratio: 0.0,
                queue_s: (first_s - one_s - move_s).max(0.0),
                saturated,
            };
        }
        (found, (rate / most).min(1.0))
    }
}
