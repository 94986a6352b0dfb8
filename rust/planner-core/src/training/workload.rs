//! What is trained: sequence, batch, precision, optimizer, and the software that runs it.

use serde::{Deserialize, Serialize};

use crate::cluster::AttentionKernel;
use crate::units::Dtype;

/// A training job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Tokens in a sequence s.
    pub seq_len: u64,
    /// Sequences in a step.
    pub global_batch: u64,
    /// Format in which the linear layers multiply.
    pub compute_dtype: Dtype,
    /// Format of weights and activations outside the GEMMs.
    pub param_dtype: Dtype,
    /// Format in which gradients are accumulated and reduced.
    pub grad_dtype: Dtype,
    /// Bytes of optimizer state per parameter, master weights included (Adam with fp32 master: 12).
    pub optimizer_bytes_per_param: f64,
    /// Attention kernel.
    pub attention_kernel: AttentionKernel,
    /// Dropout masks are drawn and kept.
    pub dropout: bool,
    /// Layers are launched as CUDA graphs.
    pub cuda_graphs: bool,
    /// Hottest expert-parallel rank's rows over the mean (1: balanced).
    pub moe_imbalance: f64,
    /// Routing model that sets the hottest rank for each split and micro-batch; absent:
    /// `moe_imbalance` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<crate::moe::Routing>,
    /// Train the multi-token-prediction heads.
    pub mtp: bool,
    /// Rank order from fastest to slowest varying: pipeline last (`tp-cp-ep-dp-pp`) or data last.
    pub pipeline_outermost: bool,
    /// How context parallelism exchanges keys and values.
    pub cp_comm: CpComm,
    /// Vocabulary is padded to a multiple of this times tp.
    pub vocab_multiple: u64,
    /// Overlap switches as the framework has them.
    pub overlap: Overlap,
}

/// Exchange of keys and values under context parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpComm {
    /// Ring of point-to-point steps, hidden behind the attention core.
    P2p,
    /// All-gather of keys and values before the core.
    AllGather,
    /// All-to-all between heads and sequence (Ulysses).
    AllToAll,
}

/// Which communication a framework is asked to hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// Tensor-parallel collectives behind the GEMMs.
    pub tp: bool,
    /// Gradient reduction and parameter gathering behind compute.
    pub dp: bool,
    /// Context-parallel exchange behind the attention core.
    pub cp: bool,
    /// Expert dispatch and combine behind the other micro-batch.
    pub ep: bool,
}
