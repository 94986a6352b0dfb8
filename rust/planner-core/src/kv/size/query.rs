//! What is asked: model, engine, layout, flags, memory.

use serde::Deserialize;

use super::memory::Device;
use crate::error::{Error, Result};
use crate::kv::format::KvFormat;
use crate::kv::layer::{Class, Cut, caches};
use crate::model::{LayerKind, Mixer, Model};

/// Serving engines whose arithmetic is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM, and Aphrodite, which shares its block pool.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// llama.cpp.
    Llamacpp,
}

/// Whether recurrent states are checkpointed at block ends (vLLM `mamba_cache_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MambaMode {
    /// One state per request.
    None,
    /// Also the state at the last block end, for prefix caching.
    Align,
}

/// Where the cache's memory comes from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Memory {
    /// As the engine reported it: one value, one per stage, or one per worker; the smallest counts.
    Available {
        /// Bytes; negative where nothing is left.
        bytes: Vec<f64>,
    },
    /// Predicted from the device.
    Device(Device),
}

/// A question about one layout.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// The model.
    pub model: Model,
    /// The engine.
    pub engine: Engine,
    /// Its version, major and minor; none: the newest that is known.
    pub version: Option<(u32, u32)>,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Decode context parallel ranks.
    pub dcp: u64,
    /// Prefill context parallel ranks.
    pub pcp: u64,
    /// Expert-parallel ranks that share the experts (1: they are cut by tensor parallelism).
    pub ep: u64,
    /// Redundant experts of a MoE layer, over all ranks: (E + R)/ep slots on each.
    #[serde(default)]
    pub redundant_experts: u64,
    /// Layers per stage, where they are not the engine's own choice.
    pub pp_layers: Option<Vec<u64>>,
    /// Format of the cache.
    pub kv_format: KvFormat,
    /// Tokens in a block; none: the engine's default.
    pub block_tokens: Option<u64>,
    /// Longest request, tokens.
    pub max_len: u64,
    /// Tokens of a batch.
    pub max_batched_tokens: u64,
    /// Requests of a batch.
    pub max_seqs: u64,
    /// Batches in flight at once.
    pub batches_in_flight: u64,
    /// States at block ends.
    pub mamba_mode: Option<MambaMode>,
    /// Draft tokens of speculative decoding with the model's own heads (0: none).
    pub draft_tokens: u64,
    /// Windows are honoured (vLLM's hybrid manager is on).
    pub hybrid: bool,
    /// Share of free memory that TensorRT-LLM takes.
    pub free_fraction: f64,
    /// Sliding-window slots over full slots (SGLang).
    pub swa_ratio: f64,
    /// State memory over token memory (SGLang).
    pub mamba_ratio: f64,
    /// Memory.
    pub memory: Memory,
}

/// Newest vLLM whose rules are known.
pub(super) const NEWEST_VLLM: (u32, u32) = (0, 33);

impl Query {
    pub(super) fn check(&self) -> Result<()> {
        let positive = [
            ("tp", self.tp),
            ("pp", self.pp),
            ("dcp", self.dcp),
            ("pcp", self.pcp),
            ("ep", self.ep),
            ("max_model_len", self.max_len),
            ("max_num_batched_tokens", self.max_batched_tokens),
            ("max_num_seqs", self.max_seqs),
            ("max_concurrent_batches", self.batches_in_flight),
            ("block_size", self.block_tokens.unwrap_or(1)),
        ];
        for (field, value) in positive {
            if value == 0 || value > 1 << 40 {
                return Err(Error::field(
                    field,
                    value,
                    "must be at least 1 and at most 2^40",
                ));
            }
        }
        let layers = self.model.layers.len() as u64;
        if self.pp > layers {
            return Err(Error::field(
                "pp",
                self.pp,
                format!("the model has {layers} layers"),
            ));
        }
        for (field, value) in [
            ("free_fraction", self.free_fraction),
            ("swa_ratio", self.swa_ratio),
        ] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(Error::field(field, value, "a share above 0 and up to 1"));
            }
        }
        if !(self.mamba_ratio > 0.0 && self.mamba_ratio.is_finite()) {
            return Err(Error::field(
                "mamba_ratio",
                self.mamba_ratio,
                "must be above 0",
            ));
        }
        self.check_format()?;
        self.check_redundant()?;
        self.check_context()
    }

    /// The packed latents are layouts of one vector for all heads.
    fn check_format(&self) -> Result<()> {
        if !matches!(self.kv_format, KvFormat::Fp8DsMla | KvFormat::Nvfp4DsMla) {
            return Ok(());
        }
        let one_vector = |k: &LayerKind| match &k.mixer {
            Some(Mixer::Mla(_)) => true,
            Some(Mixer::Attention(a)) => a.shares_k_and_v,
            _ => false,
        };
        if self.model.kinds.iter().any(one_vector) {
            return Ok(());
        }
        let format = match self.kv_format {
            KvFormat::Fp8DsMla => "fp8_ds_mla",
            _ => "nvfp4_ds_mla",
        };
        let rule = format!(
            "is a layout of latent attention (MLA), which {} has not",
            self.model.name
        );
        Err(Error::field("kv_dtype", format, rule))
    }

    /// Redundant experts need expert-parallel ranks with equally many slots.
    fn check_redundant(&self) -> Result<()> {
        if self.redundant_experts == 0 {
            return Ok(());
        }
        let refuse = |rule: String| {
            Err(Error::field(
                "redundant_experts",
                self.redundant_experts,
                rule,
            ))
        };
        if self.ep == 1 {
            return refuse("needs expert parallelism, ep above 1".into());
        }
        if self.redundant_experts > 1 << 20 {
            return refuse("must be at most 2^20".into());
        }
        let experts: Vec<u64> = self
            .model
            .kinds
            .iter()
            .filter_map(LayerKind::experts)
            .collect();
        if experts.is_empty() {
            return refuse(format!("{} has no experts", self.model.name));
        }
        for e in experts {
            if !(e + self.redundant_experts).is_multiple_of(self.ep) {
                return refuse(format!(
                    "ep = {} must divide {e} + {} slots",
                    self.ep, self.redundant_experts
                ));
            }
        }
        Ok(())
    }

    /// Rules of decode context parallelism (vLLM `config/parallel.py`, `config/model.py`).
    fn check_context(&self) -> Result<()> {
        if self.dcp == 1 {
            return Ok(());
        }
        if self.pcp == 1 && !self.tp.is_multiple_of(self.dcp) {
            let rule = format!("must divide tp = {}", self.tp);
            return Err(Error::field("dcp", self.dcp, rule));
        }
        let cut = self.cut();
        let all: Vec<_> = self
            .model
            .kinds
            .iter()
            .flat_map(|k| caches(k, &cut))
            .collect();
        if all
            .iter()
            .any(|c| matches!(c.class, Class::Window(_) | Class::Chunk(_)))
        {
            return Err(Error::field(
                "dcp",
                self.dcp,
                "sliding windows cannot be cut over context ranks",
            ));
        }
        Ok(())
    }

    /// How layers are cut.
    #[must_use]
    pub fn cut(&self) -> Cut {
        Cut {
            tp: self.tp,
            format: self.kv_format,
            activation_bytes: 2,
            draft_tokens: self.draft_tokens,
            windows: self.hybrid,
        }
    }

    /// Version of the engine, the newest known one if not stated.
    #[must_use]
    pub fn vllm_version(&self) -> (u32, u32) {
        self.version.unwrap_or(NEWEST_VLLM)
    }

    /// Kinds of the decoder layers in order, then of the draft layers if they are used.
    pub(super) fn layer_kinds(&self) -> Vec<usize> {
        let mut kinds = self.model.layers.clone();
        if self.draft_tokens > 0 {
            kinds.extend(self.model.mtp.iter().map(|m| m.kind));
        }
        kinds
    }

    /// Bytes per token on a GPU that holds `layers` (indices into [`Self::layer_kinds`]): if every
    /// layer keeps it, and where every token is kept.
    pub(super) fn token_bytes(&self, layers: &[usize]) -> (f64, f64) {
        let (cut, kinds) = (self.cut(), self.layer_kinds());
        let (mut all, mut growth) = (0.0, 0.0);
        for layer in layers {
            for cache in caches(&self.model.kinds[kinds[*layer]], &cut) {
                all += cache.bytes_per_token();
                if matches!(cache.class, Class::Full | Class::Latent) {
                    growth += cache.bytes_per_token();
                }
            }
        }
        (all, growth)
    }
}
