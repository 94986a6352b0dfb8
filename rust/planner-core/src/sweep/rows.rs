//! Every column of every layout, in layout order and in bounded memory: tables of some ten thousand
//! rows, made a few at a time by all threads and handed over one by one.

use std::collections::VecDeque;
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::Result;
use crate::layout::{Layout, Recompute, Status};
use crate::table::Table;
use crate::training::Estimator;
use crate::training::block::{Block, ScheduleTerms};
use crate::training::row::{Row, Rows};

use super::control::Control;
use super::scan::{Cell, Layers, Scan};
use super::{Job, pool};

/// Rows at which a table is closed.
pub const TABLE_ROWS: u64 = 1 << 16;

/// Tables of a job, one after another.
#[derive(Debug)]
pub struct Tables {
    job: Arc<Job>,
    pool: rayon::ThreadPool,
    fitting: bool,
    /// (group, prefix) that is next.
    next: (usize, usize),
    ready: VecDeque<Table>,
}

/// Consecutive prefixes, with their groups.
type Run = Vec<(usize, usize)>;

impl Tables {
    /// Tables of all layouts of a job, or of those that fit in memory.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn new(job: Arc<Job>, fitting: bool, threads: usize) -> Result<Self> {
        Ok(Self {
            job,
            pool: pool(threads)?,
            fitting,
            next: (0, 0),
            ready: VecDeque::new(),
        })
    }

    /// The next table; `None` after the last. An empty space gives one empty table.
    ///
    /// # Errors
    /// [`crate::error::Error::Interrupted`] when `control` says stop.
    pub fn next(&mut self, control: &Control) -> Result<Option<Table>> {
        if self.ready.is_empty() {
            let runs: Vec<Run> = (0..self.pool.current_num_threads())
                .map_while(|_| self.run())
                .collect();
            let (job, fitting) = (&*self.job, self.fitting);
            let tables = self.pool.install(|| {
                let scan = Scan::new(job);
                let tables = runs
                    .par_iter()
                    .with_max_len(1)
                    .map(|run| table(job, &scan, run, fitting, control));
                tables.collect::<Result<Vec<_>>>()
            })?;
            self.ready.extend(tables);
        }
        Ok(self.ready.pop_front())
    }

    /// Prefixes of the next table.
    fn run(&mut self) -> Option<Run> {
        let (mut run, mut rows) = (Vec::new(), 0);
        while rows < TABLE_ROWS {
            let Some(group) = self.job.index.groups.get(self.next.0) else {
                break;
            };
            match group.prefixes.get(self.next.1) {
                Some(prefix) => {
                    rows += prefix.size();
                    run.push(self.next);
                    self.next.1 += 1;
                }
                None => self.next = (self.next.0 + 1, 0),
            }
        }
        (!run.is_empty()).then_some(run)
    }
}

fn table(job: &Job, scan: &Scan<'_>, run: &Run, fitting: bool, control: &Control) -> Result<Table> {
    let sizes = run
        .iter()
        .map(|&(g, p)| job.index.groups[g].prefixes[p].size());
    let mut out = Rows::with_capacity(sizes.sum::<u64>() as usize);
    let mut writer = Writer::default();
    for same_group in run.chunk_by(|a, b| a.0 == b.0) {
        let number = same_group[0].0;
        let group = &job.index.groups[number];
        let mut layers = Layers::new(*scan, group);
        for &(_, i) in same_group {
            let prefix = &group.prefixes[i];
            let work = scan.prefix(number, i);
            for (micro, sequence) in prefix.pairs() {
                layers.fill(prefix.micro[micro].micro_batch, prefix.sequence[sequence]);
                let cells: Vec<_> = scan.cells(&work, &layers, micro, sequence).collect();
                writer.write(&job.estimator, &cells, fitting, &mut out);
            }
            control.advance(prefix.size())?;
        }
    }
    Ok(out.into_table())
}

/// Buffers that a table reuses.
#[derive(Default)]
struct Writer {
    block: Block,
    rows: Vec<Row>,
    scheduled: Vec<ScheduleTerms>,
}

impl Writer {
    /// Rows of one micro-batch and sequence parallelism, in layout order.
    fn write(&mut self, est: &Estimator, cells: &[Cell<'_>], fitting: bool, out: &mut Rows) {
        let Some(first) = cells.first() else { return };
        let sums: Vec<_> = cells
            .iter()
            .map(|c| est.stage_sums(c.costs, c.slot.plan))
            .collect();
        for &recompute in &first.prefix.recompute {
            for (cell, sums) in cells.iter().zip(&sums) {
                est.fill_block(&mut self.block, cell.costs, cell.slot.plan, sums, recompute);
                self.block.message_s = cell.message_s;
                self.block_rows(est, cell, recompute);
            }
            if fitting {
                self.rows.retain(|row| row.status == Status::Ok);
            }
            out.extend(&self.rows);
            self.rows.clear();
        }
    }

    /// Rows of one block, each at its place: by plan of the micro-batch, then sharding.
    fn block_rows(&mut self, est: &Estimator, cell: &Cell<'_>, recompute: (Recompute, u32)) {
        let (recompute, recompute_layers) = recompute;
        let layout = Layout {
            recompute,
            recompute_layers,
            ..cell.base
        };
        let shared = est.block_row(cell.costs, cell.slot.plan, &self.block, &layout, cell.m);
        let shardings = &cell.prefix.sharding;
        // The first cell fills every place; the others overwrite their own.
        let first = self.rows.is_empty();
        let places = cell.plan_count as usize * shardings.len();
        self.rows.resize(places, *shared.row());
        let scheduled = cell
            .schedules
            .iter()
            .map(|&(_, s)| self.block.schedule_terms(est, s, cell.m));
        self.scheduled.clear();
        self.scheduled.extend(scheduled);
        for (i, (&(sharding, shard_group), group)) in
            shardings.iter().zip(&cell.slot.groups).enumerate()
        {
            let grouped = self.block.group_terms(est, group, cell.m);
            for (&(plan, schedule), scheduled) in cell.schedules.iter().zip(&self.scheduled) {
                let layout = Layout {
                    schedule,
                    sharding,
                    shard_group,
                    ..layout
                };
                let row = &mut self.rows[plan as usize * shardings.len() + i];
                if !first {
                    *row = *shared.row();
                }
                est.finish_row(
                    &shared,
                    &self.block,
                    group,
                    (scheduled, &grouped),
                    &layout,
                    row,
                );
            }
        }
    }
}
