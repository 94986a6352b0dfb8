//! What a framework generation costs: the software half of the parameters.
//!
//! One set per framework generation (`presets/software.toml`), never per row, model or source.
//! Each number has its unit in its name; provenance and uncertainty live in the preset.

use serde::{Deserialize, Serialize};

/// Costs of one framework generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Name, such as `megatron-core-2025`.
    pub name: String,

    /// Bytes that memory-bound operators really move over the bytes of ideally fused ones.
    pub memory_bound_ratio: f64,
    /// As `memory_bound_ratio`, for the scan of a state-space or linear-attention mixer.
    pub scan_ratio: f64,
    /// As `memory_bound_ratio`, for the softmax, mask and dropout of unfused attention.
    pub score_ratio: f64,
    /// CPU time to launch one kernel, s.
    pub kernel_launch_s: f64,
    /// GPU idle time between two kernels, s.
    pub kernel_gap_s: f64,
    /// Share of `kernel_launch_s` that remains with CUDA graphs.
    pub graph_launch_ratio: f64,
    /// Exponent n that joins GPU and CPU time: (gpu^n + cpu^n)^(1/n).
    pub launch_exponent: f64,

    /// Latency of one tensor-parallel collective at t = 4, s; grows with √t.
    pub tp_latency_s: f64,
    /// Share of tensor-parallel time that is exposed.
    pub tp_exposed_ratio: f64,
    /// The same when the framework is asked to overlap it with the GEMMs.
    pub tp_overlap_exposed_ratio: f64,
    /// Extra wait per tensor-parallel collective of a fully CPU-bound phase at t = 2, 4, 8, s.
    pub tp_sync_s: [f64; 3],
    /// Share of context-parallel time that is exposed when overlap is on.
    pub cp_exposed_ratio: f64,

    /// Share of one micro-batch's forward behind which parameters are gathered.
    pub gather_hidden_ratio: f64,
    /// Share of one micro-batch's backward behind which gradients are reduced.
    pub reduce_hidden_ratio: f64,
    /// Share of min(compute, communication) by which FSDP slows the compute it overlaps with.
    pub fsdp_contention_ratio: f64,
    /// Time of sharded-parameter collectives over that of the fabric's all-gather.
    pub fsdp_time_ratio: f64,
    /// Extra time per rank of the shard group to publish updated parameters, s.
    pub shard_broadcast_s: f64,

    /// Share of the closed-form bubble that is seen.
    pub bubble_ratio: f64,
    /// Latency of one pipeline send or receive, s.
    pub p2p_latency_s: f64,
    /// Exposed share of the transfer time of a pipeline send or receive.
    pub p2p_exposed_ratio: f64,
    /// Fixed time per micro-batch, s.
    pub micro_batch_s: f64,

    /// Fixed time of one expert dispatch or combine, s.
    pub dispatch_s: f64,
    /// Time of dispatch and combine inside a domain over that of k copies at the fabric's all-to-all
    /// rate (below 1: copies to one rank are merged).
    pub dispatch_time_ratio: f64,
    /// Time of what crosses domains over that of one copy per domain at the NIC's all-to-all rate.
    pub dispatch_remote_ratio: f64,
    /// Exposed share of dispatch and combine.
    pub dispatch_exposed_ratio: f64,
    /// The same where pp > 1 and vpp > 1 let another micro-batch hide it.
    pub dispatch_interleaved_ratio: f64,
    /// Grouped-GEMM time over that of the GEMM curve.
    pub grouped_gemm_ratio: f64,
    /// Passes over the routed rows that permute and unpermute really cost, over the ideal ones.
    pub permute_ratio: f64,

    /// Bytes that the optimizer step moves over the ideal ones.
    pub optimizer_ratio: f64,
    /// Fixed time per step, s.
    pub step_s: f64,

    /// Under ZeRO-3 the sharded parameter is the fp32 master itself: no 16-bit copy beside it.
    pub shard_is_master: bool,
    /// Bytes per parameter that the framework keeps unsharded beyond weights and gradients.
    pub unsharded_bytes_per_param: f64,
    /// With pipeline stages, ZeRO-3 keeps the stage's parameters and gradients whole.
    pub pipeline_unshards: bool,
    /// Bytes of logits, their gradient and loss workspace per token and vocabulary entry.
    pub logits_bytes_per_entry: f64,
    /// Share of activations that selective recomputation keeps, where it is more than dropping the
    /// attention core's (torchtitan's operator policy); 1: attention core only.
    pub selective_kept_ratio: f64,
    /// Quantised recipes keep the input of the activation function in one byte too.
    pub quantized_activation_inputs: bool,
    /// Allocator cache over allocated bytes.
    pub fragmentation_ratio: f64,
    /// CUDA context, NCCL buffers and libraries, bytes.
    pub context_bytes: f64,
    /// Fixed buffers of the framework, bytes.
    pub buffer_bytes: f64,
}
