//! A recorded trace on engines with prefix caches of their own.
//!
//! Each engine keeps the most recently used blocks of the prompts that were sent to it, as many as
//! its pool has; the tail of a prompt goes first. What is found is decided when the request is sent:
//! blocks of a prompt that is still being computed count as there, and the tokens of answers take
//! no room in the cache.

use super::drive::{self, Routing};
use super::policy::Policy;
use super::replica::{Job, Rules};
use super::{Settings, Workspace, check_play, requests, table::Range};
use crate::error::{Error, Result};
use crate::kv::prefix::{Intern, Lru, Order};
use crate::kv::trace::Request;
use crate::serving::load;
use crate::serving::outcome::{Limits, Outcome};
use crate::serving::steps::StepTimes;

/// A trace with the blocks of its prompts, numbered.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    jobs: Vec<Job>,
    ids: Vec<u32>,
    ends: Vec<usize>,
    block_tokens: u32,
    longest: [u32; 2],
}

impl Trace {
    /// Reads requests in order of arrival; a key stands for `block_tokens` tokens.
    ///
    /// # Errors
    /// What `next` says, or a trace without requests, or too many.
    pub fn read(
        block_tokens: u32,
        next: &mut dyn FnMut(&mut Request) -> Result<bool>,
    ) -> Result<Self> {
        if block_tokens == 0 {
            return Err(Error::field("block_size", 0, "must be at least 1"));
        }
        let (mut trace, mut names) = (Self::default(), Intern::default());
        let mut request = Request::default();
        trace.block_tokens = block_tokens;
        while next(&mut request)? {
            if trace.jobs.len() as u32 >= requests::MAX_REQUESTS {
                let rule = format!("at most {} requests", requests::MAX_REQUESTS);
                return Err(Error::field("trace", trace.jobs.len() + 1, rule));
            }
            trace.ids.extend(request.keys.iter().map(|k| names.id(*k)));
            trace.ends.push(trace.ids.len());
            let (input, output) = (
                request.input_tokens.max(1) as u32,
                request.output_tokens.max(1) as u32,
            );
            trace.longest = [trace.longest[0].max(input), trace.longest[1].max(output)];
            trace
                .jobs
                .push(Job::new(request.arrival_s, input, 0, output));
        }
        if trace.jobs.is_empty() {
            return Err(Error::field("trace", 0, "at least one request"));
        }
        Ok(trace)
    }

    /// Requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is none; never true of a trace that was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Requests as a load: no prefix is found.
    #[must_use]
    pub fn requests(&self) -> Vec<load::Request> {
        let request = |j: &Job| load::Request {
            arrival_s: j.send_s,
            input: j.input,
            output: j.output,
            hit: 0,
        };
        self.jobs.iter().map(request).collect()
    }

    fn blocks(&self, request: usize) -> &[u32] {
        let start = request.checked_sub(1).map_or(0, |i| self.ends[i]);
        &self.ids[start..self.ends[request]]
    }
}

/// Plays a trace on equal engines, each with a prefix cache; `speed` > 1 plays it faster than it was
/// recorded. The hits are in the requests of the workspace.
///
/// # Errors
/// A policy or speed that makes no sense.
pub fn play_trace<T: StepTimes + ?Sized>(
    policy: &Policy,
    times: &T,
    (trace, speed): (&Trace, f64),
    settings: &Settings,
    limits: &Limits,
    space: &mut Workspace,
) -> Result<Outcome> {
    check_play(policy, settings)?;
    if !(speed > 0.0 && speed.is_finite()) {
        return Err(Error::field("speed", speed, "above 0"));
    }
    space.jobs.clear();
    space.jobs.extend_from_slice(&trace.jobs);
    space.jobs.iter_mut().for_each(|j| j.send_s /= speed);
    if !settings.tabulate {
        return Ok(cached(policy, times, trace, settings, limits, space));
    }
    let [input, output] = trace.longest.map(f64::from);
    let range = Range {
        sequences: policy.max_batch.min(1 << 14),
        context: [input / 8.0, input + output],
        prompt: input,
    };
    let mut nodes = std::mem::take(&mut space.nodes);
    let table = nodes.over(times, range);
    let outcome = cached(policy, &table, trace, settings, limits, space);
    space.nodes = nodes;
    Ok(outcome)
}

fn cached<T: StepTimes + ?Sized>(
    policy: &Policy,
    times: &T,
    trace: &Trace,
    settings: &Settings,
    limits: &Limits,
    space: &mut Workspace,
) -> Outcome {
    let workers = settings.workers as usize;
    let blocks = policy.kv_tokens / u64::from(trace.block_tokens);
    let mut caches: Vec<Lru> = (0..workers)
        .map(|_| Lru::new(blocks, Order::TailFirst))
        .collect();
    let mut hit = |to: usize, job: usize| {
        let ids = trace.blocks(job);
        // One token at least is computed, so a whole block.
        let input = trace.jobs[job].input;
        let most = (input.saturating_sub(1) / trace.block_tokens) as usize;
        Some(caches[to].request(ids, most.min(ids.len())) as u32 * trace.block_tokens)
    };
    let rules = Rules {
        policy,
        times,
        decode_only: false,
    };
    let routing: Routing = settings.routing;
    space.engines(workers);
    let replicas = &mut space.replicas[..workers];
    drive::open(&rules, routing, replicas, &mut space.jobs, &mut hit);
    space.open_outcome(policy, workers, limits)
}

#[cfg(test)]
mod tests {
    use super::{Trace, play_trace};
    use crate::kv::trace::Request;
    use crate::serving::deployment::Backend;
    use crate::serving::engine::drive::Routing;
    use crate::serving::engine::policy::Policy;
    use crate::serving::engine::tests::TIMES;
    use crate::serving::engine::{Settings, Workspace};
    use crate::serving::outcome::Limits;

    fn trace() -> Trace {
        // Four talks in turn, each longer by a block of 512 every time.
        let mut i = 0;
        Trace::read(512, &mut |r: &mut Request| {
            let (talk, turn) = (i % 4, i / 4 + 1);
            i += 1;
            *r = Request {
                arrival_s: i as f64,
                input_tokens: 512 * turn + 1,
                output_tokens: 20,
                keys: (0..turn).map(|b| 1000 * talk + b).collect(),
            };
            Ok(turn <= 10)
        })
        .unwrap()
    }

    #[test]
    fn an_engine_finds_what_was_sent_to_it() {
        let policy = Policy::new(Backend::Vllm, 64, 8192, 1 << 20);
        let trace = trace();
        let mut space = Workspace::default();
        let mut hits = |workers, routing| {
            let settings = Settings {
                workers,
                routing,
                tabulate: false,
            };
            let load = (&trace, 1.0);
            play_trace(&policy, &TIMES, load, &settings, &Limits::NONE, &mut space).unwrap();
            space.jobs().iter().map(|j| j.hit).sum::<u32>()
        };
        // All but the last block of each turn; the first turn of a talk finds nothing.
        let all: u32 = (2..=10).map(|turn| 4 * 512 * (turn - 1)).sum();
        assert_eq!(hits(1, Routing::LeastLoaded), all);
        // Talks stay with their engine by chance of the order: 4 talks on 2 or 4 engines in turn.
        assert_eq!(hits(4, Routing::RoundRobin), all);
        assert!(hits(3, Routing::RoundRobin) < all);
    }
}
