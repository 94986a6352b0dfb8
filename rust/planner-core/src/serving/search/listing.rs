//! Every deployment that runs, in closed form and in bounded memory: tables of some ten thousand
//! rows, made a few at a time by all threads and handed over one by one.
//!
//! These are the deployments that an exhaustive search looks at: engines that obey the rules and fit,
//! at every setting of their flags. Where the search chooses the clients, the largest number of
//! engines stands for all; prefill and decode engines are matched by rate, and of prefill engines of
//! as many GPUs those stand for all that no other beats. Whether the limits are kept is the status.

use std::collections::VecDeque;
use std::sync::Arc;

use rayon::prelude::*;

use super::account::Tally;
use super::agg::{self, Running, status};
use super::costed::{self, Cache, Costed, Ready, SideOf};
use super::kept::Point;
use super::request::Job;
use super::row::{Rows, row};
use super::split::{self, Sink, Sources};
use super::traffic::Demand;
use super::verify::Verified;
use crate::error::Result;
use crate::serving::closed::{Arrivals, Steady};
use crate::serving::costs::Costs;
use crate::serving::deployment::Engine;
use crate::serving::engine::policy::Policy;
use crate::serving::estimate::Estimate;
use crate::serving::memory;
use crate::serving::space::{Mode, Side};
use crate::serving::steps::Pass;
use crate::sweep::control::Control;
use crate::sweep::pool;
use crate::table::Table;

/// Rows at which a table is closed.
const TABLE_ROWS: usize = 1 << 15;

/// Tables of a job, one after another.
#[derive(Debug)]
pub struct Tables {
    job: Arc<Job>,
    pool: rayon::ThreadPool,
    /// Kinds and modes that are left, the next one last.
    left: Vec<(usize, Mode)>,
    part: Option<Part>,
    ready: VecDeque<Table>,
}

/// Engines of one kind and mode.
#[derive(Debug)]
struct Part {
    /// Those that decode, alone or besides prefill.
    side: SideOf,
    /// Those that only prefill.
    apart: Option<(SideOf, Sources)>,
    /// Layout and setting of flags that are next.
    next: (usize, usize),
}

/// A layout with some of its settings of flags.
type Run = (usize, std::ops::Range<usize>);

impl Tables {
    /// Tables of all deployments of a job.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn new(job: Arc<Job>, threads: usize) -> Result<Self> {
        let kinds = 0..job.kinds.len();
        let mut left: Vec<(usize, Mode)> = kinds
            .flat_map(|kind| job.modes.iter().map(move |mode| (kind, *mode)))
            .collect();
        left.reverse();
        Ok(Self {
            job,
            pool: pool(threads)?,
            left,
            part: None,
            ready: VecDeque::new(),
        })
    }

    /// The next table; `None` after the last.
    ///
    /// # Errors
    /// When an axis is left without values, or `control` says stop.
    pub fn next(&mut self, control: &Control) -> Result<Option<Table>> {
        while self.ready.is_empty() {
            if self.part.is_none() {
                let Some((kind, mode)) = self.left.pop() else {
                    return Ok(None);
                };
                let job = &*self.job;
                self.part = Some(self.pool.install(|| Part::new(job, kind, mode, control))?);
            }
            self.fill(control)?;
        }
        Ok(self.ready.pop_front())
    }

    /// Tables of the next settings of the part; the part is dropped after its last.
    fn fill(&mut self, control: &Control) -> Result<()> {
        let Some(part) = &mut self.part else {
            return Ok(());
        };
        let job = &*self.job;
        let runs: Vec<Vec<Run>> = (0..self.pool.current_num_threads())
            .map(|_| part.runs(job))
            .take_while(|runs| !runs.is_empty())
            .collect();
        if runs.is_empty() {
            self.part = None;
            return Ok(());
        }
        let part = &*part;
        let tables: Vec<Rows> = self.pool.install(|| {
            let tables = runs.par_iter().with_max_len(1);
            let tables = tables.map(|runs| part.rows(job, runs, control));
            tables.collect::<Result<_>>()
        })?;
        let filled = tables.into_iter().filter(|rows| !rows.is_empty());
        self.ready.extend(filled.map(Rows::into_table));
        Ok(())
    }
}

impl Part {
    fn new(job: &Job, kind: usize, mode: Mode, control: &Control) -> Result<Self> {
        let side = match mode {
            Mode::Agg => Side::Mixed,
            Mode::Disagg => Side::Decode,
        };
        let side = costed::work_out(job, kind, side, control)?;
        let apart = match mode {
            Mode::Agg => None,
            Mode::Disagg => {
                let prefill = costed::work_out(job, kind, Side::Prefill, control)?;
                let sources = split::sources(job, &prefill, &mut Tally::default(), &side);
                Some((prefill, sources))
            }
        };
        Ok(Self {
            side,
            apart,
            next: (0, 0),
        })
    }

    /// Settings of the next table.
    fn runs(&mut self, job: &Job) -> Vec<Run> {
        let (mut runs, mut rows) = (Vec::new(), 0);
        while let Some(costed) = self.side.costed.get(self.next.0) {
            if rows >= TABLE_ROWS {
                break;
            }
            let each = self.rows_each(job, &costed.engine).max(1);
            let (first, all) = (self.next.1, self.side.flags(&costed.engine).len());
            let last = all.min(first + (TABLE_ROWS - rows).div_ceil(each));
            runs.push((self.next.0, first..last));
            rows += (last - first) * each;
            self.next = if last < all {
                (self.next.0, last)
            } else {
                (self.next.0 + 1, 0)
            };
        }
        runs
    }

    /// Most rows of one setting of a layout.
    fn rows_each(&self, job: &Job, engine: &Engine) -> usize {
        match (&self.apart, job.traffic.demand) {
            (Some((_, sources)), _) => sources.list.len(),
            (None, Demand::Chosen) => 1,
            (None, _) => job.copies.single(engine.gpus()).len(),
        }
    }

    fn rows(&self, job: &Job, runs: &[Run], control: &Control) -> Result<Rows> {
        let mut rows = Rows::default();
        for (layout, settings) in runs {
            control.advance(0)?;
            let costed = &self.side.costed[*layout];
            let flags = self.side.flags(&costed.engine);
            for number in settings.clone() {
                let engine = flags.setting(number, &costed.engine);
                let found = self.side.memory(job, &engine);
                let cache = Cache::one(found);
                if let Ready::Runs(policy, _) = self.side.ready(job, &engine, &cache) {
                    let setting = Setting {
                        job,
                        costed,
                        engine: &engine,
                        policy: &policy,
                        memory: found,
                    };
                    self.setting(&setting, &mut rows);
                }
            }
        }
        Ok(rows)
    }

    /// Rows of one setting.
    fn setting(&self, own: &Setting<'_>, rows: &mut Rows) {
        if let Some((prefill, sources)) = &self.apart {
            own.split(&self.side, (prefill, sources), rows);
        } else {
            own.alone(&self.side, rows);
        }
    }
}

/// A layout that decodes, with its flags.
struct Setting<'a> {
    job: &'a Job,
    costed: &'a Costed,
    engine: &'a Engine,
    policy: &'a Policy,
    memory: memory::Terms,
}

impl Setting<'_> {
    fn alone(&self, side: &SideOf, rows: &mut Rows) {
        let run = Running {
            engine: self.engine,
            policy: self.policy,
            kv_tokens: self.memory.kv_tokens,
        };
        agg::every(self.job, side, self.costed, &run, &mut |point, steady| {
            self.push(point, steady, None, rows);
        });
    }

    fn split(&self, side: &SideOf, (prefill, sources): (&SideOf, &Sources), rows: &mut Rows) {
        let (job, kv_tokens) = (self.job, self.memory.kv_tokens);
        let sink = Sink::new(job, self.costed, *self.engine, self.policy, kv_tokens);
        for source in &sources.list {
            if self.engine.gpus() + source.engine.gpus() > job.gpus {
                continue;
            }
            let Some(point) = sink.matched(job, side, source) else {
                continue;
            };
            let workers = point.prefill.map_or(1, |pool| pool.workers);
            let requests_per_s = point.tokens_per_s / job.traffic.output;
            let steady = Steady {
                ttft_s: point.ttft_s,
                tpot_s: point.tpot_s,
                running: sink.running,
                queue_s: f64::NAN,
                kv_ratio: f64::NAN,
                ..Steady::default()
            };
            let apart = Apart {
                costed: &prefill.costed[source.number as usize],
                memory: prefill.memory(job, &source.engine),
                busy: requests_per_s / (f64::from(workers) * source.most_per_s),
            };
            self.push(&point, &steady, Some(&apart), rows);
        }
    }

    fn push(&self, point: &Point, steady: &Steady, apart: Option<&Apart<'_>>, rows: &mut Rows) {
        let traffic = &self.job.traffic;
        let cache = point.kv_tokens * f64::from(point.decode.workers);
        let mean = traffic.mean(Arrivals::Clients(1.0), cache);
        let mut outcome = steady.outcome(&mean, 1);
        outcome.requests_per_s = point.tokens_per_s / traffic.output;
        outcome.output_tokens_per_s = point.tokens_per_s;
        let pass = Pass {
            tokens: (mean.input - mean.hit).max(1.0),
            prompts: 1.0,
            past: mean.hit,
        };
        let context = traffic.input + traffic.output / 2.0;
        let first = apart.map_or(self.costed, |apart| apart.costed);
        let running = steady.running.max(1.0);
        let estimate = Estimate {
            outcome,
            fits: true,
            decode: self.costed.costs.decode_terms(running, context),
            imbalance: Costs::imbalance(&self.costed.costs, running, &first.costs, &pass),
            prefill: first.costs.prefill_terms(&pass),
            memory: self.memory,
            prefill_memory: apart.map(|apart| apart.memory),
            prefill_busy_ratio: apart.map(|apart| apart.busy),
        };
        let found = Verified {
            point: *point,
            estimate,
            status: status(self.job, point, steady.saturated),
        };
        rows.push(&row(self.job, &found));
    }
}

/// Prefill engines beside those that decode.
struct Apart<'a> {
    costed: &'a Costed,
    memory: memory::Terms,
    busy: f64,
}
