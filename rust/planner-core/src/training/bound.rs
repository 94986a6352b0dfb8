//! Lower bounds on step time and memory of all layouts of a cell: what is left of the formulas in
//! [`super::block`] when recomputation, schedule and sharding are free.

use crate::layout::Schedule;
use crate::pipeline::bubble::in_flight;

use super::Estimator;
use super::block::quartic;
use super::group::GroupCosts;
use super::layer::LayerCosts;
use super::stage::StagePlan;
use super::sums::StageSums;

/// Bounds are lowered by this share, so that rounding never makes one exceed what it bounds.
const SLACK: f64 = 1.0 - 1e-9;

/// No layout of the cell is faster or smaller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Step time, s.
    pub step_s: f64,
    /// Allocated bytes on the fullest rank.
    pub allocated_bytes: f64,
}

/// What is free in a cell.
#[derive(Clone, Copy, Debug)]
pub struct Freedom<'a> {
    /// Schedules.
    pub schedules: &'a [(u64, Schedule)],
    /// Data-parallel costs per sharding.
    pub groups: &'a [GroupCosts],
    /// Memory that no micro-batch changes, per sharding and class, bytes.
    pub fixed_bytes: &'a [f64],
}

/// Stage times without recomputation, s.
struct Floor {
    /// Slowest stage T.
    slowest: f64,
    /// All other stages together: Σ − max, which grows with each of its terms.
    others: f64,
    /// Weight-gradient time of all stages but the one with least, at most what ZB-H1 hides.
    weight_gradient: f64,
    least_forward: f64,
    most_forward: f64,
}

impl Floor {
    fn new(sums: &[StageSums], plan: &StagePlan, fixed: f64) -> Self {
        let mut floor = Self {
            slowest: 0.0,
            others: 0.0,
            weight_gradient: 0.0,
            least_forward: f64::INFINITY,
            most_forward: 0.0,
        };
        let (mut all, mut weight, mut least_weight) = (0.0, 0.0, f64::INFINITY);
        for (s, class) in sums.iter().zip(&plan.classes) {
            let time = s.forward + s.backward + fixed;
            all += class.stages * time;
            weight += class.stages * s.weight_gradient;
            least_weight = s.weight_gradient.min(least_weight);
            floor.slowest = floor.slowest.max(time);
            floor.least_forward = floor.least_forward.min(s.forward);
            floor.most_forward = floor.most_forward.max(s.forward);
        }
        floor.others = all - floor.slowest;
        floor.weight_gradient = weight - least_weight;
        floor
    }
}

impl Estimator {
    /// Bounds of a cell: one table entry, stage plan and number of micro-batches m.
    ///
    /// *Time.* Recomputation only adds to the backward pass, so every stage is at least as slow as
    /// without it, and so are the slowest T and the others together. The bubble is that of the best
    /// schedule; data-parallel communication that of the best sharding, with the windows behind
    /// which it hides as long as they can be while the stage takes T.
    ///
    /// *Memory.* Each unit keeps the least that any recomputation keeps, no working set; each
    /// class has the fewest micro-batches in flight and the least static memory.
    #[must_use]
    pub fn cell_bound(
        &self,
        costs: &LayerCosts,
        plan: &StagePlan,
        sums: &[StageSums],
        free: Freedom<'_>,
        message_s: f64,
        m: f64,
    ) -> Bound {
        let floor = Floor::new(sums, plan, self.software.micro_batch_s);
        let (p, v) = (f64::from(plan.pp), f64::from(plan.vpp));
        let messages = if p > 1.0 {
            2.0 * (m * v + p - 1.0)
        } else {
            0.0
        };
        let bubbles = free.schedules.iter().map(|&(_, schedule)| match schedule {
            Schedule::GPipe | Schedule::OneFOneB => floor.others,
            Schedule::Interleaved => floor.others / v,
            Schedule::ZbH1 => (floor.others - 2.0 * floor.weight_gradient).max(0.0),
            Schedule::DualPipe => 0.0,
        });
        let bubble = bubbles.fold(f64::INFINITY, f64::min);
        let group = free.groups.iter().map(|g| self.group_floor(&floor, g, m));
        let group = group.fold(f64::INFINITY, f64::min);
        let step_s = messages * message_s
            + self.software.bubble_ratio * bubble
            + group
            + self.software.step_s;

        let classes = plan.classes.len();
        let mut allocated: f64 = 0.0;
        for (i, (class, s)) in plan.classes.iter().zip(sums).enumerate() {
            let flying = free.schedules.iter().map(|&(_, schedule)| {
                in_flight(schedule, plan.pp, plan.vpp, m as u64, class.stage)
            });
            let flying = flying.fold(f64::INFINITY, f64::min);
            let kept = s.saved_bytes + s.least_bytes;
            let logits = if class.last { costs.logits_bytes } else { 0.0 };
            let fixed = free.fixed_bytes.iter().skip(i).step_by(classes).copied();
            let fixed = fixed.fold(f64::INFINITY, f64::min);
            allocated = allocated.max(kept * flying + logits + fixed);
        }
        let messages = if p > 1.0 {
            2.0 * costs.boundary_bytes
        } else {
            0.0
        };
        allocated += self.software.buffer_bytes + messages;
        Bound {
            step_s: SLACK * step_s,
            allocated_bytes: SLACK * allocated,
        }
    }

    /// Least compute, data-parallel communication, optimizer and waiting of one sharding, s.
    ///
    /// Where parameters are gathered every time, m · ((T + c·min(traffic, T))⁴ + traffic⁴)^¼ grows
    /// with T. Elsewhere m·T + r·(R − w·b)⁺ grows with the backward b of a stage as long as
    /// r·w ≤ m, so it is least where the slowest stage takes T, of which at most T less the least
    /// forward is backward.
    fn group_floor(&self, floor: &Floor, g: &GroupCosts, m: f64) -> f64 {
        let s = &self.software;
        let compute = floor.slowest;
        let rest = g.replica_s + g.optimizer_s;
        let reduces = if g.reduce_every { m } else { 1.0 };
        if g.gather_every {
            let traffic = 2.0 * g.gather_s + g.reduce_s;
            let joined = if self.training.overlap.dp {
                let busy = compute + s.fsdp_contention_ratio * traffic.min(compute);
                quartic(busy, traffic)
            } else {
                compute + traffic
            };
            return m * joined + rest + 3.0 * m * self.barrier_s;
        }
        let exposed = if self.training.overlap.dp {
            let backward = (compute - floor.least_forward).max(0.0);
            let reduce = if reduces * s.reduce_hidden_ratio <= m {
                (g.reduce_s - s.reduce_hidden_ratio * backward).max(0.0)
            } else {
                0.0
            };
            (g.gather_s - s.gather_hidden_ratio * floor.most_forward).max(0.0) + reduces * reduce
        } else {
            g.gather_s + reduces * g.reduce_s
        };
        m * compute + exposed + rest + g.barriers * self.barrier_s
    }
}
