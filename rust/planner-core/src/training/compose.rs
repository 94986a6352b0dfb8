//! From costs to a row: what the rows of a block share once, the rest per schedule and sharding.

use crate::error::{Error, Result};
use crate::layout::{Layout, Recompute, Status};

use super::Estimator;
use super::block::Block;
use super::group::{Grid, GroupCosts};
use super::layer::{LayerCosts, LayerKey};
use super::row::Row;
use super::stage::StagePlan;
use super::sums::{recomputed, stage_terms, units};

/// A row whose schedule and sharding are still to be filled in.
#[derive(Clone, Debug)]
pub struct BlockRow {
    row: Row,
    m: f64,
    model_flops: f64,
    hardware_flops: f64,
    peak_flops: f64,
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
        Ok(self.finish_row(
            &self.block_row(&costs, &plan, &block, l, m),
            &block,
            &group,
            l,
        ))
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
        let again_s = again.without_ep() + share * again.ep;
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
            cost_per_million_tokens: 0.0,
        };
        let peak_flops = self
            .peak_flops(self.training.param_dtype)
            .unwrap_or(f64::NAN);
        BlockRow {
            row,
            m,
            model_flops,
            hardware_flops,
            peak_flops,
        }
    }

    /// The row of a layout of a block.
    #[must_use]
    pub fn finish_row(
        &self,
        shared: &BlockRow,
        block: &Block,
        group: &GroupCosts,
        l: &Layout,
    ) -> Row {
        let m = shared.m;
        let scheduled = block.schedule_terms(self, l.schedule, m);
        let grouped = block.group_terms(self, group, m);
        let (allocated, fullest) = block.allocated(self, l.schedule, group, m);
        let fits = self.fits(allocated);
        let time = scheduled.total() + grouped.total();
        let (fullest, fixed) = (&block.stages[fullest], &group.memory[fullest]);
        let tokens = (self.training.global_batch * self.training.seq_len) as f64;
        let gpus = self.gpus as f64;
        let price = self.cluster.price_per_gpu_hour.unwrap_or(f64::NAN);
        let capacity = self.cluster.device.memory_bytes;
        Row {
            sharding: l.sharding,
            shard_group: l.shard_group,
            schedule: l.schedule,
            status: if fits { Status::Ok } else { Status::Memory },
            step_time_s: time,
            pp_comm_s: scheduled.pp,
            bubble_s: scheduled.bubble,
            dp_comm_s: grouped.dp,
            optimizer_s: grouped.optimizer,
            step_overhead_s: grouped.fixed,
            straggler_s: grouped.straggler,
            peak_memory_bytes: self.peak_bytes(allocated),
            weights_bytes: fixed.weights,
            gradients_bytes: fixed.gradients,
            optimizer_bytes: fixed.optimizer,
            activations_bytes: block.stage_bytes(fullest, l.schedule, m) - fullest.logits_bytes,
            logits_bytes: fullest.logits_bytes,
            fragmentation_bytes: self.fragmentation_bytes(allocated),
            headroom_bytes: capacity - self.software.context_bytes - allocated,
            tokens_per_s: tokens / time,
            tokens_per_s_per_gpu: tokens / time / gpus,
            model_flops_per_s_per_gpu: shared.model_flops / time / gpus,
            mfu_ratio: shared.model_flops / time / gpus / shared.peak_flops,
            hfu_ratio: shared.hardware_flops / time / gpus / shared.peak_flops,
            cost_per_million_tokens: price * gpus / 3600.0 * time / tokens * 1e6,
            ..shared.row.clone()
        }
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
        let (mut model, mut again) = (0.0, 0.0);
        for class in &plan.classes {
            for (unit, n) in units(costs, class) {
                model += class.stages * n * unit.model_flops;
            }
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
        let ranks = m * f64::from(l.dp * l.cp * l.tp);
        (model * ranks, (model + again) * ranks)
    }
}
