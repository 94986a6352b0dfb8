//! The search over deployments: which of them keeps the limits and does most.
//!
//! | step | what |
//! |---|---|
//! | `costed` | engines of one side that obey the rules, each with its costs |
//! | `bound` | what a layout can reach at most |
//! | `agg` | engines that prefill and decode, at every setting of their flags, in closed form |
//! | `split` | prefill and decode engines apart, their numbers matched by rate |
//! | [`kept`] | the best of every layout, and the front of throughput and speed |
//! | `verify` | the best and the front replayed request by request |
//! | [`row`] | a deployment and its replay as columns |
//! | [`listing`] | every deployment that runs as a table, in bounded memory |
//! | [`account`] | what became of every deployment of the space |
//!
//! Costs of prefill engines and of decode engines do not depend on each other; only their rates
//! meet. So both sides are worked out once, and pairs are compared by two numbers a side.
//! Results and counts do not depend on the number of threads.

pub mod account;
mod agg;
mod bound;
mod costed;
pub mod kept;
pub mod listing;
pub mod one;
pub mod request;
pub mod row;
mod split;
pub mod summary;
mod traffic;
pub mod verify;

use rayon::prelude::*;

use crate::error::Result;
use crate::sweep::control::Control;
use crate::sweep::with_pool;

use super::space::{Mode, Side};
use account::Tally;
use bound::Bar;
use costed::Costed;
use kept::Kept;
use request::Job;
use verify::Verified;

pub use request::{Goal, Objective, Request, Statistic};

/// What is wanted from a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Best layouts to keep.
    pub top: usize,
    /// Look at every setting of flags, also where a bound shows that it cannot be best.
    pub exhaustive: bool,
    /// Threads; 0: one per core.
    pub threads: usize,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The best deployments, best first, replayed.
    pub top: Vec<Verified>,
    /// Those that no other beats in both throughput and speed for a user, replayed, fastest first.
    pub front: Vec<Verified>,
    /// The best under each objective of [`Objective::ALL`].
    pub best: [Option<Verified>; 3],
    /// The account of the space.
    pub tally: Tally,
    /// Deployments replayed.
    pub replayed: u64,
}

/// Layouts that a thread takes at a time.
const CHUNK: usize = 16;
/// Layouts of the first round; later rounds double up to [`LAST_ROUND`].
const FIRST_ROUND: usize = 64;
/// Layouts of a late round.
const LAST_ROUND: usize = 1024;
/// Step through the layouts; prime, so that no axis is in step with it.
const STRIDE: usize = 61;

impl Job {
    /// Find the best deployments.
    ///
    /// # Errors
    /// When an axis is left without values or `control` says stop.
    pub fn run(&self, options: &Options, control: &Control) -> Result<Found> {
        with_pool(options.threads, || self.search(options, control))?
    }

    fn search(&self, options: &Options, control: &Control) -> Result<Found> {
        let (kept, tally) = self.ranked(options, control)?;
        verify::verify(self, kept, tally, options, control)
    }

    /// What the closed form ranks first. Settings that bounds skip are never better than these, so
    /// the first of every list does not depend on [`Options::exhaustive`].
    fn ranked(&self, options: &Options, control: &Control) -> Result<(Kept, Tally)> {
        let mut kept = Kept::new(options.top);
        let mut tally = Tally::default();
        for number in 0..self.kinds.len() {
            for mode in &self.modes {
                let count;
                (kept, count) = match mode {
                    Mode::Agg => self.aggregated(number, kept, options, control)?,
                    Mode::Disagg => self.disaggregated(number, kept, options, control)?,
                };
                tally = tally.merge(count);
            }
        }
        Ok((kept, tally))
    }

    fn aggregated(
        &self,
        kind: usize,
        kept: Kept,
        options: &Options,
        control: &Control,
    ) -> Result<(Kept, Tally)> {
        let side = costed::work_out(self, kind, Side::Mixed, control)?;
        let tally = Tally::singles(self, kind, &side.engines);
        self.in_rounds(&side.costed, control, kept, tally, |costed, bar, out| {
            agg::layout(self, &side, costed, options, bar, out);
        })
    }

    fn disaggregated(
        &self,
        kind: usize,
        kept: Kept,
        options: &Options,
        control: &Control,
    ) -> Result<(Kept, Tally)> {
        let prefill = costed::work_out(self, kind, Side::Prefill, control)?;
        let decode = costed::work_out(self, kind, Side::Decode, control)?;
        let mut tally = Tally::pairs(self, kind, &prefill.engines, &decode.engines);
        let sources = split::sources(self, &prefill, &mut tally, &decode);
        self.in_rounds(&decode.costed, control, kept, tally, |costed, bar, out| {
            split::layout(self, (&decode, &sources), costed, options, bar, out);
        })
    }

    /// Layouts worked on by all threads, in rounds: what one skips depends on earlier rounds only.
    /// They are taken in strides, so that the first rounds see layouts of all sorts.
    fn in_rounds(
        &self,
        list: &[Costed],
        control: &Control,
        mut kept: Kept,
        mut tally: Tally,
        work: impl Fn(&Costed, &Bar<'_>, (&mut Kept, &mut Tally)) + Sync,
    ) -> Result<(Kept, Tally)> {
        let order: Vec<&Costed> = (0..STRIDE)
            .flat_map(|first| list.iter().skip(first).step_by(STRIDE))
            .collect();
        let (mut done, mut size) = (0, FIRST_ROUND);
        while done < order.len() {
            let round = &order[done..(done + size).min(order.len())];
            let bar = Bar::new(self, &kept);
            let parts: Vec<(Kept, Tally)> = round
                .par_chunks(CHUNK)
                .map(|part| {
                    let (mut own, mut count) = (kept.empty(), Tally::default());
                    for costed in part {
                        work(costed, &bar, (&mut own, &mut count));
                        control.advance(1)?;
                    }
                    Ok((own, count))
                })
                .collect::<Result<_>>()?;
            for (own, count) in parts {
                kept = kept.merge(own);
                tally = tally.merge(count);
            }
            done += round.len();
            size = (size * 2).min(LAST_ROUND);
        }
        Ok((kept, tally))
    }
}

#[cfg(test)]
mod tests;
