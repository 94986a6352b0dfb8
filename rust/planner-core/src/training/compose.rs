//! From costs to a row: what the rows of a block share once, the rest per schedule and sharding.

use crate::error::{Error, Result};
use crate::layout::{Layout, Recompute, Status};

use super::Estimator;
use super::block::{Block, GroupTerms, ScheduleTerms};
use super::group::{Grid, GroupCosts};
use super::layer::{LayerCosts, LayerKey, Terms};
use super::row::Row;
use super::stage::StagePlan;
use super::sums::{recomputed, stage_terms};

/// A row whose schedule and sharding are still to be filled in.
#[derive(Clone, Debug)]
pub struct BlockRow {
    row: Row,
    m: f64,
    tokens: f64,
    model_flops: f64,
    /// FLOPs over the peak of a GPU, s: what the model needs, and with recomputation.
    model_share: f64,
    hardware_share: f64,
    /// Price of a million tokens for each second that a step takes.
    price_per_s: f64,
}

impl BlockRow {
    /// The row so far: what the layouts of the block share.
    #[must_use]
    pub const fn row(&self) -> &Row {
        &self.row
    }
}

impl Estimator {
    /// Estimates one layout: the same arithmetic as the sweep.
    ///
    /// The layout is taken as it is: which rules it breaks is for [`crate::layout`] to say. The
    /// status is `ok` or `memory`.
    ///
    /// # Errors
    /// When degrees are zero, do not multiply to the number of GPUs, or do not divide the batch.
    pub fn row(&self, layout: &Layout) -> Result<Row> {
        self.check(layout)?;
        let l = layout;
        let m = l.micro_batches(self.training.global_batch)? as f64;
        let grid = Grid {
            tp: l.tp,
            cp: l.cp,
            ep: l.ep,
            etp: l.etp,
            pp: l.pp,
        };
        let key = LayerKey {
            tp: l.tp,
            cp: l.cp,
            ep: l.ep,
            etp: l.etp,
            micro_batch: l.micro_batch,
            sequence_parallel: l.sequence_parallel,
        };
        let costs = self.layer_costs(key);
        let plan = StagePlan::new(&self.model, l.pp, l.vpp);
        let group = self.group_costs(grid, &plan, l.sharding, l.shard_group);
        let stride = self.stage_stride(grid);
        let block = self.block(&costs, &plan, l.recompute, l.recompute_layers, stride);
        let shared = self.block_row(&costs, &plan, &block, l, m);
        let scheduled = block.schedule_terms(self, l.schedule, m);
        let grouped = block.group_terms(self, &group, m);
        let mut row = *shared.row();
        self.finish_row(&shared, &block, &group, (&scheduled, &grouped), l, &mut row);
        Ok(row)
    }

    /// What the rows of a block share; schedule and sharding of `l` are not looked at.
    #[must_use]
    pub fn block_row(
        &self,
        costs: &LayerCosts,
        plan: &StagePlan,
        block: &Block,
        l: &Layout,
        m: f64,
    ) -> BlockRow {
        let class = &plan.classes[block.slowest];
        let share = self.dispatch_share(plan);
        let (forward, backward, again) = stage_terms(costs, class, l.recompute, l.recompute_layers);
        let passes = forward.plus(1.0, &backward);
        let balanced = Terms {
            imbalance: 0.0,
            ..again
        };
        let again_s = balanced.without_ep() + share * again.ep;
        let (model_flops, hardware_flops) = self.step_flops(costs, plan, l, m);
        let row = Row {
            gpus: l.world(),
            dp: l.dp,
            tp: l.tp,
            pp: l.pp,
            cp: l.cp,
            ep: l.ep,
            etp: l.etp,
            vpp: l.vpp,
            micro_batch: l.micro_batch,
            micro_batches: m as u64,
            sequence_parallel: l.sequence_parallel,
            recompute: l.recompute,
            recompute_layers: l.recompute_layers,
            sharding: l.sharding,
            shard_group: l.shard_group,
            schedule: l.schedule,
            status: Status::Ok,
            step_time_s: 0.0,
            gemm_s: m * passes.gemm,
            attention_s: m * passes.attention,
            memory_bound_s: m * passes.memory_bound,
            recompute_s: m * again_s,
            launch_s: m * passes.launch,
            tp_comm_s: m * passes.tp,
            cp_comm_s: m * passes.cp,
            ep_comm_s: m * share * passes.ep,
            imbalance_s: m * (passes.imbalance + again.imbalance),
            micro_batch_overhead_s: m * self.software.micro_batch_s,
            pp_comm_s: 0.0,
            bubble_s: 0.0,
            dp_comm_s: 0.0,
            optimizer_s: 0.0,
            step_overhead_s: 0.0,
            straggler_s: 0.0,
            peak_memory_bytes: 0.0,
            weights_bytes: 0.0,
            gradients_bytes: 0.0,
            optimizer_bytes: 0.0,
            activations_bytes: 0.0,
            logits_bytes: 0.0,
            buffers_bytes: self.buffers(block),
            fragmentation_bytes: 0.0,
            context_bytes: self.software.context_bytes,
            headroom_bytes: 0.0,
            tokens_per_s: 0.0,
            tokens_per_s_per_gpu: 0.0,
            model_flops_per_s_per_gpu: 0.0,
            mfu_ratio: 0.0,
            hfu_ratio: 0.0,
            moe_imbalance_ratio: costs.imbalance_ratio,
            cost_per_million_tokens: 0.0,
        };
        let peak = self
            .peak_flops(self.training.param_dtype)
            .unwrap_or(f64::NAN);
        let tokens = (self.training.global_batch * self.training.seq_len) as f64;
        let price = self.cluster.price_per_gpu_hour.unwrap_or(f64::NAN);
        BlockRow {
            row,
            m,
            tokens,
            model_flops,
            model_share: model_flops / peak,
            hardware_share: hardware_flops / peak,
            price_per_s: price * self.gpus as f64 / 3600.0 / tokens * 1e6,
        }
    }

    /// The row of a layout of a block, into a row that already holds what the block shares.
    pub fn finish_row(
        &self,
        shared: &BlockRow,
        block: &Block,
        group: &GroupCosts,
        (scheduled, grouped): (&ScheduleTerms, &GroupTerms),
        l: &Layout,
        row: &mut Row,
    ) {
        let (allocated, fullest) = block.allocated(self, l.schedule, group, shared.m);
        let time = scheduled.total() + grouped.total();
        let fixed = group.memory[fullest].under(l.schedule);
        let fullest = &block.stages[fullest];
        let bytes = block.stage_bytes(fullest, l.schedule, shared.m);
        let per_gpu = 1.0 / (time * self.gpus as f64);
        let capacity = self.cluster.device.memory_bytes;
        row.sharding = l.sharding;
        row.shard_group = l.shard_group;
        row.schedule = l.schedule;
        row.status = if self.fits(allocated) {
            Status::Ok
        } else {
            Status::Memory
        };
        row.step_time_s = time;
        row.pp_comm_s = scheduled.pp;
        row.bubble_s = scheduled.bubble;
        row.dp_comm_s = grouped.dp;
        row.optimizer_s = grouped.optimizer;
        row.step_overhead_s = grouped.fixed;
        row.straggler_s = grouped.straggler;
        row.peak_memory_bytes = self.peak_bytes(allocated);
        row.weights_bytes = fixed.weights;
        row.gradients_bytes = fixed.gradients;
        row.optimizer_bytes = fixed.optimizer;
        row.activations_bytes = bytes - fullest.logits_bytes;
        row.logits_bytes = fullest.logits_bytes;
        row.fragmentation_bytes = self.fragmentation_bytes(allocated);
        row.headroom_bytes = capacity - self.software.context_bytes - allocated;
        row.tokens_per_s = shared.tokens / time;
        row.tokens_per_s_per_gpu = shared.tokens * per_gpu;
        row.model_flops_per_s_per_gpu = shared.model_flops * per_gpu;
        row.mfu_ratio = shared.model_share * per_gpu;
        row.hfu_ratio = shared.hardware_share * per_gpu;
        row.cost_per_million_tokens = shared.price_per_s * time;
    }

    fn check(&self, l: &Layout) -> Result<()> {
        let degrees = [
            l.tp,
            l.cp,
            l.ep,
            l.etp,
            l.pp,
            l.dp,
            l.vpp,
            l.micro_batch,
            l.shard_group,
        ];
        if degrees.contains(&0) {
            return Err(Error::field(
                "layout",
                "0",
                "every degree must be at least 1",
            ));
        }
        if l.world() != self.gpus {
            return Err(Error::field(
                "gpus",
                self.gpus,
                format!("tp · cp · pp · dp = {} must equal it", l.world()),
            ));
        }
        Ok(())
    }

    /// FLOPs of a step over all ranks: what the model needs, and with recomputation.
    fn step_flops(&self, costs: &LayerCosts, plan: &StagePlan, l: &Layout, m: f64) -> (f64, f64) {
        let mut again = 0.0;
        for class in &plan.classes {
            for (unit, n) in recomputed(costs, class, l.recompute, l.recompute_layers) {
                again += class.stages
                    * n
                    * if l.recompute == Recompute::Selective {
                        unit.selective_flops
                    } else {
                        unit.forward_flops
                    };
            }
        }
        let tokens = (self.training.global_batch * self.training.seq_len) as f64;
        let model = tokens * self.model_flops_per_token;
        (model, model + again * m * f64::from(l.dp * l.cp * l.tp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Framework;
    use crate::layout::axes::Axes;
    use crate::moe::Routing;
    use crate::sweep::tests::job;
    use crate::training::row::step_terms;
    use crate::training::workload::Training;

    fn rows(change: impl FnOnce(&mut Training)) -> Vec<Row> {
        let model = serde_json::from_str(include_str!("../../fixtures/small-moe.json")).unwrap();
        let job = job(model, 16, Framework::Generic, &Axes::default(), |t| {
            t.global_batch = 48;
            change(t);
        });
        let ids = (0..job.index.len()).step_by(53);
        let layouts = ids.map(|id| job.index.layout(&job.space, id).unwrap());
        layouts
            .map(|layout| job.estimator.row(&layout).unwrap())
            .collect()
    }

    /// Skew is one term: terms add up, the others are those of balanced experts, and the step is
    /// longer by it (and by what follows from a longer stage: bubble, data parallelism).
    #[test]
    fn imbalance_is_a_term_of_its_own() {
        let even = rows(|t| t.moe_imbalance = 1.0);
        let stated = rows(|t| t.moe_imbalance = 1.4);
        let drawn = rows(|t| t.routing = Some(Routing::Dirichlet { alpha: 2.0 }));
        let mut skewed = 0;
        for (even, hot) in even.iter().zip(&stated).chain(even.iter().zip(&drawn)) {
            let sum = step_terms(hot);
            assert!((sum / hot.step_time_s - 1.0).abs() < 1e-12, "{hot:?}");
            assert!((step_terms(even) / even.step_time_s - 1.0).abs() < 1e-12);
            assert_eq!(even.imbalance_s, 0.0);
            assert_eq!(even.moe_imbalance_ratio, 1.0);
            if hot.ep == 1 {
                assert_eq!(hot.step_time_s, even.step_time_s);
                assert_eq!(hot.imbalance_s, 0.0);
                continue;
            }
            skewed += 1;
            assert!(hot.moe_imbalance_ratio > 1.0 && hot.imbalance_s > 0.0);
            if hot.pp == 1 {
                let named = |r: &Row| {
                    let compute = [r.gemm_s, r.attention_s, r.memory_bound_s, r.recompute_s];
                    (compute, r.launch_s, r.tp_comm_s, r.cp_comm_s, r.ep_comm_s)
                };
                assert_eq!(named(hot), named(even));
                let beyond = hot.step_time_s - even.step_time_s;
                let hidden = even.dp_comm_s - hot.dp_comm_s;
                assert!((beyond + hidden - hot.imbalance_s).abs() < 1e-9 * hot.step_time_s);
            }
        }
        assert!(skewed > 50, "{skewed}");
    }
}
