//! The space of deployments: engines of one kind that prefill and decode, or two kinds that share
//! the work, in any numbers that fit the GPUs.
//!
//! An engine is a layout (tp, pp, attention DP, prefill context, ep, expert TP, decode context, copies of experts,
//! drafts) and flags (slots, token budget, block). Open axes take the values of [`axes`]; rules
//! reject whole engines, and each rejection counts every deployment that the engine would be in.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::layout::axes::divisors;
use crate::layout::named_enum;

use super::deployment::{Backend, Engine, Precision};
use super::facts::Facts;
use super::rules::{Candidate, Level, RULES, first_broken};

pub mod axes;
pub mod copies;

pub use axes::{Axes, EngineAxes};

named_enum! {
    /// What an engine does.
    Side {
        /// Prefill and decode.
        Mixed = "mixed",
        /// Prefill only.
        Prefill = "prefill",
        /// Decode only.
        Decode = "decode",
    }
}

named_enum! {
    /// How prefill and decode share engines.
    Mode {
        /// Every engine does both.
        Agg = "agg",
        /// Engines of their own for each.
        Disagg = "disagg",
    }
}

named_enum! {
    /// Why a deployment is or is not feasible. Order is the order of checks.
    Status {
        /// It meets every limit.
        Ok = "ok",
        /// Degrees do not multiply, or do not fit nodes and GPUs.
        Topology = "topology",
        /// Heads, KV heads or state heads do not divide.
        Heads = "heads",
        /// Widths do not divide.
        Width = "width",
        /// Layers do not spread over the stages.
        Layers = "layers",
        /// Experts do not divide.
        Experts = "experts",
        /// Draft tokens without a head that makes them.
        Drafts = "drafts",
        /// The backend does not run it.
        Backend = "backend",
        /// Slots and token budget contradict each other.
        Batch = "batch",
        /// Weights and buffers leave no memory for the cache.
        Memory = "memory",
        /// The cache does not hold one request of the longest length.
        Context = "context",
        /// More work arrives than it can do.
        Rate = "rate",
        /// The time to first token is above its limit.
        Ttft = "ttft",
        /// The time per output token is above its limit.
        Tpot = "tpot",
    }
}

/// What an engine of a backend is started with where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// Share of memory for weights and cache, as the backend's flag counts it.
    pub memory_share: f64,
    /// Decode steps between two looks at the queue.
    pub recv_interval: u32,
    /// Tokens in a KV block.
    pub block_tokens: u32,
}

/// A backend, one set of formats, and its defaults: what a deployment has in one piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Software.
    pub backend: Backend,
    /// Formats.
    pub precision: Precision,
    /// Flags where nothing is said.
    pub defaults: Defaults,
}

/// Engines of one kind and side: those that obey the rules, and the account of the others.
#[derive(Clone, Debug, Default)]
pub struct Engines {
    /// Engines in order; slots and token budget are the least of their lists.
    pub layouts: Vec<Engine>,
    /// (GPUs, engines, flags counted) of all candidates, by number of GPUs.
    pub total: copies::Histogram,
    /// The same of what each rule of [`RULES`] rejects, with one example.
    pub broken: Vec<(copies::Histogram, Option<Engine>)>,
}

/// The space of a job.
#[derive(Clone, Debug)]
pub struct Space {
    /// What rules know.
    pub facts: Facts,
    /// Axes as stated.
    pub axes: Axes,
}

impl Space {
    /// The axes of the engines of one side.
    fn own(&self, side: Side) -> &EngineAxes {
        match side {
            Side::Prefill => &self.axes.prefill,
            _ => &self.axes.engine,
        }
    }

    /// Engines of one kind and side.
    ///
    /// # Errors
    /// When an axis is left without values.
    pub fn engines(&self, kind: &Kind, side: Side) -> Result<Engines> {
        let mut out = Engines {
            broken: vec![Default::default(); RULES.len()],
            ..Engines::default()
        };
        self.visit(kind, side, &mut |engine, flags| {
            let candidate = Candidate {
                backend: kind.backend,
                precision: &kind.precision,
                side,
                engine,
            };
            out.total.add(engine.gpus(), flags);
            match first_broken(&self.facts, Level::Layout, &candidate) {
                None => out.layouts.push(*engine),
                Some(rule) => out.reject(rule, engine, flags),
            }
        })?;
        Ok(out)
    }

    /// Every layout of one side with the number of its settings of flags, rules aside.
    fn visit(&self, kind: &Kind, side: Side, each: &mut dyn FnMut(&Engine, u64)) -> Result<()> {
        let lists = self.own(side).candidates(&self.facts, kind, side)?;
        for &tp in &lists.tp {
            let parts = divisors(tp.into());
            for &pp in lists
                .pp
                .iter()
                .filter(|&&pp| lists.tries(tp, pp, &self.facts))
            {
                for attention_dp in lists.attention_dp(&parts, &self.facts) {
                    for (ep, moe_tp) in lists.experts(tp, &parts, &self.facts) {
                        let bare = Engine {
                            tp,
                            pp,
                            attention_dp,
                            pcp: 1,
                            ep,
                            moe_tp,
                            dcp: 1,
                            max_batch: 1,
                            max_batched_tokens: 1,
                            block_tokens: kind.defaults.block_tokens,
                            recv_interval: kind.defaults.recv_interval,
                            memory_share: kind.defaults.memory_share,
                            spec_tokens: 0,
                            redundant_experts: 0,
                        };
                        let flags = lists.flags(&bare).len() as u64;
                        for engine in lists.variants(&bare, &self.facts) {
                            each(&engine, flags);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Settings of slots, token budget and block of a layout, in order.
    ///
    /// # Errors
    /// When an axis is left without values.
    pub fn flags(&self, kind: &Kind, side: Side) -> Result<axes::Lists> {
        self.own(side).candidates(&self.facts, kind, side)
    }
}

impl Engines {
    /// Count a rejection.
    pub fn reject(&mut self, rule: usize, engine: &Engine, flags: u64) {
        let (count, example) = &mut self.broken[rule];
        count.add(engine.gpus(), flags);
        example.get_or_insert(*engine);
    }
}

#[cfg(test)]
pub(crate) mod tests;
