//! Request-level replay of engines: who is admitted when, what a step does, who waits.
//!
//! | page | what |
//! |---|---|
//! | [`policy`] | rules and numbers of a scheduler |
//! | [`replica`] | one engine: everything that runs advances together from event to event |
//! | `passes` | admission, passes over prompts of the three backends, preemption |
//! | [`books`] | sums and peaks |
//! | [`drive`] | closed loop, open loop, routing |
//! | `line` | queues that cost little to look at |
//! | [`requests`] | lengths and arrivals |
//! | [`prefixes`] | a trace on engines with prefix caches |
//! | [`table`] | step times tabulated |
//!
//! Engines of a closed loop are played with their own clients: a request ends at the engine that
//! then has the fewest, so the next one goes there.

pub mod books;
pub mod drive;
mod line;
mod passes;
pub mod policy;
pub mod prefixes;
pub mod replica;
pub mod requests;
pub mod table;

use serde::{Deserialize, Serialize};

use super::load::{Arrivals, Load};
use super::outcome::{Limits, Outcome, Scratch, Share};
use super::steps::StepTimes;
use crate::error::{Error, Result};
use drive::Routing;
use policy::Policy;
use replica::{Job, Replica, Rules};
use requests::{Draws, PER_CLIENT};
use table::{Nodes, Range};

/// How to replay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Equal engines.
    pub workers: u32,
    /// Which engine a request goes to.
    #[serde(default)]
    pub routing: Routing,
    /// Ask the cost model for a few dozen steps and interpolate (within 1 %), instead of for every
    /// event.
    pub tabulate: bool,
}

/// Memory of replays, used again and again.
#[derive(Debug, Default)]
pub struct Workspace {
    nodes: Nodes,
    draws: Draws,
    jobs: Vec<Job>,
    replicas: Vec<Replica>,
    ended: Vec<u32>,
    scratch: Scratch,
}

impl Workspace {
    /// Requests of the last replay.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }
}

/// Plays a load on equal engines.
///
/// # Errors
/// A policy or load that makes no sense.
pub fn play<T: StepTimes + ?Sized>(
    policy: &Policy,
    times: &T,
    load: &Load,
    settings: &Settings,
    limits: &Limits,
    space: &mut Workspace,
) -> Result<Outcome> {
    check_play(policy, settings)?;
    requests::check(load)?;
    if !settings.tabulate {
        return Ok(space.play(policy, times, load, settings, limits));
    }
    let mut nodes = std::mem::take(&mut space.nodes);
    let table = nodes.over(times, range(policy, load));
    let outcome = space.play(policy, &table, load, settings, limits);
    space.nodes = nodes;
    Ok(outcome)
}

fn check_play(policy: &Policy, settings: &Settings) -> Result<()> {
    policy.check()?;
    if settings.workers == 0 {
        return Err(Error::field("workers", 0, "must be at least 1"));
    }
    Ok(())
}

/// Where a load looks at step times.
pub(super) fn range(policy: &Policy, load: &Load) -> Range {
    let (input, output) = match &load.arrivals {
        Arrivals::Trace { requests } => {
            let longest = |f: fn(&super::load::Request) -> u32| requests.iter().map(f).max();
            let (input, output) = (longest(|r| r.input), longest(|r| r.output));
            (
                f64::from(input.unwrap_or(1)),
                f64::from(output.unwrap_or(1)),
            )
        }
        _ => (load.input.mean(), load.output.mean()),
    };
    let most = match load.arrivals {
        Arrivals::Closed { concurrency } => concurrency.min(policy.max_batch),
        _ => policy.max_batch,
    };
    Range {
        sequences: most.min(1 << 14),
        context: [input, input + output],
        prompt: input,
    }
}

impl Workspace {
    fn play<T: StepTimes + ?Sized>(
        &mut self,
        policy: &Policy,
        times: &T,
        load: &Load,
        settings: &Settings,
        limits: &Limits,
    ) -> Outcome {
        let rules = Rules {
            policy,
            times,
            decode_only: false,
        };
        match &load.arrivals {
            Arrivals::Closed { concurrency } => {
                self.closed(&rules, *concurrency, load, settings.workers, limits)
            }
            Arrivals::Open { .. } | Arrivals::Trace { .. } => {
                requests::fill(load, &mut self.draws, &mut self.jobs);
                self.open(&rules, settings, limits)
            }
        }
    }

    fn take(&mut self, load: &Load, count: u32) {
        self.jobs.clear();
        self.jobs.extend_from_slice(self.draws.lengths(load, count));
    }

    /// Engines with as many clients do the same, so one of each kind is played: those with one
    /// client more, and the others.
    fn closed<T: StepTimes + ?Sized>(
        &mut self,
        rules: &Rules<'_, T>,
        concurrency: u32,
        load: &Load,
        workers: u32,
        limits: &Limits,
    ) -> Outcome {
        let kinds = [
            (concurrency / workers + 1, concurrency % workers),
            (concurrency / workers, workers - concurrency % workers),
        ];
        let kinds = kinds.map(|(c, n)| if c == 0 { (0, 0) } else { (c, n) });
        let per_client = load.requests.map_or(f64::from(PER_CLIENT), |n| {
            f64::from(n) / f64::from(concurrency)
        });
        let counts = kinds.map(|(clients, engines)| {
            let all = (f64::from(clients) * per_client).round() as u32;
            if engines == 0 { 0 } else { all.max(clients) }
        });
        self.take(load, counts[0] + counts[1]);
        self.replicas
            .resize_with(self.replicas.len().max(2), Replica::default);
        let (first, second) = self.jobs.split_at_mut(counts[0] as usize);
        let halves = [first, second];
        for ((jobs, (clients, _)), replica) in halves.into_iter().zip(kinds).zip(&mut self.replicas)
        {
            drive::closed(rules, clients, replica, jobs, &mut self.ended);
        }
        let (first, second) = self.jobs.split_at(counts[0] as usize);
        let share = |jobs, (clients, engines)| Share {
            jobs,
            clients,
            engines,
        };
        let shares = [share(first, kinds[0]), share(second, kinds[1])];
        let used = usize::from(kinds[0].1 == 0)..1 + usize::from(kinds[1].1 > 0);
        let mut out = Outcome::closed(&shares[used.clone()], limits, &mut self.scratch);
        let books = self.replicas[used].iter().map(|r| &r.books);
        out.book(books, rules.policy.kv_tokens, true);
        out
    }

    fn open<T: StepTimes + ?Sized>(
        &mut self,
        rules: &Rules<'_, T>,
        settings: &Settings,
        limits: &Limits,
    ) -> Outcome {
        let workers = settings.workers as usize;
        self.engines(workers);
        let replicas = &mut self.replicas[..workers];
        drive::open(
            rules,
            settings.routing,
            replicas,
            &mut self.jobs,
            &mut |_, _| None,
        );
        self.open_outcome(rules.policy, workers, limits)
    }

    fn engines(&mut self, workers: usize) {
        let count = self.replicas.len().max(workers);
        self.replicas.resize_with(count, Replica::default);
    }

    fn open_outcome(&mut self, policy: &Policy, workers: usize, limits: &Limits) -> Outcome {
        let mut out = Outcome::open(&self.jobs, limits, &mut self.scratch);
        let books = self.replicas[..workers].iter().map(|r| &r.books);
        out.book(books, policy.kv_tokens, false);
        out
    }
}

#[cfg(test)]
pub(crate) mod tests;
