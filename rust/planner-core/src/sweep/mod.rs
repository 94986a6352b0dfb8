//! The sweep: every feasible layout of a job, ranked, with the account of all others.
//!
//! Factor first: layer costs belong to a (tp, cp, ep, etp, micro-batch, sequence parallelism),
//! data-parallel costs to a grid and a sharding, blocks to a recomputation; a layout only combines
//! them ([`scan`]). Only the key of a layout, its step time and memory, is computed; the few rows
//! that someone asks for are regenerated from their number ([`index`]). Either every layout is
//! looked at, or the cells whose lower bound already loses are skipped and counted ([`prune`]).
//! Results do not depend on the number of threads.

pub mod best;
pub mod control;
pub mod index;
pub mod prune;
pub mod request;
pub mod rows;
pub mod scan;

use std::sync::OnceLock;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::layout::count::Counts;
use crate::layout::space::Space;
use crate::training::Estimator;

use best::{Best, Found};
use control::Control;
use index::Index;
use scan::{Scan, Scratch, Shared};

/// What is wanted from a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Best layouts to keep.
    pub top: usize,
    /// Keep the Pareto front of step time and memory.
    pub pareto: bool,
    /// Look at every feasible layout instead of skipping what bounds rule out.
    pub exhaustive: bool,
    /// Threads; 0: one per core.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            top: 10,
            pareto: true,
            exhaustive: false,
            threads: 0,
        }
    }
}

/// What a sweep found, and the proof that it looked everywhere:
/// `counts.total = evaluated + pruned + over_memory + Σ counts.rejected`.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The fastest layouts that fit, best first; ties in layout order.
    pub top: Vec<Ranked>,
    /// Layouts that no other beats in both step time and memory, fastest first.
    pub pareto: Vec<Ranked>,
    /// The account of the space.
    pub counts: Counts,
    /// Layouts estimated, and they fit.
    pub evaluated: u64,
    /// Layouts that are slower than the best found, or beaten in time and memory, by their bounds.
    pub pruned: u64,
    /// Layouts that do not fit in memory, by their estimate or by its lower bound.
    pub over_memory: u64,
    /// The estimated layout that needs least memory.
    pub leanest: Option<Ranked>,
}

/// A layout and its key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Number of the layout in its space.
    pub id: u64,
    /// The layout.
    pub layout: Layout,
    /// Step time, s.
    pub step_s: f64,
    /// Peak memory, bytes.
    pub peak_bytes: f64,
}

/// A job to sweep: its estimate, its space, and the numbering of its layouts.
#[derive(Debug)]
pub struct Job {
    /// The estimate.
    pub estimator: Estimator,
    /// The space.
    pub space: Space,
    /// The feasible layouts, numbered.
    pub index: Index,
    shared: OnceLock<Shared>,
}

impl Job {
    /// Walk a space and number its layouts.
    #[must_use]
    pub fn new(estimator: Estimator, space: Space) -> Self {
        let index = Index::new(space.enumerate());
        Self {
            estimator,
            space,
            index,
            shared: OnceLock::new(),
        }
    }

    /// As [`Job::new`], unless `control` says stop.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when it does.
    pub fn walk(estimator: Estimator, space: Space, control: &Control) -> Result<Self> {
        let walked = space.enumerate_while(&|| control.advance(0).is_ok());
        control.advance(0)?;
        Ok(Self {
            estimator,
            space,
            index: Index::new(walked),
            shared: OnceLock::new(),
        })
    }

    /// Find the best layouts.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when `control` says stop; a field error when an estimate is not a
    /// number.
    pub fn run(&self, options: &Options, control: &Control) -> Result<Outcome> {
        let best = with_pool(options.threads, || {
            if options.exhaustive {
                return self.exhaust(options, control);
            }
            let best = prune::run(self, options, control)?;
            // Nothing fits: say what comes nearest, which only a full look can.
            if best.top.is_empty() && best.broken.is_none() {
                self.exhaust(options, control)
            } else {
                Ok(best)
            }
        })??;
        match best
            .broken
            .and_then(|id| self.index.layout(&self.space, id))
        {
            Some(layout) => Err(Error::field(
                "estimate",
                "NaN",
                format!("a number of cluster, workload or software is out of range: {layout:?}"),
            )),
            None => Ok(self.outcome(best)),
        }
    }

    fn exhaust(&self, options: &Options, control: &Control) -> Result<Best> {
        let scan = Scan::new(self);
        self.index
            .groups
            .par_iter()
            .enumerate()
            .with_max_len(1)
            .try_fold(
                || (Best::new(options), Scratch::default()),
                |(mut best, mut scratch), (number, _)| {
                    scan.group(number, &mut best, &mut scratch, control)?;
                    Ok((best, scratch))
                },
            )
            .map(|part| part.map(|(best, _)| best))
            .try_reduce(|| Best::new(options), |a, b| Ok(a.merge(b)))
    }

    fn outcome(&self, best: Best) -> Outcome {
        let ranked = |found: &Found| {
            Some(Ranked {
                id: found.id,
                layout: self.index.layout(&self.space, found.id)?,
                step_s: found.step_s,
                peak_bytes: found.peak_bytes,
            })
        };
        Outcome {
            top: best.top.sorted().iter().filter_map(ranked).collect(),
            pareto: best.front.points().iter().filter_map(ranked).collect(),
            counts: self.index.counts.clone(),
            evaluated: best.evaluated,
            pruned: self.index.counts.feasible - best.evaluated - best.over_memory,
            over_memory: best.over_memory,
            leanest: best.leanest.as_ref().and_then(ranked),
        }
    }
}

/// Run `work` on a pool of its own, or on this thread when one is enough.
pub(crate) fn with_pool<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    Ok(pool(threads)?.install(work))
}

pub(crate) fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|e| Error::field("threads", threads, e.to_string()))
}

#[cfg(test)]
pub(crate) mod tests;
