//! The hot loop: keys of all layouts, each combined from parts that many of them share.
//!
//! ```text
//! group  (tp, cp, ep, etp)                 layer costs per (micro-batch, sequence parallelism)
//!  └─ prefix  (+ pp, dp)                   data-parallel costs per (vpp, sharding)
//!      └─ cell  (+ micro-batch, sequence parallelism, vpp)      stage sums
//!          └─ block  (+ recomputation)                          stage costs
//!              └─ key  (+ schedule, sharding)                   two sums and a maximum
//! ```

use std::collections::BTreeSet;

use rayon::prelude::*;

use crate::error::Result;
use crate::layout::space::{Group, Micro, ONE, Prefix};
use crate::layout::{Layout, Schedule};
use crate::training::Estimator;
use crate::training::block::Block;
use crate::training::group::{Grid, GroupCosts};
use crate::training::layer::{DenseGemms, LayerCosts, LayerKey};
use crate::training::stage::StagePlan;

use super::Job;
use super::best::{Best, Found};
use super::control::Control;

/// A job with the tables that all its groups share.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    job: &'a Job,
    shared: &'a Shared,
}

/// Tables that all groups of a job share.
#[derive(Clone, Debug)]
pub struct Shared {
    vpps: Vec<u32>,
    pps: Vec<u32>,
    /// Stage plans by (pp, vpp), where the layers allow it.
    plans: Vec<Option<StagePlan>>,
    /// Times of GEMMs outside routed experts, by (tp, cp, micro-batch).
    gemms: Vec<((u32, u32, u32), DenseGemms)>,
}

impl Shared {
    /// Fill the tables of a job, on the threads of the caller's pool.
    #[must_use]
    pub fn new(job: &Job) -> Self {
        let groups = &job.index.groups;
        let pps = sorted(groups.iter().flat_map(|g| &g.prefixes).map(|p| p.pp));
        let vpps = sorted(job.space.candidates.plan.iter().map(|&(_, vpp)| vpp));
        let layers = job.space.facts.shape.layers;
        let model = &job.estimator.model;
        let pairs = pps
            .iter()
            .flat_map(|&pp| vpps.iter().map(move |&vpp| (pp, vpp)));
        let plans = pairs.map(|(pp, vpp)| {
            let chunks = u64::from(pp) * u64::from(vpp);
            (chunks <= layers).then(|| StagePlan::new(model, pp, vpp))
        });
        let plans = plans.collect();
        let keys = groups.iter().flat_map(|g| {
            let micro = g.prefixes.iter().flat_map(|p| &p.micro);
            micro.map(|m| (g.tp, g.cp, m.micro_batch))
        });
        let gemms = sorted(keys).into_par_iter().map(|(tp, cp, micro_batch)| {
            let key = LayerKey {
                tp,
                cp,
                ep: 1,
                etp: 1,
                micro_batch,
                sequence_parallel: false,
            };
            ((tp, cp, micro_batch), job.estimator.dense_gemms(key))
        });
        let gemms = gemms.collect();
        Self {
            vpps,
            pps,
            plans,
            gemms,
        }
    }

    fn plan(&self, pp: u32, vpp: u32) -> Option<&StagePlan> {
        let (row, column) = (
            self.pps.binary_search(&pp).ok()?,
            self.vpps.binary_search(&vpp).ok()?,
        );
        self.plans[row * self.vpps.len() + column].as_ref()
    }

    fn layer_costs(&self, estimator: &Estimator, key: LayerKey) -> LayerCosts {
        match self
            .gemms
            .binary_search_by_key(&(key.tp, key.cp, key.micro_batch), |e| e.0)
        {
            Ok(i) => estimator.layer_costs_with(key, &self.gemms[i].1),
            Err(_) => estimator.layer_costs(key),
        }
    }
}

fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<T>>().into_iter().collect()
}

/// Data-parallel costs of a prefix at one vpp.
#[derive(Debug)]
pub struct Slot<'a> {
    /// Virtual chunks per stage.
    pub vpp: u32,
    /// Stages.
    pub plan: &'a StagePlan,
    /// Per feasible sharding.
    pub groups: Vec<GroupCosts>,
    /// Memory that no micro-batch changes, per sharding and class, bytes.
    pub fixed_bytes: Vec<f64>,
    /// The same under DualPipe, which holds two stages.
    dual_bytes: Vec<f64>,
}

/// A prefix, ready to be scanned.
#[derive(Debug)]
pub struct PrefixWork<'a> {
    prefix: &'a Prefix,
    first: u64,
    stride: f64,
    slots: Vec<Slot<'a>>,
}

/// Layouts that differ in recomputation, schedule and sharding only.
#[derive(Debug)]
pub struct Cell<'a> {
    /// The layout as far as it is known.
    pub base: Layout,
    /// The prefix.
    pub prefix: &'a Prefix,
    /// Layer costs.
    pub costs: &'a LayerCosts,
    /// Stages and data-parallel costs.
    pub slot: &'a Slot<'a>,
    /// Micro-batches per step.
    pub m: f64,
    /// Time of a pipeline message, s.
    pub message_s: f64,
    /// Schedules, each with its place among the plans of the micro-batch.
    pub schedules: Vec<(u64, Schedule)>,
    /// Number of the first layout.
    pub first: u64,
    /// Plans of the micro-batch, those of other cells included.
    pub plan_count: u64,
}

impl Cell<'_> {
    /// Layouts of the cell.
    #[must_use]
    pub const fn size(&self) -> u64 {
        (self.prefix.recompute.len() * self.schedules.len() * self.prefix.sharding.len()) as u64
    }
}

/// Buffers that a thread reuses.
#[derive(Debug, Default)]
pub struct Scratch {
    block: Block,
    times: Vec<f64>,
    bytes: Vec<f64>,
    keys: Vec<(f64, f64)>,
}

/// Layer costs of one group, filled as they are asked for.
#[derive(Debug)]
pub struct Layers<'a> {
    scan: Scan<'a>,
    group: &'a Group,
    entries: Vec<(u32, bool, LayerCosts)>,
}

impl<'a> Layers<'a> {
    /// Nothing yet.
    #[must_use]
    pub const fn new(scan: Scan<'a>, group: &'a Group) -> Self {
        Self {
            scan,
            group,
            entries: Vec::new(),
        }
    }

    /// Make sure that an entry is there.
    pub fn fill(&mut self, micro_batch: u32, sequence_parallel: bool) {
        if self.get(micro_batch, sequence_parallel).is_none() {
            let Group {
                tp, cp, ep, etp, ..
            } = *self.group;
            let key = LayerKey {
                tp,
                cp,
                ep,
                etp,
                micro_batch,
                sequence_parallel,
            };
            let costs = self.scan.shared.layer_costs(&self.scan.job.estimator, key);
            self.entries.push((micro_batch, sequence_parallel, costs));
        }
    }

    fn get(&self, micro_batch: u32, sequence_parallel: bool) -> Option<&LayerCosts> {
        let hit = |e: &&(u32, bool, LayerCosts)| (e.0, e.1) == (micro_batch, sequence_parallel);
        self.entries.iter().find(hit).map(|e| &e.2)
    }
}

impl<'a> Scan<'a> {
    /// A job, with its shared tables filled.
    #[must_use]
    pub fn new(job: &'a Job) -> Self {
        Self {
            job,
            shared: job.shared.get_or_init(|| Shared::new(job)),
        }
    }

    /// Look at every layout of a group.
    ///
    /// # Errors
    /// [`crate::error::Error::Interrupted`] when `control` says stop.
    pub fn group(
        &self,
        number: usize,
        best: &mut Best,
        scratch: &mut Scratch,
        control: &Control,
    ) -> Result<()> {
        let group = &self.job.index.groups[number];
        let mut layers = Layers::new(*self, group);
        for (i, prefix) in group.prefixes.iter().enumerate() {
            let work = self.prefix(number, i);
            for (micro, sequence) in prefix.pairs() {
                layers.fill(prefix.micro[micro].micro_batch, prefix.sequence[sequence]);
                for cell in self.cells(&work, &layers, micro, sequence) {
                    self.cell(&cell, best, scratch);
                }
            }
            control.advance(prefix.size())?;
        }
        Ok(())
    }

    /// Data-parallel costs of a prefix.
    #[must_use]
    pub fn prefix(&self, group: usize, prefix: usize) -> PrefixWork<'a> {
        let est = &self.job.estimator;
        let first = self.job.index.first(group, prefix);
        let group = &self.job.index.groups[group];
        let prefix = &group.prefixes[prefix];
        let grid = Grid {
            tp: group.tp,
            cp: group.cp,
            ep: group.ep,
            etp: group.etp,
            pp: prefix.pp,
        };
        let used = prefix.micro.iter().fold(0, |mask, m| mask | m.plans);
        let slots = self.shared.vpps.iter().filter_map(|&vpp| {
            let wanted = self.plans_of(used).any(|(_, v)| v == vpp);
            let plan = self.shared.plan(prefix.pp, vpp).filter(|_| wanted)?;
            let groups: Vec<GroupCosts> = prefix
                .sharding
                .iter()
                .map(|&(sharding, shard)| est.group_costs(grid, plan, sharding, shard))
                .collect();
            let under = |schedule| {
                let memory = groups.iter().flat_map(|g| &g.memory);
                memory
                    .map(move |bytes| bytes.under(schedule).total())
                    .collect()
            };
            let (fixed_bytes, dual_bytes) = (under(Schedule::OneFOneB), under(Schedule::DualPipe));
            Some(Slot {
                vpp,
                plan,
                groups,
                fixed_bytes,
                dual_bytes,
            })
        });
        PrefixWork {
            prefix,
            first,
            stride: est.stage_stride(grid),
            slots: slots.collect(),
        }
    }

    /// (schedule, vpp) of the plans in a mask, in order.
    fn plans_of(&self, mask: u64) -> impl Iterator<Item = (Schedule, u32)> {
        let plans = self.job.space.candidates.plan.iter().enumerate();
        plans
            .filter(move |(i, _)| mask >> i & 1 == 1)
            .map(|(_, &plan)| plan)
    }

    /// Cells of one micro-batch and sequence parallelism, one for each vpp.
    pub fn cells<'w>(
        &'w self,
        work: &'w PrefixWork<'w>,
        layers: &'w Layers<'w>,
        micro: usize,
        sequence: usize,
    ) -> impl Iterator<Item = Cell<'w>> {
        let prefix = work.prefix;
        let chosen = &prefix.micro[micro];
        let costs = layers.get(chosen.micro_batch, prefix.sequence[sequence]);
        let Group {
            tp, cp, ep, etp, ..
        } = *layers.group;
        let base = Layout {
            tp,
            cp,
            ep,
            etp,
            pp: prefix.pp,
            dp: prefix.dp,
            micro_batch: chosen.micro_batch,
            sequence_parallel: prefix.sequence[sequence],
            ..ONE
        };
        let before: u64 = prefix.micro[..micro].iter().map(Micro::plan_count).sum();
        let plan_count = chosen.plan_count();
        let per_sequence =
            prefix.recompute.len() as u64 * plan_count * prefix.sharding.len() as u64;
        let first = work.first + before * prefix.per_plan() + sequence as u64 * per_sequence;
        work.slots.iter().filter_map(move |slot| {
            let costs = costs?;
            let schedules: Vec<_> = (0..)
                .zip(self.plans_of(chosen.plans))
                .filter(|(_, (_, vpp))| *vpp == slot.vpp)
                .map(|(nth, (schedule, _))| (nth, schedule))
                .collect();
            (!schedules.is_empty()).then(|| Cell {
                base: Layout {
                    vpp: slot.vpp,
                    ..base
                },
                prefix,
                costs,
                slot,
                m: chosen.count as f64,
                message_s: self.job.estimator.message_s(costs, work.stride),
                schedules,
                first,
                plan_count,
            })
        })
    }

    /// Look at every layout of a cell.
    pub fn cell(&self, cell: &Cell<'_>, best: &mut Best, scratch: &mut Scratch) {
        let est = &self.job.estimator;
        let sums = est.stage_sums(cell.costs, cell.slot.plan);
        for (i, &recompute) in cell.prefix.recompute.iter().enumerate() {
            est.fill_block(
                &mut scratch.block,
                cell.costs,
                cell.slot.plan,
                &sums,
                recompute,
            );
            scratch.block.message_s = cell.message_s;
            scratch.keys(est, cell);
            scratch.keep(est, cell, i as u64, best);
        }
    }
}

impl Scratch {
    /// Keys of a block: (step time, allocated bytes) per (sharding, schedule).
    fn keys(&mut self, est: &Estimator, cell: &Cell<'_>) {
        let (block, classes) = (&self.block, self.block.stages.len());
        self.times.clear();
        self.bytes.clear();
        for &(_, schedule) in &cell.schedules {
            self.times
                .push(block.schedule_terms(est, schedule, cell.m).total());
            let stages = block.stages.iter();
            self.bytes
                .extend(stages.map(|stage| block.stage_bytes(stage, schedule, cell.m)));
        }
        let buffers = est.buffers(block);
        self.keys.clear();
        for (i, group) in cell.slot.groups.iter().enumerate() {
            let group_s = block.group_terms(est, group, cell.m).total();
            let places = i * classes..(i + 1) * classes;
            let single = &cell.slot.fixed_bytes[places.clone()];
            let double = &cell.slot.dual_bytes[places];
            let stages = self.times.iter().zip(self.bytes.chunks_exact(classes));
            for ((time, bytes), &(_, schedule)) in stages.zip(&cell.schedules) {
                let fixed = if schedule == Schedule::DualPipe {
                    double
                } else {
                    single
                };
                let stages = bytes
                    .iter()
                    .zip(fixed)
                    .map(|(bytes, fixed)| bytes + fixed + buffers);
                let allocated = stages.fold(0.0, |peak: f64, b| if b > peak { b } else { peak });
                self.keys.push((time + group_s, allocated));
            }
        }
    }

    /// Hand the keys of a block on, unless none of them can be wanted.
    fn keep(&self, est: &Estimator, cell: &Cell<'_>, recompute: u64, best: &mut Best) {
        let (mut over, mut least, mut sum) = (0, f64::INFINITY, 0.0);
        let (mut step_s, mut allocated) = (f64::INFINITY, f64::INFINITY);
        for &(step, bytes) in &self.keys {
            least = least.min(bytes);
            sum += step + bytes;
            if est.fits(bytes) {
                step_s = step_s.min(step);
                allocated = allocated.min(bytes);
            } else {
                over += 1;
            }
        }
        best.evaluated += self.keys.len() as u64 - over;
        best.over_memory += over;
        if f64::is_nan(sum) {
            best.note_broken(cell.first);
            return;
        }
        let wanted = step_s < f64::INFINITY && best.wants(step_s, est.peak_bytes(allocated));
        let lean = best
            .leanest
            .is_none_or(|l| est.peak_bytes(least) <= l.peak_bytes);
        if !wanted && !lean {
            return;
        }
        let schedules = cell.schedules.len();
        for (i, &(step_s, bytes)) in self.keys.iter().enumerate() {
            let (sharding, schedule) = ((i / schedules) as u64, i % schedules);
            let plan = recompute * cell.plan_count + cell.schedules[schedule].0;
            let id = cell.first + plan * cell.prefix.sharding.len() as u64 + sharding;
            let found = Found {
                step_s,
                peak_bytes: est.peak_bytes(bytes),
                id,
            };
            if est.fits(bytes) {
                best.offer(found);
            }
            best.offer_lean(found);
        }
    }
}
