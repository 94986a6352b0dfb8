//! The row: every column of the training table, declared once.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::layout::{Layout, Recompute, Schedule, Sharding, Status};
use crate::table::{Column, Data, Table};

use super::Estimator;
use super::group::Grid;
use super::layer::LayerKey;
use super::stage::StagePlan;
use super::sums::{recomputed, stage_terms, units};

/// How a column's values are stored.
trait Cell: Sized {
    fn column(values: Vec<Self>) -> Data;
}
impl Cell for u32 {
    fn column(values: Vec<Self>) -> Data {
        Data::U32(values)
    }
}
impl Cell for u64 {
    fn column(values: Vec<Self>) -> Data {
        Data::U64(values)
    }
}
impl Cell for f64 {
    fn column(values: Vec<Self>) -> Data {
        Data::F64(values)
    }
}
impl Cell for bool {
    fn column(values: Vec<Self>) -> Data {
        Data::Bool(values)
    }
}
macro_rules! name_cell {
    ($($t:ty),+) => {$(
        impl Cell for $t {
            fn column(values: Vec<Self>) -> Data {
                Data::Name { codes: values.into_iter().map(|v| v as u8).collect(), names: <$t>::NAMES }
            }
        }
    )+};
}
name_cell!(Sharding, Recompute, Schedule, Status);

macro_rules! columns {
    ($($name:ident : $ty:ty, $unit:literal, $doc:literal;)+) => {
        /// One layout, estimated.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct Row { $(#[doc = $doc] pub $name: $ty),+ }

        /// Declaration of every column, in order.
        pub const COLUMNS: &[Column] = &[$(Column { name: stringify!($name), unit: $unit, doc: $doc }),+];

        /// Columns of a table of rows, growing one row at a time.
        #[derive(Clone, Debug, Default)]
        pub struct Rows { $($name: Vec<$ty>),+ }

        impl Rows {
            /// Appends a row.
            pub fn push(&mut self, row: &Row) { $(self.$name.push(row.$name);)+ }
            /// Rows so far.
            #[must_use]
            pub fn len(&self) -> usize { self.dp.len() }
            /// Whether there is none.
            #[must_use]
            pub fn is_empty(&self) -> bool { self.dp.is_empty() }
            /// The table, moved out.
            #[must_use]
            pub fn into_table(self) -> Table {
                Table { columns: COLUMNS.to_vec(), data: vec![$(Cell::column(self.$name)),+] }
            }
        }
    };
}

columns! {
    gpus: u64, "1", "GPUs that the layout occupies, tp·cp·pp·dp";
    dp: u32, "1", "Data-parallel degree";
    tp: u32, "1", "Tensor-parallel degree";
    pp: u32, "1", "Pipeline stages";
    cp: u32, "1", "Context-parallel degree";
    ep: u32, "1", "Expert-parallel degree";
    etp: u32, "1", "Tensor-parallel degree inside an expert";
    vpp: u32, "1", "Virtual pipeline chunks per stage";
    micro_batch: u32, "sequences", "Sequences in a micro-batch";
    micro_batches: u64, "1", "Micro-batches per step";
    sequence_parallel: bool, "", "Norms and dropout are split over tensor-parallel ranks";
    recompute: Recompute, "", "What the backward pass recomputes";
    recompute_layers: u32, "layers", "Layers per stage recomputed whole, when recompute is block";
    sharding: Sharding, "", "What the data-parallel group shards";
    shard_group: u32, "1", "Ranks in a shard group";
    schedule: Schedule, "", "Pipeline schedule";
    status: Status, "", "ok, or why the layout is not feasible";
    step_time_s: f64, "s", "Time of one optimizer step: the sum of the terms below";
    gemm_s: f64, "s", "GEMMs, forward and backward, on the slowest stage";
    attention_s: f64, "s", "Attention cores and scans";
    memory_bound_s: f64, "s", "Norms, activations, residuals, loss, permutation";
    recompute_s: f64, "s", "Recomputed forward work, its communication included";
    launch_s: f64, "s", "Kernel launches that the GPU waits for";
    tp_comm_s: f64, "s", "Exposed tensor-parallel collectives";
    cp_comm_s: f64, "s", "Exposed context-parallel exchange";
    ep_comm_s: f64, "s", "Exposed expert dispatch and combine";
    micro_batch_overhead_s: f64, "s", "Fixed time of micro-batches";
    pp_comm_s: f64, "s", "Pipeline messages";
    bubble_s: f64, "s", "Pipeline bubble";
    dp_comm_s: f64, "s", "Exposed gradient reduction and parameter gathering";
    optimizer_s: f64, "s", "Optimizer step";
    step_overhead_s: f64, "s", "Fixed time of a step";
    straggler_s: f64, "s", "Waiting for delayed ranks";
    peak_memory_bytes: f64, "bytes", "Peak on the fullest rank: the sum of the terms below";
    weights_bytes: f64, "bytes", "Weights and gathered layers";
    gradients_bytes: f64, "bytes", "Gradients";
    optimizer_bytes: f64, "bytes", "Optimizer state and master weights";
    activations_bytes: f64, "bytes", "Activations in flight and the working set of recomputation";
    logits_bytes: f64, "bytes", "Logits and loss workspace";
    buffers_bytes: f64, "bytes", "Communication and framework buffers";
    fragmentation_bytes: f64, "bytes", "Allocator cache beyond what is allocated";
    context_bytes: f64, "bytes", "CUDA context, NCCL and libraries";
    headroom_bytes: f64, "bytes", "Device memory less context and allocated bytes; negative where it does not fit";
    tokens_per_s: f64, "tokens/s", "Tokens of the whole job per second";
    tokens_per_s_per_gpu: f64, "tokens/s", "Tokens per second and GPU";
    model_flops_per_s_per_gpu: f64, "FLOP/s", "FLOPs that the model needs (causal attention, no recomputation) per second and GPU";
    mfu_ratio: f64, "1", "model_flops_per_s_per_gpu over the device's 16-bit peak";
    hfu_ratio: f64, "1", "The same with recomputation counted";
    cost_per_million_tokens: f64, "price", "Price of a million tokens; NaN without a price";
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
        let block = self.block(
            &costs,
            &plan,
            l.recompute,
            l.recompute_layers,
            self.stage_stride(grid),
        );
        let scheduled = block.schedule_terms(self, l.schedule, m);
        let grouped = block.group_terms(self, &group, m);
        let rank = block.key(self, l.schedule, &group, m);
        let class = &plan.classes[block.slowest];
        let share = self.dispatch_share(&plan);
        let (forward, backward, again) =
            stage_terms(&costs, class, l.recompute, l.recompute_layers);
        let passes = forward.plus(1.0, &backward);
        let again_s = again.without_ep() + share * again.ep;
        let fullest = &block.stages[rank.fullest];
        let fixed = &group.memory[rank.fullest];
        let capacity = self.cluster.device.memory_bytes;
        let context = self.software.context_bytes;
        let headroom = capacity - context - rank.allocated_bytes;
        let fragmentation = self.fragmentation_bytes(rank.allocated_bytes);
        let (model_flops, hardware_flops) = self.step_flops(&costs, &plan, l, m);
        let tokens = (self.training.global_batch * self.training.seq_len) as f64;
        let gpus = self.gpus as f64;
        let time = rank.step_s;
        let peak = self
            .peak_flops(self.training.param_dtype)
            .unwrap_or(f64::NAN);
        let price = self.cluster.price_per_gpu_hour.unwrap_or(f64::NAN);
        Ok(Row {
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
            status: if rank.fits {
                Status::Ok
            } else {
                Status::Memory
            },
            step_time_s: time,
            gemm_s: m * passes.gemm,
            attention_s: m * passes.attention,
            memory_bound_s: m * passes.memory_bound,
            recompute_s: m * again_s,
            launch_s: m * passes.launch,
            tp_comm_s: m * passes.tp,
            cp_comm_s: m * passes.cp,
            ep_comm_s: m * share * passes.ep,
            micro_batch_overhead_s: m * self.software.micro_batch_s,
            pp_comm_s: scheduled.pp,
            bubble_s: scheduled.bubble,
            dp_comm_s: grouped.dp,
            optimizer_s: grouped.optimizer,
            step_overhead_s: grouped.fixed,
            straggler_s: grouped.straggler,
            peak_memory_bytes: self.peak_bytes(rank.allocated_bytes),
            weights_bytes: fixed.weights,
            gradients_bytes: fixed.gradients,
            optimizer_bytes: fixed.optimizer,
            activations_bytes: block.stage_bytes(fullest, l.schedule, m) - fullest.logits_bytes,
            logits_bytes: fullest.logits_bytes,
            buffers_bytes: self.buffers(&block),
            fragmentation_bytes: fragmentation,
            context_bytes: context,
            headroom_bytes: headroom,
            tokens_per_s: tokens / time,
            tokens_per_s_per_gpu: tokens / time / gpus,
            model_flops_per_s_per_gpu: model_flops / time / gpus,
            mfu_ratio: model_flops / time / gpus / peak,
            hfu_ratio: hardware_flops / time / gpus / peak,
            cost_per_million_tokens: price * gpus / 3600.0 * time / tokens * 1e6,
        })
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
    fn step_flops(
        &self,
        costs: &super::layer::LayerCosts,
        plan: &StagePlan,
        l: &Layout,
        m: f64,
    ) -> (f64, f64) {
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

/// Sum of the terms of a row that make up the step, s.
#[must_use]
pub fn step_terms(row: &Row) -> f64 {
    row.gemm_s
        + row.attention_s
        + row.memory_bound_s
        + row.recompute_s
        + row.launch_s
        + row.tp_comm_s
        + row.cp_comm_s
        + row.ep_comm_s
        + row.micro_batch_overhead_s
        + row.pp_comm_s
        + row.bubble_s
        + row.dp_comm_s
        + row.optimizer_s
        + row.step_overhead_s
        + row.straggler_s
}

/// Sum of the terms of a row that make up the peak, bytes.
#[must_use]
pub fn memory_terms(row: &Row) -> f64 {
    row.weights_bytes
        + row.gradients_bytes
        + row.optimizer_bytes
        + row.activations_bytes
        + row.logits_bytes
        + row.buffers_bytes
        + row.fragmentation_bytes
        + row.context_bytes
}
