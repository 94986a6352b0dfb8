//! The architecture of a model as a list of layer kinds.
//!
//! A [`Model`] is what `meshplan.hf` makes of a `config.json`: a few [`LayerKind`]s and, for each
//! decoder layer in order, which kind it is. Everything that costs time or memory is derived from
//! it; nothing downstream knows a model's name.

pub mod split;
pub mod work;

pub mod flops;
pub mod kv;
pub mod params;
pub mod summary;

use serde::{Deserialize, Serialize};

/// A decoder-only language model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Display name.
    pub name: String,
    /// Hugging Face `model_type`.
    pub model_type: String,
    /// Hidden size H.
    pub hidden: u64,
    /// Vocabulary entries V.
    pub vocab: u64,
    /// Width of the word table (0 or H: as wide as the model).
    #[serde(default)]
    pub embedding_width: u64,
    /// The LM head shares the embedding matrix.
    pub tied_embeddings: bool,
    /// Rows of a learned position table (0: none).
    pub learned_positions: u64,
    /// Longest context that the config states (`max_position_embeddings`), if it does.
    pub max_positions: Option<u64>,
    /// Parameters of embedding-side norms and projections on the first stage.
    pub embedding_extra_params: u64,
    /// Parameters of the final norm.
    pub final_norm_params: u64,
    /// Parameters of an LM-head bias or head-side projection on the last stage.
    pub head_extra_params: u64,
    /// The distinct layer kinds.
    pub kinds: Vec<LayerKind>,
    /// For each decoder layer, its index in `kinds`.
    pub layers: Vec<usize>,
    /// Multi-token-prediction heads, each one decoder layer with its own projection.
    #[serde(default)]
    pub mtp: Vec<MtpHead>,
    /// Towers outside the language model (vision, audio): counted in total parameters, not in
    /// language-model time.
    #[serde(default)]
    pub towers: Vec<Tower>,
    /// Residual streams of width H that a token carries from layer to layer (hyper-connections; 1:
    /// the usual single stream).
    #[serde(default = "one")]
    pub residual_streams: u64,
    /// Format in which the checkpoint stores its linear weights.
    pub weight_dtype: crate::units::Dtype,
}

const fn one() -> u64 {
    1
}

/// One kind of decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerKind {
    /// Short name, such as `gqa+moe`.
    pub name: String,
    /// Token mixer, if the layer has one.
    pub mixer: Option<Mixer>,
    /// Feed-forward, if the layer has one.
    pub feed_forward: Option<FeedForward>,
    /// Norms of width H in the layer.
    pub norms: u64,
    /// Parameters of all those norms (weights and biases).
    pub norm_params: u64,
    /// Parameters in the layer that no field above accounts for (residual scales and so on); they
    /// are replicated over tensor-parallel ranks.
    #[serde(default)]
    pub extra_params: u64,
}

/// Token mixer of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Mixer {
    /// Softmax attention with separate keys and values: MHA, GQA, MQA.
    Attention(Attention),
    /// Multi-head latent attention.
    Mla(Mla),
    /// Linear attention with a matrix state per value head (GDN, KDA, lightning).
    Linear(Linear),
    /// Mamba-2 state-space mixer.
    Mamba2(Mamba2),
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "tokens", rename_all = "snake_case")]
pub enum Span {
    /// All keys before it.
    Full,
    /// The last `W` keys, itself included.
    Window(u64),
    /// Keys of its own chunk of `C` tokens.
    Chunk(u64),
    /// The `k` keys that an indexer selects (sparse attention).
    TopK(u64),
}

/// MHA, GQA and MQA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Width of a query or key head, d_k.
    pub head_dim: u64,
    /// Width of a value head, d_v.
    pub v_head_dim: u64,
    /// Keys that a query sees.
    pub span: Span,
    /// Parameters of biases on q, k, v and output projections.
    pub bias_params: u64,
    /// Parameters of query/key norms, sinks and other per-head vectors.
    pub head_params: u64,
    /// Output gate of the width of the attention output, from its own H × heads·d_v projection.
    pub output_gate: bool,
    /// The layer reuses another layer's keys and values: no k and v projections, no KV cache.
    pub shares_kv: bool,
    /// Values are the keys (no v projection).
    pub shares_k_and_v: bool,
    /// Sparse-attention indexer, if any.
    pub indexer: Option<Indexer>,
    /// Rank of the query compression (0: q projects directly from H).
    #[serde(default)]
    pub q_lora_rank: u64,
    /// Rank per group of a grouped low-rank output projection (0: one heads·d_v × H matrix).
    #[serde(default)]
    pub o_lora_rank: u64,
    /// Groups of the low-rank output projection (0 or 1: one).
    #[serde(default)]
    pub o_groups: u64,
    /// Keys outside the window are kept pooled, if they are.
    #[serde(default)]
    pub compress: Option<Compress>,
}

/// Pooled long-range keys (DeepSeek-V4): one cache entry for every `ratio` tokens, besides the
/// window that `span` names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compress {
    /// Tokens pooled into one entry.
    pub ratio: u64,
    /// Pooled entries that a query sees (0: all of them).
    pub top_k: u64,
    /// Parameters of the pooling projections, biases and norms.
    pub params: u64,
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mla {
    /// Query heads.
    pub heads: u64,
    /// Rank of the query compression (0: none, q projects directly).
    pub q_lora_rank: u64,
    /// Rank of the key/value compression.
    pub kv_lora_rank: u64,
    /// Width of the part of q and k without position.
    pub qk_nope_head_dim: u64,
    /// Width of the rotary part, shared by all heads on the key side.
    pub qk_rope_head_dim: u64,
    /// Width of a value head.
    pub v_head_dim: u64,
    /// Keys that a query sees.
    pub span: Span,
    /// Parameters of biases.
    pub bias_params: u64,
    /// Parameters of the norms on the compressed vectors.
    pub head_params: u64,
    /// Output gate of the width of the attention output.
    pub output_gate: bool,
    /// Sparse-attention indexer, if any.
    pub indexer: Option<Indexer>,
}

/// Indexer of sparse attention: scores every key with few narrow heads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Index heads.
    pub heads: u64,
    /// Width of an index head.
    pub head_dim: u64,
    /// Parameters of all its projections and norms.
    pub params: u64,
}

/// Linear attention with a d_k × d_v state per value head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Key (and query) heads.
    pub k_heads: u64,
    /// Value heads.
    pub v_heads: u64,
    /// Width of a key head.
    pub k_head_dim: u64,
    /// Width of a value head.
    pub v_head_dim: u64,
    /// Taps of the causal convolution (0: none).
    pub conv_kernel: u64,
    /// Matrix parameters from H: q, k, v, gates, decays.
    pub in_params: u64,
    /// Matrix parameters of the output projection.
    pub out_params: u64,
    /// Parameters of convolution, decay, norm and biases.
    pub other_params: u64,
    /// Bytes per element of the recurrent state.
    pub state_bytes: f64,
}

/// Mamba-2 mixer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// Heads.
    pub heads: u64,
    /// Width of a head; d_inner = heads · head_dim.
    pub head_dim: u64,
    /// State size N.
    pub state: u64,
    /// Groups that share B and C.
    pub groups: u64,
    /// Taps of the causal convolution.
    pub conv_kernel: u64,
    /// Parameters of convolution, A, D, dt bias, gated norm and biases.
    pub other_params: u64,
    /// Bytes per element of the recurrent state.
    pub state_bytes: f64,
}

/// Feed-forward of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FeedForward {
    /// One MLP for all tokens.
    Dense(Dense),
    /// Routed experts, perhaps with shared ones.
    Moe(Moe),
}

impl LayerKind {
    /// Routed experts, where the layer has any.
    #[must_use]
    pub const fn experts(&self) -> Option<u64> {
        match &self.feed_forward {
            Some(FeedForward::Moe(m)) => Some(m.experts),
            _ => None,
        }
    }
}

/// Dense MLP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Intermediate width F.
    pub intermediate: u64,
    /// Gated (SwiGLU, GeGLU): two input projections.
    pub gated: bool,
    /// Parameters of biases.
    pub bias_params: u64,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts E.
    pub experts: u64,
    /// Experts per token k.
    pub top_k: u64,
    /// Intermediate width of a routed expert.
    pub intermediate: u64,
    /// Width that routed experts read and write (H, or a latent width below it).
    pub expert_hidden: u64,
    /// Gated experts.
    pub gated: bool,
    /// Parameters of the biases of one routed expert.
    pub expert_bias_params: u64,
    /// Intermediate width of all shared experts together (0: none).
    pub shared_intermediate: u64,
    /// Parameters of a dense projection pair to and from the latent width (0: none).
    pub latent_params: u64,
    /// Parameters of router, router bias and shared-expert gate.
    pub router_params: u64,
    /// Expert groups for group-limited routing (1: none).
    pub groups: u64,
    /// Groups that a token may use.
    pub top_groups: u64,
}

/// One multi-token-prediction head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MtpHead {
    /// Index of its decoder layer in `kinds`.
    pub kind: usize,
    /// Parameters of its projection and norms (embedding and head are shared).
    pub projection_params: u64,
}

/// Parameters outside the language model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tower {
    /// Name, such as `vision`.
    pub name: String,
    /// Parameters.
    pub params: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::units::Dtype;

    pub(crate) fn attention(heads: u64, kv_heads: u64, head_dim: u64) -> Attention {
        Attention {
            heads,
            kv_heads,
            head_dim,
            v_head_dim: head_dim,
            span: Span::Full,
            bias_params: 0,
            head_params: 0,
            output_gate: false,
            shares_kv: false,
            shares_k_and_v: false,
            indexer: None,
            q_lora_rank: 0,
            o_lora_rank: 0,
            o_groups: 0,
            compress: None,
        }
    }

    /// A layer of attention and nothing else.
    pub(crate) fn only(attention: Attention) -> LayerKind {
        LayerKind {
            name: "attention".into(),
            mixer: Some(Mixer::Attention(attention)),
            feed_forward: None,
            norms: 0,
            norm_params: 0,
            extra_params: 0,
        }
    }

    pub(crate) fn gated_delta_net(k_heads: u64, v_heads: u64, dim: u64, kernel: u64) -> LayerKind {
        LayerKind {
            mixer: Some(Mixer::Linear(Linear {
                k_heads,
                v_heads,
                k_head_dim: dim,
                v_head_dim: dim,
                conv_kernel: kernel,
                in_params: 0,
                out_params: 0,
                other_params: 0,
                state_bytes: 4.0,
            })),
            ..only(attention(1, 1, 1))
        }
    }

    /// A model of `count` layers, all of the first kind.
    pub(crate) fn model(kinds: Vec<LayerKind>, count: usize) -> Model {
        Model {
            name: "test".into(),
            model_type: "test".into(),
            hidden: 4096,
            vocab: 128_256,
            embedding_width: 0,
            tied_embeddings: false,
            learned_positions: 0,
            max_positions: None,
            embedding_extra_params: 0,
            final_norm_params: 4096,
            head_extra_params: 0,
            kinds,
            layers: vec![0; count],
            mtp: vec![],
            towers: vec![],
            residual_streams: 1,
            weight_dtype: Dtype::Bf16,
        }
    }
}
