//! Numbers of a GPU architecture that every backend shares.

use serde::{Deserialize, Serialize};

/// Operators in a CUDA graph that a decode step runs for a layer, in units of the backend's time
/// per operator ([`Software::operator_s`](super::software::Software::operator_s)).
///
/// The counts carry kernel launches, short dependent kernels and pipeline ramps: everything of a
/// layer that neither bytes nor FLOP explain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operators {
    /// Softmax attention with its projections, norm and rotary embedding.
    pub attention: f64,
    /// Latent attention.
    pub latent: f64,
    /// Linear attention and state-space mixers.
    pub linear: f64,
    /// Sparse-attention indexer, beside its attention.
    pub indexer: f64,
    /// Dense MLP.
    pub dense: f64,
    /// Router, dispatch and routed experts.
    pub moe: f64,
    /// Selection of one expert for a token.
    pub choice: f64,
    /// Shared experts.
    pub shared: f64,
    /// Widening of experts that the device only stores in 4 bits.
    pub weight_only: f64,
    /// Cast of a GEMM group's input to block-scaled fp8.
    pub cast_fp8_block: f64,
    /// Cast of a GEMM group's input to fp4.
    pub cast_fp4: f64,
}

/// What serving kernels reach on a GPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Share of HBM bandwidth at which decode reads quantised weights.
    pub weight_read: f64,
    /// Of that, what 16-bit weights reach.
    pub weight_read_16_bit: f64,
    /// Of that, what 4-bit weights reach.
    pub weight_read_4_bit: f64,
    /// Share of HBM bandwidth at which decode reads expert weights.
    pub expert_read: f64,
    /// Of that, what 4-bit experts reach where the device multiplies 4-bit operands.
    pub expert_read_4_bit: f64,
    /// Share of HBM bandwidth for experts stored in 4 bits and multiplied in 16.
    pub expert_read_weight_only: f64,
    /// Share of HBM bandwidth at which decode reads keys and values.
    pub kv_read: f64,
    /// Share of the tensor-core peak that decode GEMMs reach.
    pub gemm_rate: f64,
    /// The same for experts, of which each sees few rows.
    pub expert_rate: f64,
    /// Share of the bf16 peak that absorbed latent attention reaches in decode.
    pub latent_rate: f64,
    /// Share of the peak that the GEMMs of a prefill pass reach.
    pub prefill_gemm_rate: f64,
    /// Share of the peak that the experts of a prefill pass reach.
    pub prefill_expert_rate: f64,
    /// Share of the bf16 peak that prefill attention reaches.
    pub prefill_attention_rate: f64,
    /// Rate of 4-bit multiplications over the share of 8-bit ones, prefill.
    pub prefill_4_bit: f64,
    /// Rate of 8-bit experts over the share of the others, prefill: their block scales are applied
    /// outside the tensor cores.
    pub prefill_expert_8_bit: f64,
    /// Share of the 16-bit peak that is there for weights that are widened before they are
    /// multiplied: those kernels issue warp-level instructions.
    pub weight_only_rate: f64,
    /// Share of the link peak that exchanges reach.
    pub link_rate: f64,
    /// Passes over a hidden vector that a token makes in a layer outside GEMMs, prefill.
    pub elementwise_passes: f64,
    /// Passes over a row of the hidden width that an expert's input and output make beside its GEMMs:
    /// gather, cast, result, weighted sum.
    pub expert_row_passes: f64,
    /// Latency of an all-reduce of a small message in a CUDA graph, s.
    pub all_reduce_s: f64,
    /// Growth of that with each doubling of the ranks beyond one.
    pub latency_per_doubling: f64,
    /// Time per operator over that of the newest architecture.
    pub operator_ratio: f64,
    /// Operators of a layer.
    pub operators: Operators,
}
