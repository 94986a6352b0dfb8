//! Bound and prune: the same answer as looking everywhere, from a small share of the layouts.
//!
//! Every cell (a prefix with its micro-batch, sequence parallelism and vpp) gets a lower bound on
//! step time and memory. Cells whose least memory exceeds the device are out. The others are looked
//! at in ascending order of their time bound; one is skipped when its bound is slower than the k-th
//! best found and some layout found is at least as fast and as small. Cells are taken in rounds of a
//! fixed size, and what is skipped depends on earlier rounds only: the counts do not depend on the
//! number of threads.

use rayon::prelude::*;

use crate::error::Result;
use crate::layout::space::Group;
use crate::training::bound::Freedom;

use super::best::Best;
use super::control::Control;
use super::scan::{Cell, Layers, PrefixWork, Scan, Scratch};
use super::{Job, Options};

/// Cells of the first round; later rounds double up to [`LAST_ROUND`].
const FIRST_ROUND: usize = 16;
/// Cells of a late round.
const LAST_ROUND: usize = 512;

/// Where a cell is, and its bounds.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    step_s: f64,
    peak_bytes: f64,
    layouts: u32,
    group: u32,
    prefix: u32,
    micro: u8,
    sequence: u8,
    slot: u8,
}

impl Candidate {
    const fn place(&self) -> (u32, u32, u8, u8, u8) {
        (
            self.group,
            self.prefix,
            self.micro,
            self.sequence,
            self.slot,
        )
    }
}

/// A group with its costs, kept from the first pass for the second.
struct Costed<'a> {
    layers: Layers<'a>,
    prefixes: Vec<PrefixWork<'a>>,
    cells: Vec<Candidate>,
    over_memory: u64,
    broken: Option<u64>,
}

/// Find the best layouts of a job.
///
/// # Errors
/// [`crate::error::Error::Interrupted`] when `control` says stop.
pub fn run(job: &Job, options: &Options, control: &Control) -> Result<Best> {
    let scan = Scan::new(job);
    let groups = job.index.groups.par_iter().enumerate().with_max_len(1);
    let groups: Vec<Costed<'_>> = groups
        .map(|(number, group)| cost(job, &scan, number, group, control))
        .collect::<Result<_>>()?;
    let mut cells: Vec<Candidate> = groups.iter().flat_map(|g| &g.cells).copied().collect();
    cells.par_sort_unstable_by(|a, b| {
        a.step_s
            .total_cmp(&b.step_s)
            .then_with(|| a.place().cmp(&b.place()))
    });
    let mut best = Best::new(options);
    best.over_memory = groups.iter().map(|g| g.over_memory).sum();
    groups
        .iter()
        .filter_map(|g| g.broken)
        .for_each(|id| best.note_broken(id));
    let (mut round, mut rest) = (FIRST_ROUND, &cells[..]);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(round.min(rest.len()));
        rest = later;
        round = (2 * round).min(LAST_ROUND);
        if !options.pareto && now[0].step_s > best.top.limit() {
            control.advance(layouts(now) + layouts(rest))?;
            break;
        }
        let known = &best;
        let wanted: Vec<_> = now
            .iter()
            .filter(|c| known.wants(c.step_s, c.peak_bytes))
            .copied()
            .collect();
        let found = wanted.par_iter().with_max_len(4).fold(
            || (Best::new(options), Scratch::default()),
            |(mut found, mut scratch), c| {
                look(
                    &scan,
                    &groups[c.group as usize],
                    c,
                    &mut found,
                    &mut scratch,
                );
                (found, scratch)
            },
        );
        let found = found
            .map(|(found, _)| found)
            .reduce(|| Best::new(options), Best::merge);
        best = best.merge(found);
        control.advance(layouts(now))?;
    }
    Ok(best)
}

fn layouts(cells: &[Candidate]) -> u64 {
    cells.iter().map(|c| u64::from(c.layouts)).sum()
}

/// Costs of a group, and bounds of its cells that may fit in memory.
fn cost<'a>(
    job: &'a Job,
    scan: &'a Scan<'a>,
    number: usize,
    group: &'a Group,
    control: &Control,
) -> Result<Costed<'a>> {
    let est = &job.estimator;
    let mut layers = Layers::new(*scan, group);
    let (mut prefixes, mut cells, mut over_memory) = (Vec::new(), Vec::new(), 0);
    let mut broken = None;
    for (i, prefix) in group.prefixes.iter().enumerate() {
        let work = scan.prefix(number, i);
        for (micro, sequence) in prefix.pairs() {
            layers.fill(prefix.micro[micro].micro_batch, prefix.sequence[sequence]);
            for (slot, cell) in (0..).zip(scan.cells(&work, &layers, micro, sequence)) {
                let (step_s, allocated) = bound(job, &cell);
                if (step_s + allocated).is_nan() {
                    broken = broken.or(Some(cell.first));
                }
                if !est.fits(allocated) {
                    over_memory += cell.size();
                    continue;
                }
                cells.push(Candidate {
                    step_s,
                    peak_bytes: est.peak_bytes(allocated),
                    layouts: cell.size() as u32,
                    group: number as u32,
                    prefix: i as u32,
                    micro: micro as u8,
                    sequence: sequence as u8,
                    slot,
                });
            }
        }
        prefixes.push(work);
    }
    control.advance(over_memory)?;
    Ok(Costed {
        layers,
        prefixes,
        cells,
        over_memory,
        broken,
    })
}

/// Least step time and allocated bytes of a cell.
pub(super) fn bound(job: &Job, cell: &Cell<'_>) -> (f64, f64) {
    let est = &job.estimator;
    let slot = cell.slot;
    let sums = est.stage_sums(cell.costs, slot.plan);
    let free = Freedom {
        schedules: &cell.schedules,
        groups: &slot.groups,
        fixed_bytes: &slot.fixed_bytes,
    };
    let bound = est.cell_bound(cell.costs, slot.plan, &sums, free, cell.message_s, cell.m);
    (bound.step_s, bound.allocated_bytes)
}

/// Look at every layout of a cell.
fn look(
    scan: &Scan<'_>,
    group: &Costed<'_>,
    c: &Candidate,
    best: &mut Best,
    scratch: &mut Scratch,
) {
    let work = &group.prefixes[c.prefix as usize];
    let (micro, sequence) = (usize::from(c.micro), usize::from(c.sequence));
    let mut cells = scan.cells(work, &group.layers, micro, sequence);
    if let Some(cell) = cells.nth(usize::from(c.slot)) {
        scan.cell(&cell, best, scratch);
    }
}
