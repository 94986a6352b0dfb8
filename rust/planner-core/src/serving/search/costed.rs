//! Engines of one side that obey the rules, each with its costs.

use rayon::prelude::*;

use super::request::Job;
use crate::error::Result;
use crate::serving::closed::{self, Mean};
use crate::serving::costs::{Costs, Role};
use crate::serving::deployment::Engine;
use crate::serving::engine::policy::Policy;
use crate::serving::estimate;
use crate::serving::memory;
use crate::serving::rules::{Candidate, Level, first_broken};
use crate::serving::space::axes::{Flags, Lists};
use crate::serving::space::{Engines, Kind, Side, Status};
use crate::sweep::control::Control;

/// A layout and its costs.
#[derive(Clone, Debug)]
pub(crate) struct Costed {
    pub engine: Engine,
    pub costs: Costs,
    /// Number in the order of layouts.
    pub number: u32,
}

/// Engines of one kind and side.
#[derive(Debug)]
pub(crate) struct SideOf {
    pub kind: Kind,
    pub number: usize,
    pub side: Side,
    pub engines: Engines,
    pub costed: Vec<Costed>,
    lists: Lists,
}

pub(crate) fn work_out(job: &Job, number: usize, side: Side, control: &Control) -> Result<SideOf> {
    let kind = &job.kinds[number];
    let engines = job.space.engines(kind, side)?;
    control.advance(0)?;
    let setting = job.setting(kind);
    let costed = engines
        .layouts
        .par_iter()
        .enumerate()
        .map(|(i, engine)| {
            control.advance(0)?;
            Ok(Costed {
                engine: *engine,
                costs: Costs::new(&setting, &kind.precision, engine, side.role())?,
                number: u32::try_from(i).unwrap_or(u32::MAX),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    control.advance(0)?;
    Ok(SideOf {
        kind: *kind,
        number,
        side,
        engines,
        costed,
        lists: job.space.flags(kind, side)?,
    })
}

/// Tokens that the cache of a layout holds under one budget: with the fewest and with the most
/// slots. Where both are equal, so is all between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    few: memory::Terms,
    many: memory::Terms,
}

impl Cache {
    /// The cache of one setting alone.
    pub const fn one(found: memory::Terms) -> Self {
        Self {
            few: found,
            many: found,
        }
    }
}

/// An engine with all its flags, or why it does not run.
pub(crate) enum Ready {
    /// Its scheduling, and the tokens that its cache holds.
    Runs(Policy, f64),
    /// A rule of flags that it breaks.
    Breaks(usize),
    /// It does not fit.
    Lacks(Status),
}

impl SideOf {
    /// Settings of flags of a layout.
    pub fn flags(&self, engine: &Engine) -> Flags {
        self.lists.flags(engine)
    }

    /// Memory of an engine.
    pub fn memory(&self, job: &Job, engine: &Engine) -> memory::Terms {
        let (tokens, role) = (job.traffic.tokens(), self.side.role());
        memory::terms(
            &job.setting(&self.kind),
            &self.kind.precision,
            engine,
            role,
            tokens,
        )
    }

    /// Memory of a layout under one budget and block.
    pub fn cache(&self, job: &Job, engine: &Engine, slots: &[u32]) -> Cache {
        let with = |max_batch: u32| {
            self.memory(
                job,
                &Engine {
                    max_batch,
                    ..*engine
                },
            )
        };
        let (few, many) = (slots.first().copied(), slots.last().copied());
        let few = with(few.unwrap_or(1));
        Cache {
            few,
            many: many.map_or(few, with),
        }
    }

    /// Why no setting of a layout's flags fits, if so: memory with the smallest budget and the
    /// fewest slots, which take least.
    pub fn lacks(&self, job: &Job, engine: &Engine, found: &memory::Terms) -> Option<Status> {
        let facts = &job.space.facts;
        let needed = match self.side {
            Side::Prefill => facts.input,
            Side::Mixed | Side::Decode => facts.context,
        };
        if found.available_bytes <= 0.0 {
            Some(Status::Memory)
        } else if found.kv_tokens / f64::from(engine.attention_dp) < needed as f64 {
            Some(Status::Context)
        } else {
            None
        }
    }

    /// Scheduling of an engine.
    pub fn policy(&self, job: &Job, engine: &Engine, kv_tokens: f64) -> Policy {
        let (role, acceptance) = (self.side.role(), job.load.acceptance);
        estimate::policy(
            &job.setting(&self.kind),
            engine,
            role,
            kv_tokens,
            acceptance,
        )
    }

    /// Rules of flags, then memory, then scheduling.
    pub fn ready(&self, job: &Job, engine: &Engine, cache: &Cache) -> Ready {
        let candidate = Candidate {
            backend: self.kind.backend,
            precision: &self.kind.precision,
            side: self.side,
            engine,
        };
        if let Some(rule) = first_broken(&job.space.facts, Level::Flags, &candidate) {
            return Ready::Breaks(rule);
        }
        let found = if cache.few.kv_tokens == cache.many.kv_tokens {
            cache.few
        } else {
            self.memory(job, engine)
        };
        match self.lacks(job, engine, &found) {
            Some(status) => Ready::Lacks(status),
            None => {
                let policy = self.policy(job, engine, found.kv_tokens);
                Ready::Runs(policy, found.kv_tokens)
            }
        }
    }

    /// The leanest setting of a layout: smallest budget and block, fewest slots.
    pub fn leanest(&self, engine: &Engine) -> Engine {
        let flags = self.flags(engine);
        let first = |list: &[u32]| list.first().copied().unwrap_or(1);
        Engine {
            max_batch: first(&flags.batches),
            max_batched_tokens: first(&flags.budgets),
            block_tokens: first(&flags.blocks),
            ..*engine
        }
    }
}

impl Side {
    /// The same, as costs name it.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Mixed => Role::Both,
            Self::Prefill => Role::Prefill,
            Self::Decode => Role::Decode,
        }
    }
}

impl Costed {
    /// Means of the engine under its share of the requests.
    pub fn steady(&self, policy: &Policy, mean: &Mean) -> closed::Steady {
        closed::steady(policy, &self.costs, mean)
    }
}
