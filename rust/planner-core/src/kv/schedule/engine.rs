//! The engine's clock and books; what happens in a step is the policy's.

use std::collections::VecDeque;

use super::outcome::{Outcome, Record, Rejected, Summary, Timeline, latencies, request_table};
use super::pool::{Held, Pool};
use super::sglang::Expectation;
use super::{Options, Policy};
use crate::error::{Error, Result};
use crate::kv::trace::Request;

/// A request between arrival and end.
#[derive(Debug, Default)]
pub(super) struct Active {
    /// Place in the trace.
    pub index: u32,
    /// Prompt, tokens.
    pub prompt: u32,
    /// Answer, tokens.
    pub output: u32,
    /// Answer so far.
    pub generated: u32,
    /// Tokens whose keys and values are in the cache.
    pub computed: u32,
    /// Tokens that this step computes.
    pub new: u32,
    /// Blocks with a key.
    pub named: u32,
    /// Was admitted before.
    pub seen: bool,
    pub held: Held,
    pub keys: Vec<u64>,
}

impl Active {
    /// Tokens known so far.
    #[inline]
    pub(super) fn known(&self) -> u32 {
        self.prompt + self.generated
    }

    /// Key of block `i`: the trace's in the prompt, beyond it one of the request's own. None for a
    /// prompt block that the trace does not name.
    fn key(&self, i: u32, block: u32) -> Option<u64> {
        if (i + 1) * block <= self.prompt {
            return self.keys.get(i as usize).copied();
        }
        if self.keys.is_empty() {
            return None;
        }
        let own = (u64::from(self.index) << 32 | u64::from(i)).wrapping_add(1);
        Some(own.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1 << 63)
    }
}

/// What a step computed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub prefill_tokens: u64,
    pub decodes: u64,
    pub context_tokens: u64,
    pub short_of_blocks: bool,
}

/// The engine.
pub(super) struct Engine<'a> {
    pub options: &'a Options,
    pub block: u32,
    pub pool: Pool,
    pub running: Vec<Active>,
    pub waiting: VecDeque<Active>,
    pub now_s: f64,
    pub records: Vec<Record>,
    pub summary: Summary,
    pub expectation: Expectation,
}

/// Plays a trace. `next` gives the requests in order of arrival; `stop` is polled now and then.
///
/// # Errors
/// Options that make no sense, a bad line, or an interrupt.
pub fn run(
    options: &Options,
    next: &mut dyn FnMut(&mut Request) -> Result<bool>,
    stop: &dyn Fn() -> bool,
) -> Result<Outcome> {
    options.check()?;
    let mut engine = Engine::new(options);
    let mut arrivals = Arrivals {
        next,
        request: Request::default(),
        more: true,
    };
    arrivals.advance()?;
    let mut timeline = Timeline::default();
    let (mut area, mut full) = (0.0, 0u64);
    loop {
        arrivals.deliver(&mut engine)?;
        if engine.running.is_empty() && engine.waiting.is_empty() {
            match arrivals.time() {
                Some(time) => engine.now_s = engine.now_s.max(time),
                None => break,
            }
            continue;
        }
        let step = match options.policy {
            Policy::Vllm => engine.vllm_step(),
            Policy::Sglang => engine.sglang_step(),
        };
        full += u64::from(step.short_of_blocks);
        engine.summary.computed_tokens += step.prefill_tokens;
        if step.prefill_tokens + step.decodes == 0 {
            // Everything waits for blocks and nothing holds any: cannot be, as oversized requests
            // are rejected on arrival.
            return Err(Error::field(
                "blocks",
                options.blocks,
                "no request can make progress",
            ));
        }
        let used = engine.pool.used();
        let dt = options
            .step
            .of(step.prefill_tokens, step.decodes, step.context_tokens);
        engine.now_s += dt;
        area += dt * f64::from(used);
        engine.book(used, &mut timeline);
        engine.complete();
        if engine.summary.steps.is_multiple_of(4096) && stop() {
            return Err(Error::Interrupted);
        }
    }
    Ok(engine.finish(&timeline, area, full))
}

/// The trace, one request ahead.
struct Arrivals<'a> {
    next: &'a mut dyn FnMut(&mut Request) -> Result<bool>,
    request: Request,
    more: bool,
}

impl Arrivals<'_> {
    fn advance(&mut self) -> Result<()> {
        self.more = (self.next)(&mut self.request)?;
        Ok(())
    }

    fn time(&self) -> Option<f64> {
        self.more.then_some(self.request.arrival_s)
    }

    fn deliver(&mut self, engine: &mut Engine<'_>) -> Result<()> {
        while self.time().is_some_and(|t| t <= engine.now_s) {
            engine.arrive(&self.request);
            self.advance()?;
        }
        Ok(())
    }
}

impl<'a> Engine<'a> {
    fn new(options: &'a Options) -> Self {
        Self {
            options,
            block: options.block_tokens as u32,
            pool: Pool::new(
                options.blocks as u32,
                options.prefix_caching,
                options.unhashed_first,
            ),
            running: Vec::new(),
            waiting: VecDeque::new(),
            now_s: 0.0,
            records: Vec::new(),
            summary: Summary::default(),
            expectation: Expectation::new(options.conservativeness),
        }
    }

    fn arrive(&mut self, request: &Request) {
        let index = self.records.len() as u32;
        let (prompt, output) = (
            request.input_tokens as u32,
            (request.output_tokens as u32).max(1),
        );
        // The last token of the answer is never stored.
        let blocks = (u64::from(prompt) + u64::from(output) - 1).div_ceil(u64::from(self.block));
        let rejected = blocks > self.options.blocks;
        self.records.push(Record {
            arrival_s: request.arrival_s,
            input: prompt,
            output,
            hit: 0,
            queue_s: f64::NAN,
            ttft_s: f64::NAN,
            finish_s: f64::NAN,
            preemptions: 0,
            rejected,
        });
        if rejected {
            self.summary.rejected += 1;
            self.summary.first_rejected.get_or_insert(Rejected {
                request: u64::from(index),
                blocks,
                shortfall_blocks: blocks - self.options.blocks,
            });
            return;
        }
        let keys = if self.pool.shares() {
            request.keys.clone()
        } else {
            Vec::new()
        };
        self.waiting.push_back(Active {
            index,
            prompt,
            output,
            keys,
            ..Active::default()
        });
    }

    /// Blocks that a request lacks to hold `tokens`.
    #[inline]
    pub(super) fn lacking(&self, request: &Active, tokens: u32) -> u32 {
        tokens
            .div_ceil(self.block)
            .saturating_sub(request.held.count)
    }

    /// Cached prefix of a waiting request: blocks, and how many of them are free now. At least one
    /// token is left to compute.
    pub(super) fn prefix(&self, request: &Active) -> (u32, u32) {
        let most = (request.known() - 1) / self.block;
        self.pool
            .lookup((0..most).map_while(|i| request.key(i, self.block)))
    }

    /// Admits a request with `hits` cached blocks and blocks up to `tokens`.
    pub(super) fn admit(&mut self, request: &mut Active, hits: u32, tokens: u32) {
        let keys: Vec<u64> = (0..hits)
            .map_while(|i| request.key(i, self.block))
            .collect();
        self.pool.take_hits(&mut request.held, keys.into_iter());
        request.computed = hits * self.block;
        request.named = hits;
        if !request.seen {
            request.seen = true;
            let record = &mut self.records[request.index as usize];
            record.queue_s = self.now_s - record.arrival_s;
            record.hit = request.computed;
            self.summary.hit_tokens += u64::from(request.computed);
        }
        let lacking = self.lacking(request, tokens);
        self.pool.take(&mut request.held, lacking);
    }

    /// Takes a request's blocks away; it starts over when it is admitted again.
    pub(super) fn evict(&mut self, mut request: Active) -> Active {
        self.pool.release(&mut request.held);
        request.computed = 0;
        request.named = 0;
        request.new = 0;
        self.records[request.index as usize].preemptions += 1;
        self.summary.preemptions += 1;
        self.summary.first_preemption_s.get_or_insert(self.now_s);
        request
    }

    fn book(&mut self, used: u32, timeline: &mut Timeline) {
        let (running, waiting) = (self.running.len() as u64, self.waiting.len() as u64);
        let s = &mut self.summary;
        s.steps += 1;
        s.peak_running = s.peak_running.max(running);
        s.peak_waiting = s.peak_waiting.max(waiting);
        s.peak_occupancy_ratio = s
            .peak_occupancy_ratio
            .max(f64::from(used) / self.options.blocks as f64);
        timeline.push(self.now_s, running as u32, waiting as u32, used);
    }

    /// After a step: counts what was computed, names full blocks, hands out tokens, frees those
    /// that are done.
    fn complete(&mut self) {
        let shares = self.pool.shares();
        let mut any_done = false;
        for request in &mut self.running {
            if request.new == 0 {
                continue;
            }
            request.computed += std::mem::take(&mut request.new);
            if shares {
                name_blocks(request, &mut self.pool, self.block);
            }
            if request.computed < request.prompt + request.generated {
                continue;
            }
            request.generated += 1;
            if request.generated == 1 {
                let record = &mut self.records[request.index as usize];
                record.ttft_s = self.now_s - record.arrival_s;
            }
            any_done |= request.generated == request.output;
        }
        if any_done {
            self.retire();
        }
    }

    fn retire(&mut self) {
        let (pool, records, now_s) = (&mut self.pool, &mut self.records, self.now_s);
        let finished = &mut self.summary.finished;
        self.running.retain_mut(|request| {
            if request.generated < request.output {
                return true;
            }
            pool.release(&mut request.held);
            records[request.index as usize].finish_s = now_s;
            *finished += 1;
            false
        });
    }

    fn finish(mut self, timeline: &Timeline, area: f64, full: u64) -> Outcome {
        let done = || self.records.iter().filter(|r| !r.rejected);
        let last = done().map(|r| r.finish_s).fold(0.0, f64::max);
        let tokens: u64 = done().map(|r| u64::from(r.output)).sum();
        let prompt: u64 = done().map(|r| u64::from(r.input)).sum();
        let s = &mut self.summary;
        s.requests = self.records.len() as u64;
        s.makespan_s = last;
        s.output_tokens_per_s = if last > 0.0 {
            tokens as f64 / last
        } else {
            0.0
        };
        s.hit_ratio = if prompt > 0 {
            s.hit_tokens as f64 / prompt as f64
        } else {
            0.0
        };
        s.mean_occupancy_ratio = if last > 0.0 {
            area / last / self.options.blocks.max(1) as f64
        } else {
            0.0
        };
        s.full_steps_ratio = full as f64 / s.steps.max(1) as f64;
        latencies(&self.records, s);
        Outcome {
            requests: request_table(&self.records),
            timeline: timeline.table(self.options.blocks),
            summary: self.summary,
        }
    }
}

fn name_blocks(request: &mut Active, pool: &mut Pool, block: u32) {
    let full = request.computed / block;
    while request.named < full {
        if let Some(key) = request.key(request.named, block) {
            pool.name(&request.held, request.named as usize, key);
        }
        request.named += 1;
    }
}
