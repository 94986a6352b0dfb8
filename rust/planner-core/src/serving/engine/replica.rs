//! One engine between its events: everything that runs advances together.
//!
//! A global counter of decode steps and a line by finishing step replace per-token work: from one
//! event (a prompt to prefill, an end, a full pool) to the next, k steps over n requests take
//! `k · decode(n, mean context half way)`, which is exact for step times linear in context.

use super::books::Books;
use super::line::Line;
use super::policy::{Policy, Reserve};
use crate::serving::deployment::Backend;
use crate::serving::steps::StepTimes;

/// A request: what it asks, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Sent by the client, s.
    pub send_s: f64,
    /// First admission, s.
    pub start_s: f64,
    /// First token, s (NaN: none yet).
    pub first_s: f64,
    /// Last token, s (NaN: not finished, or never fits).
    pub finish_s: f64,
    /// Prompt tokens.
    pub input: u32,
    /// Of them found in the prefix cache.
    pub hit: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Tokens of the answer when its present run of decode steps began.
    pub done: u32,
    /// Step counter of its engine at that moment.
    pub from_step: u32,
    /// Times it lost its blocks.
    pub preemptions: u32,
}

impl Job {
    /// A request that nobody has seen yet.
    #[must_use]
    pub const fn new(send_s: f64, input: u32, hit: u32, output: u32) -> Self {
        Self {
            send_s,
            start_s: f64::NAN,
            first_s: f64::NAN,
            finish_s: f64::NAN,
            input,
            hit,
            output,
            done: 0,
            from_step: 0,
            preemptions: 0,
        }
    }

    /// First token − send, s.
    #[inline]
    #[must_use]
    pub fn ttft_s(&self) -> f64 {
        self.first_s - self.send_s
    }

    /// (Last token − first token) / (tokens − 1), s.
    #[inline]
    #[must_use]
    pub fn tpot_s(&self) -> f64 {
        (self.finish_s - self.first_s) / f64::from((self.output - 1).max(1))
    }
}

/// What an engine goes by.
#[derive(Debug)]
pub struct Rules<'a, T: ?Sized> {
    /// Its scheduling.
    pub policy: &'a Policy,
    /// Times of its steps.
    pub times: &'a T,
    /// Prompts were computed elsewhere: a request decodes from the moment it is admitted.
    pub decode_only: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub seen_s: f64,
    pub job: u32,
}

/// A prompt of which a part is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    pub job: u32,
    pub left: u32,
}

/// Numbers of a policy that every event needs, made once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fixed {
    /// Tokens of the pool.
    pub kv: f64,
    /// Tokens of the pool that a request loses.
    pub waste: f64,
    /// The pool is held for whole answers.
    pub whole: bool,
    /// New requests are looked for between steps, not at each.
    pub polls: bool,
}

/// State of one engine.
#[derive(Debug, Default)]
pub struct Replica {
    pub(super) clock_s: f64,
    pub(super) steps: u32,
    pub(super) queue: Line<Waiting>,
    /// Step of the end of each decoding request, over its number; ascending.
    pub(super) decoding: Line<u64>,
    pub(super) ready: Vec<u32>,
    pub(super) partial: Option<Partial>,
    /// Σ tokens in the contexts of decoding requests.
    pub(super) context: f64,
    /// Tokens of the pool that are taken or reserved.
    pub(super) held: f64,
    /// Σ tokens that decoding requests still owe.
    pub(super) owed: f64,
    pub(super) polled_s: f64,
    pub(super) since_poll: u32,
    pub(super) waited: u32,
    /// `new_token_ratio` and the step at which it was set.
    pub(super) expected: (f64, u32),
    /// Step at which a request lost its blocks: those who stay take theirs before any is admitted.
    pub(super) barred: Option<u32>,
    horizon_s: f64,
    pub(super) fixed: Fixed,
    /// What happened so far.
    pub books: Books,
}

/// The next whole number; as large as can be where there is none.
#[inline]
fn up(value: f64) -> u32 {
    let below = value as u32;
    below.saturating_add(u32::from(value > f64::from(below)))
}

/// How far to play: what starts before one time and ends up to another.
#[derive(Clone, Copy, Debug)]
pub(in crate::serving) struct Until {
    pub start_s: f64,
    pub end_s: f64,
}

/// Steps between two tries to admit while the pool refuses by expectation, which falls step by
/// step.
const RETRY_STEPS: u32 = 16;

impl Replica {
    /// Empties the engine and sets its clock to 0; memory is kept.
    pub fn reset(&mut self, policy: &Policy) {
        self.queue.clear();
        self.decoding.clear();
        self.ready.clear();
        self.partial = None;
        (self.clock_s, self.polled_s, self.horizon_s) = (0.0, 0.0, 0.0);
        (self.context, self.held, self.owed) = (0.0, 0.0, 0.0);
        (self.steps, self.since_poll, self.waited) = (0, 0, 0);
        self.barred = None;
        self.expected = match policy.reserve {
            Reserve::Expected { first, .. } => (first, 0),
            Reserve::Prompt | Reserve::Whole => (0.0, 0),
        };
        self.fixed = Fixed {
            kv: policy.kv_tokens as f64,
            waste: policy.waste_tokens(),
            whole: policy.reserve == Reserve::Whole,
            polls: policy.backend == Backend::Sglang,
        };
        self.books.reset();
    }

    /// Requests that were offered and have not finished.
    #[must_use]
    pub fn load(&self) -> usize {
        self.queue.len() + self.decoding.len() + usize::from(self.partial.is_some())
    }

    /// Up to when it was played, s.
    #[must_use]
    pub fn clock_s(&self) -> f64 {
        self.clock_s
    }

    /// Time of the next end, as far as known: until then nothing in the engine changes for others.
    #[must_use]
    pub fn horizon_s(&self) -> f64 {
        self.horizon_s
    }

    /// Nothing will happen until something is offered.
    pub(in crate::serving) fn idle(&mut self) {
        self.horizon_s = f64::INFINITY;
    }

    /// The next change is to be found anew.
    pub(in crate::serving) fn forget_horizon(&mut self) {
        self.horizon_s = f64::NEG_INFINITY;
    }

    /// Hands a request over; the engine can see it from `seen_s` on. In order of arrival.
    #[inline]
    pub fn offer(&mut self, job: u32, seen_s: f64) {
        let last = self.queue.back().map_or(0.0, |w| w.seen_s);
        self.queue.push_back(Waiting {
            seen_s: seen_s.max(last),
            job,
        });
        self.horizon_s = 0.0;
    }

    /// Plays until something ends, written to `ended`, or until nothing more can happen before
    /// `limit_s` whatever is offered from then on.
    pub fn run<T: StepTimes + ?Sized>(
        &mut self,
        rules: &Rules<'_, T>,
        jobs: &mut [Job],
        limit_s: f64,
        ended: &mut Vec<u32>,
    ) {
        let until = Until {
            start_s: limit_s,
            end_s: limit_s,
        };
        self.advance(rules, jobs, until, ended);
    }

    /// The same with limits of their own for the start and for the end of what is played.
    pub(in crate::serving) fn advance<T: StepTimes + ?Sized>(
        &mut self,
        rules: &Rules<'_, T>,
        jobs: &mut [Job],
        until: Until,
        ended: &mut Vec<u32>,
    ) {
        if self.horizon_s > until.end_s {
            return;
        }
        while self.clock_s < until.start_s {
            if self.decoding.is_empty() && self.partial.is_none() {
                let seen = self.queue.front().map_or(f64::INFINITY, |w| w.seen_s);
                if seen >= until.start_s || seen.is_infinite() {
                    self.horizon_s = seen;
                    return;
                }
                self.wake(seen);
            }
            let passed = if rules.decode_only {
                self.enter(rules.policy, jobs, ended);
                false
            } else {
                self.pass(rules, jobs, ended)
            };
            if ended.is_empty()
                && !passed
                && !self.decoding.is_empty()
                && !self.decode(rules, jobs, until.end_s, ended)
            {
                return;
            }
            if !ended.is_empty() {
                self.horizon_s = self.clock_s;
                return;
            }
        }
        self.horizon_s = self.clock_s;
    }

    /// The idle engine sees a request.
    #[inline]
    fn wake(&mut self, seen_s: f64) {
        self.clock_s = self.clock_s.max(seen_s);
        self.polled_s = self.clock_s;
        self.since_poll = 0;
        (self.context, self.held, self.owed) = (0.0, 0.0, 0.0);
    }

    /// Whether the engine has seen what arrived at `seen_s`.
    #[inline]
    pub(super) fn sees(&self, seen_s: f64) -> bool {
        let looked_s = if self.fixed.polls {
            self.polled_s
        } else {
            self.clock_s
        };
        seen_s <= looked_s
    }

    /// Requests that decode.
    #[inline]
    pub(super) fn running(&self) -> f64 {
        f64::from(self.decoding.len() as u32)
    }

    /// Decode steps up to the next event; false if that lies beyond the limit.
    fn decode<T: StepTimes + ?Sized>(
        &mut self,
        rules: &Rules<'_, T>,
        jobs: &mut [Job],
        limit_s: f64,
        ended: &mut Vec<u32>,
    ) -> bool {
        let policy = rules.policy;
        let Some(top) = self.decoding.front() else {
            return true;
        };
        let n = self.running();
        let growth = n * policy.tokens_per_step;
        let context = self.context / n;
        let to_end = (top >> 32) as u32 - self.steps;
        let (mut k, blocked) = match self.queue.front() {
            None => (to_end, false),
            Some(front) => {
                let step_s = rules.times.decode_s(n, context) + policy.host_s;
                self.until_admission(policy, jobs, front, (step_s, to_end))
            }
        };
        if !self.fixed.whole {
            let free = self.fixed.kv - self.held;
            if free < growth * f64::from(k) {
                if free < growth && self.decoding.len() > 1 {
                    self.preempt(policy, jobs);
                    return true;
                }
                k = (free / growth).max(1.0) as u32;
            }
        }
        let steps = f64::from(k);
        let middle = context + policy.tokens_per_step * (steps - 1.0) / 2.0;
        let span_s = steps * (rules.times.decode_s(n, middle) + policy.host_s);
        if self.clock_s + span_s > limit_s {
            self.horizon_s = self.clock_s + span_s;
            return false;
        }
        if self.queue.front().is_some_and(|w| w.seen_s <= self.clock_s) {
            self.waited = self.waited.saturating_add(k);
        }
        self.clock_s += span_s;
        self.steps += k;
        self.grow(growth * steps);
        self.poll(policy, k, span_s);
        self.books.span(n, span_s, blocked, self.held);
        if k == to_end {
            self.retire(policy, jobs, ended);
        }
        true
    }

    /// Decode steps until a waiting request may be admitted, at most `most`; and whether one that
    /// was seen is refused.
    #[inline]
    fn until_admission(
        &self,
        policy: &Policy,
        jobs: &[Job],
        front: Waiting,
        (step_s, most): (f64, u32),
    ) -> (u32, bool) {
        let seen = self.sees(front.seen_s);
        if self.barred == Some(self.steps) {
            return (1, seen);
        }
        if !self.admits(policy, &jobs[front.job as usize]) {
            let full = self.decoding.len() >= policy.max_batch as usize;
            let retry = !full && matches!(policy.reserve, Reserve::Expected { .. });
            let k = if retry { most.min(RETRY_STEPS) } else { most };
            return (k, seen);
        }
        let (cap, next_s) = if seen {
            // Ranks wait for each other.
            let left = policy.dp_wait_steps.saturating_sub(self.waited).max(1);
            let full = self.queue.get(policy.attention_dp as usize - 1);
            (left, full.map_or(f64::INFINITY, |w| w.seen_s))
        } else {
            (u32::MAX, front.seen_s)
        };
        let mut need = up((next_s - self.clock_s) / step_s).max(1);
        if self.fixed.polls && policy.recv_interval > 1 {
            let (interval, first) = (policy.recv_interval, policy.recv_interval - self.since_poll);
            let more = need.saturating_sub(first).div_ceil(interval);
            need = first.saturating_add(more.saturating_mul(interval));
        }
        let k = most.min(need);
        (k.min(cap), false)
    }

    /// `tokens` more are in the contexts.
    #[inline]
    pub(super) fn grow(&mut self, tokens: f64) {
        self.context += tokens;
        self.owed -= tokens;
        if !self.fixed.whole {
            self.held += tokens;
        }
    }

    #[inline]
    fn poll(&mut self, policy: &Policy, steps: u32, span_s: f64) {
        if self.fixed.polls {
            self.since_poll = (self.since_poll + steps) % policy.recv_interval;
            let last = self.clock_s - f64::from(self.since_poll) / f64::from(steps) * span_s;
            self.polled_s = self.polled_s.max(last);
        }
    }

    /// Starts the decode steps of a request that has its first token.
    #[inline]
    pub(super) fn start(&mut self, policy: &Policy, id: u32, job: &mut Job) {
        let left = job.output - job.done;
        let steps = if policy.tokens_per_step == 1.0 {
            left
        } else {
            (f64::from(left) / policy.tokens_per_step).ceil() as u32
        };
        job.from_step = self.steps;
        self.context += f64::from(job.input + job.done);
        self.owed += f64::from(left);
        let key = u64::from(self.steps + steps) << 32 | u64::from(id);
        self.decoding.insert(key);
    }

    /// Ends those that have all their tokens.
    #[inline]
    pub(super) fn retire(&mut self, policy: &Policy, jobs: &mut [Job], ended: &mut Vec<u32>) {
        while let Some(key) = self.decoding.front() {
            if (key >> 32) as u32 > self.steps {
                return;
            }
            let id = key as u32;
            self.decoding.take();
            let job = &mut jobs[id as usize];
            job.finish_s = self.clock_s;
            self.release(policy, job);
            ended.push(id);
        }
    }

    /// Gives a decoding request's tokens back.
    #[inline]
    pub(super) fn release(&mut self, policy: &Policy, job: &Job) {
        let gained = f64::from(self.steps - job.from_step) * policy.tokens_per_step;
        let tokens = f64::from(job.input + job.done) + gained;
        self.context -= tokens;
        self.owed -= f64::from(job.output - job.done) - gained;
        self.held -= self.fixed.waste
            + if self.fixed.whole {
                f64::from(job.input + job.output)
            } else {
                tokens
            };
    }
}
