//! A deployment: engines with their layout and flags.

use serde::{Deserialize, Serialize};

use crate::units::Dtype;

/// Serving engine software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// vLLM: prompts share a token budget with decoding.
    Vllm,
    /// SGLang: prefill passes of their own, arrivals seen at polls.
    Sglang,
    /// TensorRT-LLM: whole prompts in flight with decoding.
    Trtllm,
}

/// Formats of weights and cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precision {
    /// Attention projections.
    pub attention: Dtype,
    /// Dense and shared MLPs.
    pub dense: Dtype,
    /// Routed experts.
    pub experts: Dtype,
    /// Keys and values.
    pub kv: Dtype,
}

/// Layout and flags of one engine: the GPUs that share one copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// GPUs of one pipeline stage, attention replicas included.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Attention replicas inside a stage; each is cut over tp / attention_dp GPUs.
    pub attention_dp: u32,
    /// Prefill context parallelism: GPUs of an attention replica that each take a part of every
    /// prompt, inside tp.
    #[serde(default = "one")]
    pub pcp: u32,
    /// Expert-parallel ranks; ep · moe_tp = tp.
    pub ep: u32,
    /// Tensor-parallel degree inside an expert.
    pub moe_tp: u32,
    /// Decode context parallelism.
    pub dcp: u32,
    /// Request slots.
    pub max_batch: u32,
    /// Prompt tokens (vLLM: of prompts and decodes) in one step.
    pub max_batched_tokens: u32,
    /// Tokens in a KV block.
    pub block_tokens: u32,
    /// Decode steps between two looks at the queue (SGLang).
    pub recv_interval: u32,
    /// Share of memory that weights and cache may take, as the engine's own flag counts it.
    pub memory_share: f64,
    /// Draft tokens a step (0: no speculation).
    pub spec_tokens: u32,
    /// Copies of experts beyond one each.
    pub redundant_experts: u32,
}

impl Engine {
    /// GPUs, tp · pp.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        self.tp * self.pp
    }

    /// Tensor-parallel degree of attention, tp / (attention_dp · pcp).
    #[must_use]
    pub const fn attention_tp(&self) -> u32 {
        self.tp / self.attention_dp.saturating_mul(self.pcp)
    }
}

const fn one() -> u32 {
    1
}

/// Equal engines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Engines.
    pub workers: u32,
    /// Each of them.
    pub engine: Engine,
}

/// Engines that together serve one model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// Software.
    pub backend: Backend,
    /// Formats.
    pub precision: Precision,
    /// Engines that only prefill; absent: those of `decode` prefill too (aggregated).
    pub prefill: Option<Pool>,
    /// Engines that decode.
    pub decode: Pool,
}

impl Deployment {
    /// GPUs of all engines.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        let prefill = match self.prefill {
            Some(pool) => pool.workers * pool.engine.gpus(),
            None => 0,
        };
        prefill + self.decode.workers * self.decode.engine.gpus()
    }
}
