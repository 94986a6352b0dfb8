//! The closed form of the replay: means of a steady engine in well under a microsecond.
//!
//! ```text
//! p   pass of one mean prompt        D(n)  decode step of n requests, mean context P + O/2
//! s   what a pass adds to a decode step: p − (1 − share)·D beside decoding, p where decoding stops
//! S   decode steps of an answer, (O − 1)/τ
//! decode      T_d = S·D(n) + λ·T_d·s             stalls by the prompts that come meanwhile
//! rate        λ   = c / (F + T_d)  closed loop   (Little's law), or given
//! running     n   = λ·T_d
//! first token F   = outside + look + W + p + share·D,   W = ρ·p·cv²/(2(1 − ρ)),  ρ = λ·p
//! burst       a tenth of the requests of a closed loop: c prompts in w seconds, F = outside + w·(k + 1)/2k
//! slots       n at most the slots and what the pool holds; beyond, Little's law says the wait
//! ```
//!
//! c clients, P and O mean lengths, τ tokens a step, k passes of a burst. W is the wait of M/D/1 for
//! cv = 1 (Kingman otherwise); in a closed loop of c clients it is scaled by (c − 1)/c, as nobody
//! waits for himself. `look` is half a decode step, or half the poll interval.

mod split;

use serde::Serialize;

pub use split::Split;

use super::deployment::Backend;
use super::engine::policy::{Policy, Reserve};
use super::outcome::Outcome;
use super::steps::{Pass, StepTimes};
use crate::stats::Quantiles;

/// Mean lengths and arrivals at one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Prompt, tokens.
    pub input: f64,
    /// Of it cached.
    pub hit: f64,
    /// Answer, tokens.
    pub output: f64,
    /// Who sends.
    pub arrivals: Arrivals,
}

/// Arrivals at one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many clients.
    Clients(f64),
    /// So many a second, gaps of this coefficient of variation.
    Rate(f64, f64),
}

/// Means of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Steady {
    /// Time to first token, burst included, s.
    pub ttft_s: f64,
    /// Time per output token, s.
    pub tpot_s: f64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Requests that run.
    pub running: f64,
    /// Share of the KV pool that they hold.
    pub kv_ratio: f64,
    /// From send to admission, s.
    pub queue_s: f64,
    /// More is asked than the engine gives.
    pub saturated: bool,
}

/// Share of a closed loop's requests that belong to the burst.
const BURST: f64 = 0.1;
const ROUNDS: usize = 3;

struct Form<'a, T: ?Sized> {
    policy: &'a Policy,
    times: &'a T,
    mean: &'a Mean,
    /// Decode steps of an answer.
    steps: f64,
    /// One prompt's pass, s.
    pass_s: f64,
    /// Requests that slots and pool hold.
    most: f64,
}

/// Means of one engine under a load.
///
/// With one client nobody is in the way:
///
/// ```
/// use planner_core::serving::closed::{Arrivals, Mean, steady};
/// use planner_core::serving::deployment::Backend;
/// use planner_core::serving::engine::policy::Policy;
/// use planner_core::serving::steps::{Pass, StepTimes};
/// struct Times;
/// impl StepTimes for Times {
///     fn decode_s(&self, n: f64, _: f64) -> f64 { 0.01 + 1e-4 * n }
///     fn prefill_s(&self, p: &Pass) -> f64 { 0.01 + 2e-5 * p.tokens }
/// }
/// let policy = Policy::new(Backend::Vllm, 64, 8192, 1 << 20);
/// let mean = Mean { input: 1000.0, hit: 0.0, output: 100.0, arrivals: Arrivals::Clients(1.0) };
/// let s = steady(&policy, &Times, &mean);
/// assert!((s.ttft_s - 0.03).abs() < 1e-12 && (s.tpot_s - 0.0101).abs() < 1e-12);
/// ```
#[must_use]
pub fn steady<T: StepTimes + ?Sized>(policy: &Policy, times: &T, mean: &Mean) -> Steady {
    let pass = Pass {
        tokens: (mean.input - mean.hit).max(1.0),
        prompts: 1.0,
        past: mean.hit,
    };
    let form = Form {
        policy,
        times,
        mean,
        steps: (mean.output - 1.0).max(0.0) / policy.tokens_per_step,
        pass_s: passes_s(policy, times, &pass),
        most: slots(policy, mean),
    };
    let mut found = match mean.arrivals {
        Arrivals::Clients(c) => form.closed(c),
        Arrivals::Rate(rate, cv) => form.open(rate, cv),
    };
    found.kv_ratio = (found.running * held_tokens(policy, mean) / policy.kv_tokens as f64).min(1.0);
    found
}

/// Tokens that a running request holds on average.
fn held_tokens(policy: &Policy, mean: &Mean) -> f64 {
    policy.waste_tokens()
        + match policy.reserve {
            Reserve::Whole => mean.input + mean.output,
            Reserve::Prompt | Reserve::Expected { .. } => mean.input + mean.output / 2.0,
        }
}

/// Requests that slots and pool hold.
fn slots(policy: &Policy, mean: &Mean) -> f64 {
    let held = (policy.kv_tokens as f64 / held_tokens(policy, mean)).max(1.0);
    held.min(f64::from(policy.max_batch))
}

/// Time of a prompt's passes: more than one where it is longer than the budget.
fn passes_s<T: StepTimes + ?Sized>(policy: &Policy, times: &T, pass: &Pass) -> f64 {
    let chunks = (pass.tokens / f64::from(policy.max_batched_tokens)).ceil();
    if chunks <= 1.0 || policy.backend == Backend::Trtllm {
        return times.prefill_s(pass) + policy.host_s;
    }
    // Chunks of one size; the mean one has half of the prompt before it.
    let chunk = Pass {
        tokens: pass.tokens / chunks,
        prompts: 1.0,
        past: pass.past + (pass.tokens - pass.tokens / chunks) / 2.0,
    };
    chunks * (times.prefill_s(&chunk) + policy.host_s)
}

impl<T: StepTimes + ?Sized> Form<'_, T> {
    fn decode_s(&self, running: f64) -> f64 {
        let context = self.mean.input + self.mean.output / 2.0;
        self.times.decode_s(running.max(1.0), context) + self.policy.host_s
    }

    /// What a pass takes beyond its own time, and what it adds to the steps of the others.
    fn interference(&self, decode_s: f64) -> (f64, f64) {
        match self.policy.backend {
            Backend::Sglang => (0.0, self.pass_s),
            Backend::Vllm | Backend::Trtllm => {
                let beside = self.policy.decode_share * decode_s;
                (beside, (self.pass_s + beside - decode_s).max(0.0))
            }
        }
    }

    /// Outside the engine, and until it looks.
    fn outside_s(&self, decode_s: f64) -> f64 {
        let policy = self.policy;
        let outside = policy.latency_s + policy.token_latency_s * self.mean.input;
        let poll = f64::from(policy.recv_interval);
        // A request that is sent at the end of a step and seen at once waits for nothing.
        if outside <= 0.0 {
            return 0.0;
        }
        outside
            + match policy.backend {
                Backend::Sglang => decode_s * poll / 2.0,
                Backend::Vllm | Backend::Trtllm => decode_s / 2.0,
            }
    }

    fn closed(&self, clients: f64) -> Steady {
        let mut running = clients.min(self.most);
        let (mut first_s, mut decoding_s, mut tpot_s) = (0.0, 0.0, 0.0);
        for _ in 0..ROUNDS {
            let decode_s = self.decode_s(running);
            let others = (running - 1.0).max(0.0) / running;
            let (beside, stall_s) = self.interference(if running > 1.0 { decode_s } else { 0.0 });
            let alone_s = self.steps * decode_s;
            // Each other client prefills once a round; the share that falls into decoding stalls it.
            let round_s = first_s + alone_s + running * others * stall_s;
            let share = 1.0 - first_s / round_s.max(f64::MIN_POSITIVE);
            decoding_s = alone_s + running * others * stall_s * share;
            let load = (running * self.pass_s / round_s).min(0.95);
            let wait_s = others * load * self.pass_s / (2.0 * (1.0 - load));
            let look_s = if running > 1.0 {
                self.outside_s(decode_s)
            } else {
                self.outside_s(0.0)
            };
            first_s = look_s + wait_s + self.pass_s + others * beside;
            tpot_s = if self.steps > 0.0 {
                decoding_s / (self.mean.output - 1.0)
            } else {
                0.0
            };
            let busy = decoding_s / (first_s + decoding_s);
            running = (clients * busy).clamp(1.0, self.most);
        }
        let served_s = first_s + decoding_s;
        let rate = clients.min(self.most) / served_s;
        // Clients beyond the slots wait as long as Little's law says.
        let queue_s = (clients / rate - served_s).max(0.0);
        Steady {
            ttft_s: queue_s
                + BURST * self.burst_s(clients.min(self.most))
                + (1.0 - BURST) * first_s,
            tpot_s,
            requests_per_s: rate,
            running,
            kv_ratio: 0.0,
            queue_s,
            saturated: clients > self.most,
        }
    }

    /// Mean time to first token of `clients` prompts that arrive together.
    fn burst_s(&self, clients: f64) -> f64 {
        let policy = self.policy;
        let new = (self.mean.input - self.mean.hit).max(1.0);
        let outside = policy.latency_s + policy.token_latency_s * self.mean.input;
        let together = (f64::from(policy.max_batched_tokens) / new).clamp(1.0, clients);
        let together = if policy.backend == Backend::Trtllm {
            together.floor()
        } else {
            together
        };
        let passes = clients / together;
        let pass = Pass {
            tokens: new * together,
            prompts: together,
            past: self.mean.hit,
        };
        let pass_s = if together > 1.0 {
            self.times.prefill_s(&pass) + policy.host_s
        } else {
            self.pass_s
        };
        outside + pass_s * (passes + 1.0) / 2.0
    }

    fn open(&self, rate: f64, cv: f64) -> Steady {
        let mut running = 1.0_f64;
        let (mut decoding_s, mut decode_s, mut stable) = (0.0, 0.0, true);
        let load = rate * self.pass_s;
        for _ in 0..4 * ROUNDS {
            decode_s = self.decode_s(running);
            let (_, stall_s) = self.interference(decode_s);
            stable = rate * stall_s < 0.98 && load < 0.98;
            decoding_s = self.steps * decode_s / (1.0 - (rate * stall_s).min(0.98));
            let wanted = rate * decoding_s;
            stable &= wanted <= self.most;
            running = wanted.clamp(0.0, self.most);
        }
        let busy = (rate * (decoding_s + self.pass_s)).min(1.0);
        let beside = self.interference(decode_s).0 * busy;
        let policy = self.policy;
        let outside = policy.latency_s + policy.token_latency_s * self.mean.input;
        let poll = match policy.backend {
            Backend::Sglang => f64::from(policy.recv_interval),
            Backend::Vllm | Backend::Trtllm => 1.0,
        };
        let wait_s = load.min(0.98) * self.pass_s * cv * cv / (2.0 * (1.0 - load.min(0.98)));
        let first_s = outside + busy * decode_s * poll / 2.0 + wait_s + self.pass_s + beside;
        Steady {
            ttft_s: first_s,
            tpot_s: if self.steps > 0.0 {
                decoding_s / (self.mean.output - 1.0)
            } else {
                0.0
            },
            requests_per_s: rate,
            running,
            kv_ratio: 0.0,
            queue_s: first_s - self.pass_s - beside,
            saturated: !stable,
        }
    }
}

impl Steady {
    /// As an outcome of equal engines; quantiles that the closed form does not know are NaN.
    #[must_use]
    pub fn outcome(&self, mean: &Mean, workers: u32) -> Outcome {
        let only = |mean: f64| Quantiles {
            mean,
            p50: f64::NAN,
            p90: f64::NAN,
            p99: f64::NAN,
            max: f64::NAN,
        };
        let rate = self.requests_per_s * f64::from(workers);
        Outcome {
            ttft_s: only(self.ttft_s),
            tpot_s: only(self.tpot_s),
            queue_s: self.queue_s,
            makespan_s: f64::NAN,
            requests_per_s: rate,
            output_tokens_per_s: rate * mean.output,
            goodput_per_s: f64::NAN,
            good_ratio: f64::NAN,
            mean_running: self.running,
            peak_running: self.running.ceil() as u32,
            peak_kv_ratio: self.kv_ratio,
            blocked_ratio: f64::NAN,
            saturated: self.saturated,
            ..Outcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, Mean, steady};
    use crate::serving::deployment::Backend;
    use crate::serving::engine::policy::Policy;
    use crate::serving::engine::tests::{TIMES, load};
    use crate::serving::engine::{Settings, Workspace, play};
    use crate::serving::outcome::{Limits, Outcome};

    fn replay(policy: &Policy, clients: u32, input: u32, output: u32) -> Outcome {
        let settings = Settings {
            workers: 1,
            routing: Default::default(),
            tabulate: false,
        };
        let load = load(clients, input, output);
        let mut space = Workspace::default();
        play(policy, &TIMES, &load, &settings, &Limits::NONE, &mut space).unwrap()
    }

    fn form(policy: &Policy, clients: u32, input: u32, output: u32) -> super::Steady {
        let mean = Mean {
            input: 0.9 * f64::from(input),
            hit: 0.0,
            output: 0.9 * f64::from(output),
            arrivals: Arrivals::Clients(f64::from(clients)),
        };
        steady(policy, &TIMES, &mean)
    }

    #[test]
    fn near_the_replay() {
        let (mut ttft, mut tpot) = (Vec::new(), Vec::new());
        for backend in [Backend::Vllm, Backend::Sglang, Backend::Trtllm] {
            for latency_s in [0.0, 0.02] {
                for clients in [1, 4, 16, 64, 256] {
                    for (input, output) in [(1024, 1024), (1024, 8192), (8192, 1024)] {
                        let mut p = Policy::new(backend, 512, 8192 + 512, 1 << 24);
                        p.latency_s = latency_s;
                        let (a, b) = (
                            replay(&p, clients, input, output),
                            form(&p, clients, input, output),
                        );
                        let off = (
                            b.ttft_s / a.ttft_s.mean - 1.0,
                            b.tpot_s / a.tpot_s.mean - 1.0,
                        );
                        println!(
                            "{backend:?} {latency_s} {clients} {input}/{output}: {:.4} {:.4} {:+.2} {:+.3}",
                            a.ttft_s.mean, a.tpot_s.mean, off.0, off.1
                        );
                        ttft.push(off.0.abs());
                        tpot.push(off.1.abs());
                    }
                }
            }
        }
        ttft.sort_by(f64::total_cmp);
        tpot.sort_by(f64::total_cmp);
        println!(
            "{:?} {:?}",
            &ttft[ttft.len() / 2..],
            &tpot[tpot.len() / 2..]
        );
        assert!(
            ttft[ttft.len() / 2] < 0.03 && ttft[ttft.len() - 1] < 0.12,
            "{ttft:?}"
        );
        assert!(
            tpot[tpot.len() / 2] < 0.01 && tpot[tpot.len() - 1] < 0.05,
            "{tpot:?}"
        );
    }

    #[test]
    fn slots_leave_what_littles_law_says() {
        let p = Policy::new(Backend::Trtllm, 32, 8192, 1 << 24);
        let (a, b) = (replay(&p, 64, 1024, 1024), form(&p, 64, 1024, 1024));
        assert!(a.saturated && b.saturated);
        assert!((b.ttft_s / a.ttft_s.mean - 1.0).abs() < 0.15, "{a:?} {b:?}");
        assert!((b.requests_per_s / a.requests_per_s - 1.0).abs() < 0.05);
    }
}
