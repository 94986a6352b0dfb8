//! A step of SGLang (`managers/schedule_policy.py`, `schedule_batch.py`).
//!
//! Waiting requests are admitted while prompt and expected answer fit beside what running requests
//! are expected to add; an expectation is the share `new_token_ratio` of what remains of an answer,
//! at most 4,096 tokens. If any is admitted the step is a prefill, otherwise a decode. If a decode
//! runs out of memory, requests are retracted: those with fewest tokens of answer first, of equal
//! ones that with the longest prompt.

use super::engine::{Active, Engine, Step};

const CLIP: u32 = 4096;
const INIT_RATIO: f64 = 0.7;
const MIN_FACTOR: f64 = 0.14;
const DECAY_STEPS: f64 = 600.0;
const RETRACT_STEPS: f64 = 20.0;

/// `new_token_ratio` and its decay.
pub(super) struct Expectation {
    ratio: f64,
    least: f64,
    decay: f64,
}

impl Expectation {
    pub(super) fn new(conservativeness: f64) -> Self {
        let ratio = (INIT_RATIO * conservativeness).min(1.0);
        let least = (ratio * MIN_FACTOR).min(1.0);
        Self {
            ratio,
            least,
            decay: (ratio - least) / DECAY_STEPS,
        }
    }
}

impl Engine<'_> {
    pub(super) fn sglang_step(&mut self) -> Step {
        let mut step = Step::default();
        if !self.prefill(&mut step) {
            self.decode(&mut step);
        }
        step
    }

    /// Blocks that running requests are expected to add, as tokens.
    fn expected_tokens(&self) -> f64 {
        let rest = |r: &Active| f64::from((r.output - r.generated).min(CLIP));
        self.running.iter().map(rest).sum::<f64>() * self.expectation.ratio
    }

    /// Continues a chunked prompt, then admits; true if anything was computed.
    fn prefill(&mut self, step: &mut Step) -> bool {
        let mut chunk = self.options.max_batched_tokens as u32;
        let mut any = self.continue_chunk(&mut chunk, step);
        let mut room = f64::from(self.pool.free()) * f64::from(self.block) - self.expected_tokens();
        while chunk > 0 && self.running.len() < self.options.max_seqs as usize {
            let Some(request) = self.waiting.front() else {
                break;
            };
            let (hits, idle) = self.prefix(request);
            let extend = request.known() - hits * self.block;
            let answer = (request.output - request.generated).min(CLIP);
            let page = self.block;
            let wanted =
                f64::from((extend + answer).next_multiple_of(page)) + f64::from(idle * page);
            // Nothing runs: the prompt alone must fit, the answer will by retraction of nobody.
            let fits = wanted <= room || (self.running.is_empty() && !any);
            if !fits || extend.div_ceil(page) + idle > self.pool.free() {
                step.short_of_blocks = true;
                break;
            }
            let Some(mut request) = self.waiting.pop_front() else {
                break;
            };
            let new = extend.min(chunk);
            let tokens = hits * self.block + new;
            self.admit(&mut request, hits, tokens);
            request.new = new;
            step.prefill_tokens += u64::from(new);
            chunk -= new;
            room -= wanted;
            any = true;
            self.running.push(request);
        }
        any
    }

    /// Computes on at prompts that were cut.
    fn continue_chunk(&mut self, chunk: &mut u32, step: &mut Step) -> bool {
        let mut any = false;
        for i in 0..self.running.len() {
            let request = &self.running[i];
            let left = request.known() - request.computed;
            if left <= 1 || *chunk == 0 {
                continue;
            }
            let affordable =
                (self.pool.free() + request.held.count) * self.block - request.computed;
            let new = left.min(*chunk).min(affordable);
            if new == 0 {
                continue;
            }
            let lacking = self.lacking(request, request.computed + new);
            let request = &mut self.running[i];
            self.pool.take(&mut request.held, lacking);
            request.new = new;
            step.prefill_tokens += u64::from(new);
            *chunk -= new;
            any = true;
        }
        any
    }

    fn decode(&mut self, step: &mut Step) {
        let lacking =
            |e: &Self| -> u32 { e.running.iter().map(|r| e.lacking(r, r.computed + 1)).sum() };
        let mut retracted = false;
        while lacking(self) > self.pool.free() && self.running.len() > 1 {
            self.retract_one();
            retracted = true;
            step.short_of_blocks = true;
        }
        self.update_expectation(retracted);
        for i in 0..self.running.len() {
            let lacking = self.lacking(&self.running[i], self.running[i].computed + 1);
            let request = &mut self.running[i];
            if lacking > 0 {
                self.pool.take(&mut request.held, lacking);
            }
            request.new = 1;
            step.decodes += 1;
            step.context_tokens += u64::from(request.computed);
        }
    }

    fn retract_one(&mut self) {
        let order = |r: &Active| {
            (
                r.generated,
                std::cmp::Reverse(r.prompt),
                std::cmp::Reverse(r.index),
            )
        };
        let Some(i) = (0..self.running.len()).min_by_key(|i| order(&self.running[*i])) else {
            return;
        };
        let request = self.running.remove(i);
        let request = self.evict(request);
        self.waiting.push_back(request);
    }

    fn update_expectation(&mut self, retracted: bool) {
        if !retracted {
            self.expectation.ratio =
                (self.expectation.ratio - self.expectation.decay).max(self.expectation.least);
            return;
        }
        let n = self.running.len() as f64;
        let done: f64 = self.running.iter().map(|r| f64::from(r.generated)).sum();
        let all: f64 = self.running.iter().map(|r| f64::from(r.output)).sum();
        self.expectation.ratio = ((done + RETRACT_STEPS * n) / all.max(1.0)).min(1.0);
    }
}
