//! What one GPU reads, multiplies and launches for a layer.
//!
//! ```text
//! projections   weights cut by t = tp / (attention_dp·pcp); KV projections by min(t, g) (heads replicated)
//! core          keys and values: max(1, ⌈g/t⌉)·(d_k + d_v) elements a token, latent r + d_rope uncut
//! pairs         in prefill 2·heads·(d_nope + d_rope + d_v) FLOP of latent attention; where each token
//!               chooses its keys, these are read as latents: 2·max(heads, 64)·(2r + d_rope)
//! dense, shared fan·H·F / t
//! experts       E/ep experts of fan·H_e·I / moe_tp
//! ```
//!
//! H hidden, g KV heads, r latent rank, fan 3 for gated MLPs else 2.

use std::collections::BTreeMap;

use super::deployment::{Engine, Precision};
use super::hardware::Operators;
use crate::kv::size::memory::weight_bytes;
use crate::model::{
    Attention, Compress, FeedForward, LayerKind, Linear, Mamba2, Mixer, Mla, Moe, Span,
};
use crate::units::Dtype;

/// Weights of matrix multiplications that every token of the GPU passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrices {
    /// Elements.
    pub elements: f64,
    /// Format.
    pub dtype: Dtype,
}

impl Matrices {
    const fn new(elements: f64, dtype: Dtype) -> Self {
        Self { elements, dtype }
    }

    /// Stored bytes, scales included.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.elements * weight_bytes(self.dtype)
    }
}

/// Routed experts of one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Elements of one expert's slice.
    pub elements: f64,
    /// Format.
    pub dtype: Dtype,
    /// Experts on the GPU, redundant copies included.
    pub local: f64,
    /// Experts of the layer E.
    pub all: f64,
    /// Experts per token k.
    pub top_k: f64,
    /// Expert-parallel ranks.
    pub ranks: f64,
    /// Width that an expert reads.
    pub width: f64,
}

impl Experts {
    /// One expert's slice as a matrix.
    #[must_use]
    pub const fn slice(&self) -> Matrices {
        Matrices::new(self.elements, self.dtype)
    }
}

/// Attention core: what a new token reads for each key of its sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    /// Bytes of a key and its value.
    pub bytes_per_key: f64,
    /// FLOP of one token for a key, padded heads included.
    pub flops_per_key: f64,
    /// Bytes for each key of the sequence, however far: of an indexer, of pooled keys.
    pub index_bytes_per_key: f64,
    /// FLOP of that for a key.
    pub index_flops_per_key: f64,
    /// Keys seen at most (∞: all).
    pub span: f64,
    /// Bytes of a recurrent state, read and written by every token.
    pub state_bytes: f64,
    /// Elements of a token's queries and attended values, of the heads of a GPU.
    pub context_elements: f64,
    /// FLOP of a query–key pair in prefill.
    pub prefill_flops_per_pair: f64,
    /// FLOP of a token in prefill, whatever the length (linear attention).
    pub prefill_flops_per_token: f64,
    /// Latent: FLOP run at the latent rate.
    pub latent: bool,
}

const NO_CORE: Core = Core {
    bytes_per_key: 0.0,
    flops_per_key: 0.0,
    index_bytes_per_key: 0.0,
    index_flops_per_key: 0.0,
    span: f64::INFINITY,
    state_bytes: 0.0,
    context_elements: 0.0,
    prefill_flops_per_pair: 0.0,
    prefill_flops_per_token: 0.0,
    latent: false,
};

/// A layer on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Attention projections.
    pub projections: Matrices,
    /// Projections that stay in 16 bits (indexer, compressions that every rank repeats, router).
    pub unquantised: Matrices,
    /// Attention core.
    pub core: Core,
    /// Keys and values of a token in 16 bits, those of an indexer too, bytes.
    pub key_bytes: f64,
    /// Dense MLP.
    pub dense: Matrices,
    /// Shared experts.
    pub shared: Matrices,
    /// Routed experts.
    pub experts: Option<Experts>,
    /// Operators.
    pub operators: f64,
    /// All-reduces over the attention ranks (0 or 1 after the mixer).
    pub mixer: bool,
    /// There is a feed-forward.
    pub feed_forward: bool,
}

/// Query heads of latent attention that a kernel's tile holds, those of draft tokens included: fewer
/// cost as much.
pub const LATENT_TILE_HEADS: f64 = 64.0;

/// Bytes per element of a format that the cache keeps.
fn kv_bytes(precision: &Precision) -> f64 {
    weight_bytes(precision.kv)
}

/// ⌈a / b⌉ of whole numbers, as a real.
fn share(a: u64, b: f64) -> f64 {
    (a as f64 / b).ceil()
}

fn span(span: Span) -> f64 {
    match span {
        Span::Full => f64::INFINITY,
        Span::Window(tokens) | Span::Chunk(tokens) | Span::TopK(tokens) => tokens as f64,
    }
}

/// Casts of activations before quantised GEMMs, in operators: `groups` of them a layer.
///
/// Static fp8, bf16 and weight-only formats have none.
fn casts(dtype: Dtype, groups: f64, native: bool, operators: &Operators) -> f64 {
    groups
        * match dtype {
            Dtype::Fp8Block => operators.cast_fp8_block,
            Dtype::Nvfp4 | Dtype::Mxfp4 if native => operators.cast_fp4,
            _ => 0.0,
        }
}

/// Attention over pooled keys, one for `ratio` tokens: an indexer scores these, and without a choice
/// among them all are attended.
fn pool(c: &Compress, layer: &mut Layer) {
    let ratio = c.ratio.max(1) as f64;
    let core = &mut layer.core;
    core.index_bytes_per_key /= ratio;
    core.index_flops_per_key /= ratio;
    if c.top_k == 0 {
        core.index_bytes_per_key += core.bytes_per_key / ratio;
        core.index_flops_per_key += core.flops_per_key / ratio;
    }
    layer.unquantised.elements += c.params as f64;
}

/// How layers are cut over an engine.
pub struct Cut<'a> {
    /// Hidden size.
    pub hidden: f64,
    /// Layout.
    pub engine: &'a Engine,
    /// Formats.
    pub precision: &'a Precision,
    /// Operator counts.
    pub operators: &'a Operators,
    /// Formats that the device multiplies.
    pub peaks: &'a BTreeMap<Dtype, f64>,
}

impl Cut<'_> {
    fn attention_tp(&self) -> f64 {
        f64::from(self.engine.attention_tp())
    }

    /// The layer on one GPU.
    #[must_use]
    pub fn layer(&self, kind: &LayerKind) -> Layer {
        let mut layer = Layer {
            projections: Matrices::new(0.0, self.precision.attention),
            unquantised: Matrices::new(0.0, Dtype::Bf16),
            core: NO_CORE,
            key_bytes: 0.0,
            dense: Matrices::new(0.0, self.precision.dense),
            shared: Matrices::new(0.0, self.precision.dense),
            experts: None,
            operators: 0.0,
            mixer: kind.mixer.is_some(),
            feed_forward: kind.feed_forward.is_some(),
        };
        match &kind.mixer {
            None => {}
            Some(Mixer::Attention(a)) => self.attention(a, &mut layer),
            Some(Mixer::Mla(m)) => self.latent(m, &mut layer),
            Some(Mixer::Linear(l)) => self.linear(l, &mut layer),
            Some(Mixer::Mamba2(m)) => self.mamba2(m, &mut layer),
        }
        match &kind.feed_forward {
            None => {}
            Some(FeedForward::Dense(d)) => {
                let fan = if d.gated { 3.0 } else { 2.0 };
                layer.dense.elements =
                    fan * self.hidden * d.intermediate as f64 / self.attention_tp();
                layer.operators += self.operators.dense + self.casts(self.precision.dense, 2.0);
            }
            Some(FeedForward::Moe(m)) => self.moe(m, &mut layer),
        }
        layer
    }

    /// Whether the device multiplies operands of a format, rather than only storing it.
    fn native(&self, dtype: Dtype) -> bool {
        dtype != Dtype::Int4 && self.peaks.contains_key(&dtype)
    }

    fn casts(&self, dtype: Dtype, groups: f64) -> f64 {
        casts(dtype, groups, self.native(dtype), self.operators)
    }

    fn attention(&self, a: &Attention, layer: &mut Layer) {
        let t = self.attention_tp();
        let (d_k, d_v) = (a.head_dim as f64, a.v_head_dim as f64);
        let heads = share(a.heads, t);
        // A layer that has no keys of its own reads those of another.
        let read_width = share(a.kv_heads, t) * (d_k + if a.shares_k_and_v { 0.0 } else { d_v });
        let kv_width = if a.shares_kv { 0.0 } else { read_width };
        let gate = if a.output_gate { heads * d_v } else { 0.0 };
        let query = if a.q_lora_rank > 0 {
            a.q_lora_rank as f64 * (self.hidden + heads * d_k)
        } else {
            self.hidden * heads * d_k
        };
        let out = if a.o_lora_rank > 0 {
            let groups = (a.o_groups.max(1) as f64 / t).max(1.0);
            a.o_lora_rank as f64 * (heads * d_v + groups * self.hidden)
        } else {
            heads * d_v * self.hidden
        };
        layer.projections.elements = query + self.hidden * (kv_width + gate) + out;
        layer.key_bytes = 2.0 * kv_width;
        let pooled = a.compress.as_ref();
        let span = match pooled {
            Some(c) if c.top_k > 0 => span(a.span) + c.top_k as f64,
            _ => span(a.span),
        };
        layer.core = Core {
            bytes_per_key: read_width * kv_bytes(self.precision) / f64::from(self.engine.dcp),
            flops_per_key: 2.0 * heads * (d_k + d_v),
            span,
            context_elements: heads * (d_k + d_v),
            prefill_flops_per_pair: 2.0 * heads * (d_k + d_v),
            ..NO_CORE
        };
        layer.operators += self.operators.attention + self.casts(self.precision.attention, 2.0);
        self.indexer(a.indexer.as_ref(), layer);
        if let Some(c) = pooled {
            pool(c, layer);
        }
    }

    fn latent(&self, m: &Mla, layer: &mut Layer) {
        let t = self.attention_tp();
        let heads = share(m.heads, t);
        let (nope, rope, v) = (
            m.qk_nope_head_dim as f64,
            m.qk_rope_head_dim as f64,
            m.v_head_dim as f64,
        );
        let (q_rank, rank) = (m.q_lora_rank as f64, m.kv_lora_rank as f64);
        let query = if m.q_lora_rank > 0 {
            q_rank * (self.hidden + heads * (nope + rope))
        } else {
            self.hidden * heads * (nope + rope)
        };
        let gate = if m.output_gate {
            self.hidden * heads * v
        } else {
            0.0
        };
        layer.projections.elements = query
            + self.hidden * (rank + rope)
            + rank * heads * (nope + v)
            + gate
            + heads * v * self.hidden;
        layer.key_bytes = 2.0 * (rank + rope);
        let drafts = 1.0 + f64::from(self.engine.spec_tokens);
        // Context ranks attend with the heads of all of them to their own share of the keys.
        let dcp = f64::from(self.engine.dcp);
        let padded = (heads * dcp).max(LATENT_TILE_HEADS / drafts) / dcp;
        layer.core = Core {
            bytes_per_key: (rank + rope) * kv_bytes(self.precision) / dcp,
            flops_per_key: 2.0 * padded * (2.0 * rank + rope),
            span: span(m.span),
            context_elements: heads * (2.0 * rank + rope),
            prefill_flops_per_pair: if m.indexer.is_some() {
                2.0 * heads.max(LATENT_TILE_HEADS) * (2.0 * rank + rope)
            } else {
                2.0 * heads * (nope + rope + v)
            },
            latent: true,
            ..NO_CORE
        };
        layer.operators += self.operators.latent + self.casts(self.precision.attention, 4.0);
        self.indexer(m.indexer.as_ref(), layer);
    }

    fn indexer(&self, indexer: Option<&crate::model::Indexer>, layer: &mut Layer) {
        if let Some(i) = indexer {
            layer.core.index_bytes_per_key = i.head_dim as f64 * (1.0 + 4.0 / 128.0);
            layer.core.index_flops_per_key = 2.0 * (i.heads * i.head_dim) as f64;
            layer.key_bytes += layer.core.index_bytes_per_key;
            layer.unquantised.elements += i.params as f64;
            layer.operators += self.operators.indexer;
        }
    }

    fn linear(&self, l: &Linear, layer: &mut Layer) {
        let t = self.attention_tp();
        layer.projections.elements = (l.in_params + l.out_params) as f64 / t;
        let values = (l.v_heads * l.v_head_dim) as f64 / t;
        let d_k = l.k_head_dim as f64;
        layer.core = Core {
            state_bytes: 2.0 * values * d_k * l.state_bytes,
            prefill_flops_per_token: values * (6.0 * d_k + 128.0 * 3.0),
            ..NO_CORE
        };
        layer.operators += self.operators.linear + self.casts(self.precision.attention, 2.0);
    }

    fn mamba2(&self, m: &Mamba2, layer: &mut Layer) {
        let t = self.attention_tp();
        let inner = (m.heads * m.head_dim) as f64 / t;
        let groups = (m.groups as f64 / t).max(1.0);
        let state = m.state as f64;
        let width = 3.0 * inner + 2.0 * groups * state + m.heads as f64 / t;
        layer.projections.elements = self.hidden * width;
        layer.core = Core {
            state_bytes: 2.0 * inner * state * m.state_bytes,
            prefill_flops_per_token: 4.0 * inner * state + 256.0 * (groups * state + inner),
            ..NO_CORE
        };
        layer.operators += self.operators.linear + self.casts(self.precision.attention, 2.0);
    }

    fn moe(&self, m: &Moe, layer: &mut Layer) {
        let fan = if m.gated { 3.0 } else { 2.0 };
        let e = self.engine;
        layer.shared.elements =
            fan * self.hidden * m.shared_intermediate as f64 / self.attention_tp();
        layer.unquantised.elements += m.router_params as f64 + m.latent_params as f64;
        let slots = (m.experts + u64::from(e.redundant_experts)) as f64;
        layer.experts = Some(Experts {
            elements: fan * (m.expert_hidden * m.intermediate) as f64 / f64::from(e.moe_tp),
            dtype: self.precision.experts,
            local: slots / f64::from(e.ep),
            all: m.experts as f64,
            top_k: m.top_k as f64,
            ranks: f64::from(e.ep),
            width: m.expert_hidden as f64,
        });
        layer.operators += self.operators.moe
            + self.operators.choice * m.top_k as f64
            + self.casts(self.precision.experts, 1.0);
        if m.shared_intermediate > 0 {
            layer.operators += self.operators.shared;
        }
        if self.precision.experts.bytes() < 1.0 && !self.native(self.precision.experts) {
            layer.operators += self.operators.weight_only;
        }
    }
}
