//! The hot part: a dozen scalars per (table entry, stage plan, recomputation), and from them the
//! step time and peak memory of each (schedule, sharding) in some tens of instructions.

use crate::layout::{Recompute, Schedule};
use crate::pipeline::bubble::in_flight;

use super::Estimator;
use super::group::GroupCosts;
use super::layer::LayerCosts;
use super::stage::StagePlan;
use super::sums::StageSums;

/// One stage class for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCosts {
    /// Forward, s.
    pub forward: f64,
    /// Backward with recomputation, s.
    pub backward: f64,
    /// Weight-gradient part of the backward, s.
    pub weight_gradient: f64,
    /// Activations that one micro-batch in flight keeps, bytes.
    pub activation_bytes: f64,
    /// Working set of recomputation, bytes.
    pub working_bytes: f64,
    /// Logits and loss workspace, bytes.
    pub logits_bytes: f64,
    /// Earliest stage of the class.
    pub stage: f64,
}

/// What the (schedule, sharding) rows of one block share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Per class of the stage plan.
    pub stages: Vec<StageCosts>,
    /// Class of the slowest stage.
    pub slowest: usize,
    /// Time of one micro-batch on the slowest stage, s.
    pub slowest_s: f64,
    /// The same on all other stages together, s.
    pub others_s: f64,
    /// Weight-gradient time of all other stages together, s.
    pub others_weight_gradient: f64,
    /// Time of one pipeline message, s.
    pub message_s: f64,
    /// Bytes of one pipeline message.
    pub boundary_bytes: f64,
    /// Stages p.
    pub pp: f64,
    /// Virtual chunks v.
    pub vpp: f64,
}

/// Step time and memory of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Step time, s.
    pub step_s: f64,
    /// Bytes that the framework allocates on the fullest rank.
    pub allocated_bytes: f64,
    /// Class of the fullest rank.
    pub fullest: usize,
    /// Allocated bytes and context fit into the device.
    pub fits: bool,
}

/// Terms of a step that the schedule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScheduleTerms {
    /// m micro-batches on the slowest stage, s.
    pub compute: f64,
    /// Bubble, s.
    pub bubble: f64,
    /// Pipeline messages, s.
    pub pp: f64,
}

impl ScheduleTerms {
    /// Sum of the terms, s.
    #[inline]
    #[must_use]
    pub fn total(&self) -> f64 {
        self.compute + self.bubble + self.pp
    }
}

/// Terms of a step that the data-parallel group decides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupTerms {
    /// Exposed data-parallel communication, s.
    pub dp: f64,
    /// Optimizer, s.
    pub optimizer: f64,
    /// Fixed time of a step, s.
    pub fixed: f64,
    /// Waiting for delayed ranks, s.
    pub straggler: f64,
}

impl GroupTerms {
    /// Sum of the terms, s.
    #[inline]
    #[must_use]
    pub fn total(&self) -> f64 {
        self.dp + self.optimizer + self.fixed + self.straggler
    }
}

impl Block {
    /// Micro-batches in flight on a stage, in stage equivalents.
    #[inline]
    #[must_use]
    pub fn in_flight(&self, schedule: Schedule, stage: f64, m: f64) -> f64 {
        let (p, v) = (self.pp as u32, self.vpp as u32);
        in_flight(schedule, p, v, m as u64, stage as u32)
    }

    /// Terms of a step that the schedule decides, over m micro-batches.
    #[inline]
    #[must_use]
    pub fn schedule_terms(&self, est: &Estimator, schedule: Schedule, m: f64) -> ScheduleTerms {
        let slow = &self.stages[self.slowest];
        let bubble = match schedule {
            Schedule::GPipe | Schedule::OneFOneB => self.others_s,
            Schedule::Interleaved => self.others_s / self.vpp,
            Schedule::ZbH1 => (self.others_s - 2.0 * self.others_weight_gradient).max(0.0),
            Schedule::DualPipe => {
                (self.pp / 2.0 - 1.0).max(0.0)
                    * (self.slowest_s + slow.backward - 3.0 * slow.weight_gradient).max(0.0)
            }
        };
        let messages = if self.pp > 1.0 {
            2.0 * (m * self.vpp + self.pp - 1.0)
        } else {
            0.0
        };
        ScheduleTerms {
            compute: m * self.slowest_s,
            bubble: est.software.bubble_ratio * bubble,
            pp: messages * self.message_s,
        }
    }

    /// Terms of a step that the data-parallel group decides, over m micro-batches.
    #[inline]
    #[must_use]
    pub fn group_terms(&self, est: &Estimator, group: &GroupCosts, m: f64) -> GroupTerms {
        let slow = &self.stages[self.slowest];
        let software = &est.software;
        let overlap = est.training.overlap.dp;
        let reduces = if group.reduce_every { m } else { 1.0 };
        let (dp, barriers) = if group.gather_every {
            let traffic = 2.0 * group.gather_s + group.reduce_s;
            let compute = self.slowest_s;
            let exposed = if overlap {
                let busy = compute + software.fsdp_contention_ratio * traffic.min(compute);
                quartic(busy, traffic) - compute
            } else {
                traffic
            };
            (m * exposed, m * 3.0)
        } else if overlap {
            let gather_window = software.gather_hidden_ratio * slow.forward;
            let reduce_window = software.reduce_hidden_ratio * slow.backward;
            let exposed = (group.gather_s - gather_window).max(0.0)
                + reduces * (group.reduce_s - reduce_window).max(0.0);
            (exposed, group.barriers)
        } else {
            (group.gather_s + reduces * group.reduce_s, group.barriers)
        };
        GroupTerms {
            dp: dp + group.replica_s,
            optimizer: group.optimizer_s,
            fixed: software.step_s,
            straggler: barriers * est.barrier_s,
        }
    }

    /// Bytes that the framework allocates on each class, and which one is fullest.
    #[inline]
    #[must_use]
    pub fn allocated(
        &self,
        est: &Estimator,
        schedule: Schedule,
        group: &GroupCosts,
        m: f64,
    ) -> (f64, usize) {
        let mut peak = (0.0, 0);
        for (i, (stage, fixed)) in self.stages.iter().zip(&group.memory).enumerate() {
            let fixed = fixed.under(schedule).total();
            let bytes = self.stage_bytes(stage, schedule, m) + fixed + est.buffers(self);
            if bytes > peak.0 {
                peak = (bytes, i);
            }
        }
        peak
    }

    /// Activations, working set and logits of a stage.
    #[inline]
    #[must_use]
    pub fn stage_bytes(&self, stage: &StageCosts, schedule: Schedule, m: f64) -> f64 {
        stage.activation_bytes * self.in_flight(schedule, stage.stage, m)
            + stage.working_bytes
            + stage.logits_bytes
    }

    /// Step time, memory and fit of one row.
    #[inline]
    #[must_use]
    pub fn key(&self, est: &Estimator, schedule: Schedule, group: &GroupCosts, m: f64) -> Key {
        let step_s =
            self.schedule_terms(est, schedule, m).total() + self.group_terms(est, group, m).total();
        let (allocated_bytes, fullest) = self.allocated(est, schedule, group, m);
        Key {
            step_s,
            allocated_bytes,
            fullest,
            fits: est.fits(allocated_bytes),
        }
    }
}

/// (a⁴ + b⁴)^¼: the larger where they differ, 19 % above it where they are equal.
#[inline]
pub(super) fn quartic(a: f64, b: f64) -> f64 {
    let (a2, b2) = (a * a, b * b);
    (a2 * a2 + b2 * b2).sqrt().sqrt()
}

impl Estimator {
    /// Costs that the rows of one (table entry, stage plan, recomputation) share. `recompute_layers`
    /// counts for `block` only.
    #[must_use]
    pub fn block(
        &self,
        costs: &LayerCosts,
        plan: &StagePlan,
        recompute: Recompute,
        recompute_layers: u32,
        stride: f64,
    ) -> Block {
        let sums = self.stage_sums(costs, plan);
        let mut block = Block::default();
        self.fill_block(
            &mut block,
            costs,
            plan,
            &sums,
            (recompute, recompute_layers),
        );
        block.message_s = self.message_s(costs, stride);
        block
    }

    /// Time of one pipeline message between stages `stride` ranks apart, s.
    #[must_use]
    pub fn message_s(&self, costs: &LayerCosts, stride: f64) -> f64 {
        let (transfer, fixed) = self.links.pp_s(stride, costs.boundary_bytes);
        self.software.p2p_latency_s + fixed + self.software.p2p_exposed_ratio * transfer
    }

    /// As [`Estimator::block`], into a block that is used again and again, from sums that its
    /// recomputations share. The time of a message is left to the caller: it depends on the grid.
    pub fn fill_block(
        &self,
        block: &mut Block,
        costs: &LayerCosts,
        plan: &StagePlan,
        sums: &[StageSums],
        recompute: (Recompute, u32),
    ) {
        let share = self.dispatch_share(plan);
        let fixed = self.software.micro_batch_s;
        let total = |s: &StageCosts| s.forward + s.backward + fixed;
        block.stages.clear();
        let (mut slowest, mut slowest_s, mut sum, mut weight) = (0, 0.0, 0.0, 0.0);
        for (i, (class, sums)) in plan.classes.iter().zip(sums).enumerate() {
            let stage = sums.stage(costs, class, recompute, share);
            let time = total(&stage);
            sum += class.stages * time;
            weight += class.stages * stage.weight_gradient;
            if i == 0 || time > slowest_s {
                (slowest, slowest_s) = (i, time);
            }
            block.stages.push(stage);
        }
        block.slowest = slowest;
        block.slowest_s = slowest_s;
        block.others_s = sum - slowest_s;
        block.others_weight_gradient = weight - block.stages[slowest].weight_gradient;
        block.boundary_bytes = costs.boundary_bytes;
        block.pp = f64::from(plan.pp);
        block.vpp = f64::from(plan.vpp);
    }

    /// Sums over the units of each class of stages.
    #[must_use]
    pub fn stage_sums(&self, costs: &LayerCosts, plan: &StagePlan) -> Vec<StageSums> {
        let share = self.dispatch_share(plan);
        plan.classes
            .iter()
            .map(|class| StageSums::new(costs, class, share))
            .collect()
    }

    /// Exposed share of dispatch and combine: another micro-batch hides them where stages
    /// interleave.
    #[must_use]
    pub fn dispatch_share(&self, plan: &StagePlan) -> f64 {
        let s = &self.software;
        let share = if plan.pp > 1 && plan.vpp > 1 {
            s.dispatch_interleaved_ratio
        } else {
            s.dispatch_exposed_ratio
        };
        if self.training.overlap.ep {
            share
        } else {
            share.max(1.0)
        }
    }
}
