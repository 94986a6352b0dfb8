//! The row: every column of the training table, declared once.

use serde::Serialize;

use crate::layout::{Recompute, Schedule, Sharding, Status};
use crate::table::{name_cells, rows};

name_cells!(Sharding, Recompute, Schedule, Status);

rows! {
    /// One layout, estimated.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    imbalance_s: f64, "s", "Time of the fullest expert-parallel rank beyond that of balanced experts; the other terms are those of balanced ones";
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
    model_flops_per_s_per_gpu: f64, "FLOP/s", "FLOPs that the model needs whatever the layout (causal attention, balanced experts, no recomputation) per second and GPU";
    mfu_ratio: f64, "1", "model_flops_per_s_per_gpu over the device's 16-bit peak";
    hfu_ratio: f64, "1", "The same with recomputation counted";
    moe_imbalance_ratio: f64, "1", "Rows of the fullest expert-parallel rank over the mean; 1 without expert parallelism";
    cost_per_million_tokens: f64, "price", "Price of a million tokens; NaN without a price";
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
        + row.imbalance_s
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
