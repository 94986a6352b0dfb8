//! One deployment, every term: what `planner evaluate` and `planner explain` ask.

use serde::Serialize;

use super::account::Example;
use super::kept::Point;
use super::request::Job;
use super::summary::{Rejection, rejection};
use super::traffic::Demand;
use super::verify::replay_as;
use crate::error::{Error, Result};
use crate::serving::deployment::{Engine, Pool};
use crate::serving::estimate::{Mode as How, Space as Memory};
use crate::serving::memory;
use crate::serving::outcome::request_table;
use crate::serving::rules::{Candidate, Level, RULES, first_broken};
use crate::serving::search::row::{Row, row};
use crate::serving::space::{Kind, Mode, Side};
use crate::table::Table;

/// What is to be said of one deployment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    /// Every term, where no rule is broken.
    pub row: Option<Row>,
    /// The rule that it breaks.
    pub refusal: Option<Rejection>,
    /// Requests that were played.
    pub requests: u32,
    /// Requests that fit no cache.
    pub rejected: u32,
}

impl Job {
    /// The one deployment that the axes pin down, and its requests as played.
    ///
    /// # Errors
    /// When an axis has several values.
    pub fn one(&self) -> Result<(Told, Table)> {
        let [mode] = self.modes[..] else {
            return Err(Error::field("mode", self.modes.len(), ONE));
        };
        let [kind] = &self.kinds[..] else {
            return Err(Error::field("backend and formats", self.kinds.len(), ONE));
        };
        let side = match mode {
            Mode::Agg => Side::Mixed,
            Mode::Disagg => Side::Decode,
        };
        let decode = self.pinned(kind, side)?;
        let prefill = match mode {
            Mode::Agg => None,
            Mode::Disagg => Some(self.pinned(kind, Side::Prefill)?),
        };
        let sides = [(side, Some(decode)), (Side::Prefill, prefill)];
        for (side, pool) in sides {
            if let Some(refusal) = pool.and_then(|p| self.refusal(kind, side, &p.engine)) {
                let told = Told {
                    row: None,
                    refusal: Some(refusal),
                    requests: 0,
                    rejected: 0,
                };
                return Ok((told, request_table(&[])));
            }
        }
        let point = self.pinned_point(kind, prefill, decode);
        let mut space = Memory::default();
        let found = replay_as(self, &point, How::Replay, &mut space)?;
        let out = &found.estimate.outcome;
        let told = Told {
            row: Some(row(self, &found)),
            refusal: None,
            requests: out.requests,
            rejected: out.rejected,
        };
        let jobs = if found.estimate.fits {
            request_table(space.jobs(&point.deployment(self)))
        } else {
            request_table(&[])
        };
        Ok((told, jobs))
    }

    /// The pool that the axes of a side pin down.
    fn pinned(&self, kind: &Kind, side: Side) -> Result<Pool> {
        let found = self.space.engines(kind, side)?;
        let broken = found.broken.iter().filter_map(|(_, example)| *example);
        let mut all: Vec<Engine> = found.layouts.iter().copied().chain(broken).collect();
        let total = found.total.sum();
        let Some(layout) = all.pop().filter(|_| total == 1) else {
            return Err(Error::field("engines", total, ONE));
        };
        let flags = self.space.flags(kind, side)?.flags(&layout);
        if flags.len() != 1 {
            return Err(Error::field("slots, budget and block", flags.len(), ONE));
        }
        let workers = match side {
            Side::Prefill => &self.copies.prefill,
            Side::Mixed | Side::Decode => &self.copies.decode,
        };
        let workers = match workers.as_deref() {
            Some([one]) => *one,
            None if side != Side::Prefill => 1,
            _ => return Err(Error::field("workers", "several", ONE)),
        };
        let engine = Engine {
            max_batch: flags.batches[0],
            max_batched_tokens: flags.budgets[0],
            block_tokens: flags.blocks[0],
            ..layout
        };
        Ok(Pool { workers, engine })
    }

    /// The first rule that an engine breaks.
    fn refusal(&self, kind: &Kind, side: Side, engine: &Engine) -> Option<Rejection> {
        let candidate = Candidate {
            backend: kind.backend,
            precision: &kind.precision,
            side,
            engine,
        };
        let broken = |level| first_broken(&self.space.facts, level, &candidate);
        let rule = broken(Level::Layout).or_else(|| broken(Level::Flags))?;
        let example = Example {
            kind: 0,
            side,
            engine: *engine,
        };
        Some(rejection(self, &RULES[rule], 1, &example))
    }

    fn pinned_point(&self, kind: &Kind, prefill: Option<Pool>, decode: Pool) -> Point {
        let role = if prefill.is_some() {
            Side::Decode.role()
        } else {
            Side::Mixed.role()
        };
        let tokens = self.traffic.tokens();
        let setting = self.setting(kind);
        let found = memory::terms(&setting, &kind.precision, &decode.engine, role, tokens);
        let held = (found.kv_tokens / tokens).floor().clamp(1.0, 1e9) as u32;
        let clients = match self.traffic.demand {
            Demand::Chosen => decode.engine.max_batch.min(held) * decode.workers,
            Demand::Clients(clients) => clients,
            Demand::Rate(..) => 0,
        };
        Point {
            kind: 0,
            number: 0,
            prefill,
            decode,
            clients,
            kv_tokens: found.kv_tokens,
            ttft_s: f64::NAN,
            tpot_s: f64::NAN,
            tokens_per_s: f64::NAN,
            overshoot: f64::NAN,
        }
    }
}

const ONE: &str = "one deployment is evaluated: pin the axis";
