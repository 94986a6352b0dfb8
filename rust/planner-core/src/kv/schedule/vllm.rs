//! A step of vLLM v1 (`v1/core/sched/scheduler.py`).

use super::engine::{Active, Engine, Step};

impl Engine<'_> {
    /// Running requests first, in order of admission; then waiting ones, unless something was
    /// preempted. All share one token budget.
    pub(super) fn vllm_step(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = self.options.max_batched_tokens as u32;
        let preempted = self.schedule_running(&mut budget, &mut step);
        if !preempted {
            self.schedule_waiting(&mut budget, &mut step);
        }
        step
    }

    /// Tokens that a request computes in this step.
    #[inline]
    fn chunk(&self, left: u32, budget: u32) -> u32 {
        let threshold = self.options.long_prefill_tokens as u32;
        let chunk = left.min(budget);
        if threshold > 0 {
            chunk.min(threshold)
        } else {
            chunk
        }
    }

    /// True if a request was preempted: the last one admitted loses its blocks.
    fn schedule_running(&mut self, budget: &mut u32, step: &mut Step) -> bool {
        let mut preempted = false;
        let mut i = 0;
        while i < self.running.len() && *budget > 0 {
            let request = &self.running[i];
            let new = self.chunk(request.known() - request.computed, *budget);
            let lacking = self.lacking(request, request.computed + new);
            while lacking > self.pool.free() {
                preempted = true;
                step.short_of_blocks = true;
                let Some(last) = self.running.pop() else {
                    break;
                };
                let last = self.evict(last);
                self.waiting.push_front(last);
                if self.running.len() == i {
                    return true;
                }
            }
            let request = &mut self.running[i];
            if lacking > 0 {
                self.pool.take(&mut request.held, lacking);
            }
            request.new = new;
            *budget -= new;
            count(request, step);
            i += 1;
        }
        preempted
    }

    fn schedule_waiting(&mut self, budget: &mut u32, step: &mut Step) {
        let keep = (self.options.watermark * self.options.blocks as f64) as u32;
        while *budget > 0 && self.running.len() < self.options.max_seqs as usize {
            let Some(request) = self.waiting.front() else {
                return;
            };
            let (hits, idle) = self.prefix(request);
            let computed = hits * self.block;
            let new = self.chunk(request.known() - computed, *budget);
            let wanted = if self.options.reserve_prompt {
                request.known()
            } else {
                computed + new
            };
            let need = wanted.div_ceil(self.block) - hits + idle;
            let margin = if self.running.is_empty() { 0 } else { keep };
            if need + margin > self.pool.free() {
                step.short_of_blocks = true;
                return;
            }
            let Some(mut request) = self.waiting.pop_front() else {
                return;
            };
            self.admit(&mut request, hits, computed + new);
            request.new = new;
            *budget -= new;
            count(&request, step);
            self.running.push(request);
        }
    }
}

/// Adds a request's tokens to the step.
#[inline]
fn count(request: &Active, step: &mut Step) {
    if request.generated > 0 && request.new == 1 {
        step.decodes += 1;
        step.context_tokens += u64::from(request.computed);
    } else {
        step.prefill_tokens += u64::from(request.new);
    }
}
