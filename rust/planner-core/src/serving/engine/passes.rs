//! Admission, the passes over prompts of the three schedulers, and preemption.

use std::cmp::Reverse;

use super::policy::{Policy, Reserve};
use super::replica::{Job, Partial, Replica, Rules, Waiting};
use crate::serving::deployment::Backend;
use crate::serving::steps::{Pass, StepTimes};

/// SGLang counts at most this much of an answer when it admits.
const CLIP: u32 = 4096;
/// Steps that SGLang grants each running request after a retraction.
const RETRACT_STEPS: f64 = 20.0;

/// Prompt tokens gathered for a pass.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    tokens: u32,
    prompts: u32,
    /// Σ new tokens · tokens computed before.
    past: f64,
}

impl Batch {
    #[inline]
    fn add(&mut self, new: u32, past: u32) {
        self.tokens += new;
        self.prompts += 1;
        self.past += f64::from(new) * f64::from(past);
    }
}

impl Replica {
    /// Whether slots and pool have room for a request.
    #[inline]
    pub(super) fn admits(&self, policy: &Policy, job: &Job) -> bool {
        let running = self.decoding.len() + self.ready.len() + usize::from(self.partial.is_some());
        if running >= policy.max_batch as usize {
            return false;
        }
        if running == 0 {
            return true;
        }
        if self.barred == Some(self.steps) {
            return false;
        }
        let own = self.fixed.waste + f64::from(job.input);
        let need = match policy.reserve {
            Reserve::Prompt => own + f64::from(job.done),
            Reserve::Whole => own + f64::from(job.output),
            Reserve::Expected { .. } => {
                let answer = f64::from((job.output - job.done).min(CLIP) + job.done);
                own + answer + self.expected_ratio(policy) * self.owed
            }
        };
        self.held + need <= self.fixed.kv
    }

    /// SGLang's `new_token_ratio` now.
    fn expected_ratio(&self, policy: &Policy) -> f64 {
        let Reserve::Expected {
            first,
            least,
            steps,
        } = policy.reserve
        else {
            return 0.0;
        };
        let (ratio, from) = self.expected;
        let decay = (first - least) / steps;
        (ratio - decay * f64::from(self.steps - from)).max(least)
    }

    /// Takes the first waiting request into the engine: its tokens are held from now on.
    #[inline]
    fn admit(&mut self, job: &mut Job) {
        self.queue.take();
        if job.start_s.is_nan() {
            job.start_s = self.clock_s;
        }
        let whole = self.fixed.whole;
        let answer = if whole { job.output } else { job.done };
        self.held += self.fixed.waste + f64::from(job.input + answer);
    }

    /// The first waiting request, if it can be admitted now.
    #[inline(always)]
    fn front_admits<'a>(&self, policy: &Policy, jobs: &'a mut [Job]) -> Option<(u32, &'a mut Job)> {
        let front = self.queue.front()?;
        if !self.sees(front.seen_s) {
            return None;
        }
        let job = &mut jobs[front.job as usize];
        self.admits(policy, job).then_some((front.job, job))
    }

    /// Admits to decode at once: the prompt was computed elsewhere.
    pub(super) fn enter(&mut self, policy: &Policy, jobs: &mut [Job], ended: &mut Vec<u32>) {
        while let Some((id, job)) = self.front_admits(policy, jobs) {
            self.admit(job);
            self.ready.push(id);
            self.first_tokens(policy, jobs, ended);
        }
    }

    /// A pass over prompts if there are any to compute now; false if there are none.
    pub(super) fn pass<T: StepTimes + ?Sized>(
        &mut self,
        rules: &Rules<'_, T>,
        jobs: &mut [Job],
        ended: &mut Vec<u32>,
    ) -> bool {
        let policy = rules.policy;
        let seen = |w: Waiting| self.sees(w.seen_s);
        if self.partial.is_none() && !self.queue.front().is_some_and(seen) {
            return false;
        }
        let mixed = !self.fixed.polls;
        let decodes = if mixed { self.decoding.len() as u32 } else { 0 };
        let budget = policy
            .max_batched_tokens
            .saturating_sub(decodes * policy.step_tokens);
        let batch = self.gather(policy, jobs, budget);
        if batch.tokens == 0 {
            return false;
        }
        self.waited = 0;
        let mut span_s = policy.host_s
            + rules.times.prefill_s(&Pass {
                tokens: f64::from(batch.tokens),
                prompts: f64::from(batch.prompts),
                past: batch.past / f64::from(batch.tokens),
            });
        let n = f64::from(decodes);
        if decodes > 0 {
            span_s += policy.decode_share * rules.times.decode_s(n, self.context / n);
            self.steps += 1;
            self.grow(n * policy.tokens_per_step);
        }
        self.clock_s += span_s;
        self.books.passes += 1;
        self.books.prompt_tokens += u64::from(batch.tokens);
        let running = self.running() + f64::from(batch.prompts);
        self.books.span(running, span_s, false, self.held);
        if mixed {
            let due = |key: u64| (key >> 32) as u32 <= self.steps;
            if self.decoding.front().is_some_and(due) {
                self.retire(policy, jobs, ended);
            }
        } else {
            self.polled_s = self.clock_s;
            self.since_poll = 0;
        }
        self.first_tokens(policy, jobs, ended);
        true
    }

    /// Prompts of the next pass within a budget of tokens; those that it completes are `ready`.
    #[inline(always)]
    fn gather(&mut self, policy: &Policy, jobs: &mut [Job], budget: u32) -> Batch {
        let mut batch = Batch::default();
        if let Some(Partial { job, left }) = self.partial {
            let new = left.min(budget);
            let j = &jobs[job as usize];
            batch.add(new, j.input + j.done - left);
            if new == left {
                self.partial = None;
                self.ready.push(job);
            } else {
                self.partial = Some(Partial {
                    job,
                    left: left - new,
                });
                return batch;
            }
        }
        if self.ranks_wait(policy) {
            return batch;
        }
        while batch.tokens < budget {
            let Some((id, job)) = self.front_admits(policy, jobs) else {
                break;
            };
            let (known, past) = (
                job.input + job.done,
                if job.done == 0 { job.hit } else { 0 },
            );
            let left = (known - past).max(1);
            let room = budget - batch.tokens;
            let whole = policy.backend == Backend::Trtllm;
            if whole && left > room && batch.prompts > 0 {
                break;
            }
            let new = if whole { left } else { left.min(room) };
            self.admit(job);
            batch.add(new, past);
            if new == left {
                self.ready.push(id);
            } else {
                self.partial = Some(Partial {
                    job: id,
                    left: left - new,
                });
            }
        }
        batch
    }

    /// Attention replicas wait until each has a prompt, while there is something to decode.
    #[inline]
    fn ranks_wait(&self, policy: &Policy) -> bool {
        if policy.attention_dp == 1 || policy.backend != Backend::Trtllm {
            return false;
        }
        let last = self.queue.get(policy.attention_dp as usize - 1);
        let full = last.is_some_and(|w| w.seen_s <= self.clock_s);
        !full && !self.decoding.is_empty() && self.waited < policy.dp_wait_steps
    }

    /// Completed prompts give their first token and decode, or end if that is all.
    #[inline(always)]
    fn first_tokens(&mut self, policy: &Policy, jobs: &mut [Job], ended: &mut Vec<u32>) {
        let grows = !self.fixed.whole;
        for i in 0..self.ready.len() {
            let id = self.ready[i];
            let job = &mut jobs[id as usize];
            if job.first_s.is_nan() {
                job.first_s = self.clock_s;
            }
            job.done += 1;
            if grows {
                self.held += 1.0;
            }
            if job.done >= job.output {
                job.finish_s = self.clock_s;
                self.held -= self.fixed.waste + f64::from(job.input + job.output);
                ended.push(id);
            } else {
                self.start(policy, id, job);
            }
        }
        self.ready.clear();
        self.books.running(self.decoding.len() as u32);
    }

    /// One decoding request loses its tokens and waits at the head of the queue: vLLM takes the one
    /// admitted last, SGLang the one with the shortest answer so far, of equal ones the longest
    /// prompt.
    #[cold]
    pub(super) fn preempt(&mut self, policy: &Policy, jobs: &mut [Job]) {
        let gained = |job: &Job| f64::from(self.steps - job.from_step) * policy.tokens_per_step;
        let answer = |job: &Job| (f64::from(job.done) + gained(job)) as u32;
        let retracts = matches!(policy.reserve, Reserve::Expected { .. });
        let ids = self.decoding.as_slice().iter().map(|key| *key as u32);
        let last = |id: &u32| {
            let job = &jobs[*id as usize];
            if retracts {
                (answer(job), Reverse(job.input), Reverse(*id))
            } else {
                (u32::MAX - job.from_step, Reverse(0), Reverse(*id))
            }
        };
        let Some(id) = ids.min_by_key(last) else {
            return;
        };
        let done = answer(&jobs[id as usize]);
        let job = &mut jobs[id as usize];
        self.release(policy, job);
        self.decoding.retain(|key| *key as u32 != id);
        job.done = done.min(job.output - 1);
        job.preemptions += 1;
        self.books.preemptions += 1;
        self.barred = Some(self.steps);
        self.queue.push_front(Waiting {
            seen_s: self.polled_s.min(self.clock_s),
            job: id,
        });
        if retracts {
            let n = self.running();
            let ids = self.decoding.as_slice().iter().map(|key| *key as u32);
            let all: f64 = ids.map(|id| f64::from(jobs[id as usize].output)).sum();
            let ratio = (all - self.owed + RETRACT_STEPS * n) / all.max(1.0);
            self.expected = (ratio.clamp(0.0, 1.0), self.steps);
        }
    }
}
