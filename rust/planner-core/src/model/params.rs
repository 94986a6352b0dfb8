//! Parameter counts, split by what tensor and expert parallelism do to them.

use super::{Attention, FeedForward, LayerKind, Linear, Mamba2, Mixer, Mla, Model, Moe};

/// Parameters of one decoder layer.
///
/// `total = tensor + key_value + replicated + router + expert`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerParams {
    /// Divided by tensor parallelism: query and output projections, dense and shared MLPs, linear
    /// attention, state-space projections, and the biases of all these.
    pub tensor: u64,
    /// Key and value projections: divided by tensor parallelism up to the number of key/value heads,
    /// replicated beyond.
    pub key_value: u64,
    /// Held whole by every tensor-parallel rank: norms, compressing projections of latent attention,
    /// indexers, latent projections of experts.
    pub replicated: u64,
    /// Router and shared-expert gate: held whole, often in fp32.
    pub router: u64,
    /// All routed experts: divided by expert parallelism and expert tensor parallelism.
    pub expert: u64,
    /// The part of `expert` that one token passes: `expert · top_k / experts`.
    pub expert_active: u64,
}

/// Product that stops at the largest `u64`; [`Model::validate`] refuses counts near it.
pub(crate) fn mul<const N: usize>(factors: [u64; N]) -> u64 {
    factors.iter().fold(1, |a, &b| a.saturating_mul(b))
}

/// Sum that stops at the largest `u64`.
pub(crate) fn add<const N: usize>(terms: [u64; N]) -> u64 {
    terms.iter().fold(0, |a, &b| a.saturating_add(b))
}

impl LayerParams {
    /// All parameters of the layer.
    #[must_use]
    pub fn total(&self) -> u64 {
        add([self.dense(), self.expert])
    }

    /// Parameters that every token passes, whatever the routing.
    #[must_use]
    pub fn dense(&self) -> u64 {
        add([self.tensor, self.key_value, self.replicated, self.router])
    }

    /// Parameters that one token passes.
    #[must_use]
    pub fn active(&self) -> u64 {
        add([self.dense(), self.expert_active])
    }

    fn plus(self, other: Self) -> Self {
        Self {
            tensor: add([self.tensor, other.tensor]),
            key_value: add([self.key_value, other.key_value]),
            replicated: add([self.replicated, other.replicated]),
            router: add([self.router, other.router]),
            expert: add([self.expert, other.expert]),
            expert_active: add([self.expert_active, other.expert_active]),
        }
    }
}

/// MHA, GQA and MQA: W_q H·h·d_k, W_k H·g·d_k, W_v H·g·d_v, W_o h·d_v·H, with low ranks and gates
/// where the model has them.
///
/// Source: Vaswani et al. 2017, Ainslie et al. 2023 (GQA).
///
/// ```
/// use planner_core::model::{params::attention, Attention, Span};
/// // Llama-3.1-8B: 4096·(32 + 2·8 + 32)·128 = 41.9 million.
/// let a = Attention { heads: 32, kv_heads: 8, head_dim: 128, v_head_dim: 128, span: Span::Full,
///     bias_params: 0, head_params: 0, output_gate: false, shares_kv: false,
///     shares_k_and_v: false, indexer: None, q_lora_rank: 0, o_lora_rank: 0, o_groups: 0,
///     compress: None };
/// assert_eq!(attention(&a, 4096).total(), 41_943_040);
/// assert_eq!(attention(&a, 4096).key_value, 2 * 4096 * 8 * 128);
/// ```
#[must_use]
pub fn attention(a: &Attention, hidden: u64) -> LayerParams {
    let out_width = mul([a.heads, a.v_head_dim]);
    let (q, q_down) = query(a.q_lora_rank, mul([a.heads, a.head_dim]), hidden);
    let k = mul([hidden, a.kv_heads, a.head_dim]);
    let v = mul([hidden, a.kv_heads, a.v_head_dim]);
    let key_value = match (a.shares_kv, a.shares_k_and_v) {
        (true, _) => 0,
        (false, true) => k,
        (false, false) => add([k, v]),
    };
    let out = if a.o_lora_rank > 0 {
        let ranks = mul([a.o_groups.max(1), a.o_lora_rank]);
        add([mul([out_width, a.o_lora_rank]), mul([ranks, hidden])])
    } else {
        mul([out_width, hidden])
    };
    let gate = if a.output_gate {
        mul([hidden, out_width])
    } else {
        0
    };
    let indexer = a.indexer.as_ref().map_or(0, |i| i.params);
    let pooling = a.compress.as_ref().map_or(0, |c| c.params);
    LayerParams {
        tensor: add([q, out, gate, a.bias_params]),
        key_value,
        replicated: add([q_down, a.head_params, indexer, pooling]),
        ..LayerParams::default()
    }
}

/// Query projection of the given width, and its compressing half (0 without a rank).
fn query(rank: u64, width: u64, hidden: u64) -> (u64, u64) {
    if rank > 0 {
        (mul([rank, width]), mul([hidden, rank]))
    } else {
        (mul([hidden, width]), 0)
    }
}

/// Multi-head latent attention: q through a rank, one joint compression of k and v, and their
/// expansion per head.
///
/// Source: DeepSeek-V2 technical report, section 2.1.
///
/// ```
/// use planner_core::model::{params::mla, Mla, Span};
/// // DeepSeek-V3: 187 107 328 parameters of matrices and norms in each layer.
/// let m = Mla { heads: 128, q_lora_rank: 1536, kv_lora_rank: 512, qk_nope_head_dim: 128,
///     qk_rope_head_dim: 64, v_head_dim: 128, span: Span::Full, bias_params: 0,
///     head_params: 2048, output_gate: false, indexer: None };
/// assert_eq!(mla(&m, 7168).total(), 187_107_328);
/// ```
#[must_use]
pub fn mla(m: &Mla, hidden: u64) -> LayerParams {
    let qk = add([m.qk_nope_head_dim, m.qk_rope_head_dim]);
    let (q, q_down) = query(m.q_lora_rank, mul([m.heads, qk]), hidden);
    let kv_down = mul([hidden, add([m.kv_lora_rank, m.qk_rope_head_dim])]);
    let expanded = mul([m.heads, add([m.qk_nope_head_dim, m.v_head_dim])]);
    let kv_up = mul([m.kv_lora_rank, expanded]);
    let out = mul([m.heads, m.v_head_dim, hidden]);
    let gate = if m.output_gate { out } else { 0 };
    let indexer = m.indexer.as_ref().map_or(0, |i| i.params);
    LayerParams {
        tensor: add([q, kv_up, out, gate]),
        replicated: add([q_down, kv_down, m.bias_params, m.head_params, indexer]),
        ..LayerParams::default()
    }
}

/// Linear attention: the projections are stated by the spec, since families differ in their gates.
#[must_use]
pub fn linear(l: &Linear) -> LayerParams {
    LayerParams {
        tensor: add([l.in_params, l.out_params, l.other_params]),
        ..LayerParams::default()
    }
}

/// Mamba-2: one input projection to z, x, B, C and dt, and one output projection.
///
/// in = H·(2·d_inner + 2·groups·N + heads), out = d_inner·H. Source: Dao & Gu 2024.
#[must_use]
pub fn mamba2(m: &Mamba2, hidden: u64) -> LayerParams {
    let inner = mul([m.heads, m.head_dim]);
    let projected = add([mul([2, inner]), mul([2, m.groups, m.state]), m.heads]);
    LayerParams {
        tensor: add([mul([hidden, add([projected, inner])]), m.other_params]),
        ..LayerParams::default()
    }
}

/// Parameters of one routed expert: two or three matrices between the expert's width and F.
#[must_use]
pub fn one_expert(m: &Moe) -> u64 {
    add([
        mul([matrices(m.gated), m.expert_hidden, m.intermediate]),
        m.expert_bias_params,
    ])
}

const fn matrices(gated: bool) -> u64 {
    if gated { 3 } else { 2 }
}

/// Feed-forward: a dense MLP, or routed and shared experts with their router.
#[must_use]
pub fn feed_forward(f: &FeedForward, hidden: u64) -> LayerParams {
    match f {
        FeedForward::Dense(d) => LayerParams {
            tensor: add([
                mul([matrices(d.gated), hidden, d.intermediate]),
                d.bias_params,
            ]),
            ..LayerParams::default()
        },
        FeedForward::Moe(m) => LayerParams {
            tensor: mul([matrices(m.gated), hidden, m.shared_intermediate]),
            replicated: m.latent_params,
            router: m.router_params,
            expert: mul([m.experts, one_expert(m)]),
            expert_active: mul([m.top_k, one_expert(m)]),
            ..LayerParams::default()
        },
    }
}

/// Token mixer.
#[must_use]
pub fn mixer(m: &Mixer, hidden: u64) -> LayerParams {
    match m {
        Mixer::Attention(a) => attention(a, hidden),
        Mixer::Mla(a) => mla(a, hidden),
        Mixer::Linear(l) => linear(l),
        Mixer::Mamba2(s) => mamba2(s, hidden),
    }
}

/// One decoder layer.
#[must_use]
pub fn layer(kind: &LayerKind, hidden: u64) -> LayerParams {
    let rest = LayerParams {
        replicated: add([kind.norm_params, kind.extra_params]),
        ..LayerParams::default()
    };
    let mixed = kind
        .mixer
        .as_ref()
        .map_or(rest, |m| mixer(m, hidden).plus(rest));
    kind.feed_forward
        .as_ref()
        .map_or(mixed, |f| feed_forward(f, hidden).plus(mixed))
}

/// Parameters of a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParams {
    /// Word table, V × its width.
    pub embedding: u64,
    /// Learned position table.
    pub positions: u64,
    /// Norms and projections beside the embedding, on the first stage.
    pub embedding_extra: u64,
    /// LM-head matrix (0 where it is the word table).
    pub head: u64,
    /// Head bias and projections, on the last stage.
    pub head_extra: u64,
    /// Final norm.
    pub final_norm: u64,
    /// Each kind of decoder layer, in the order of [`Model::kinds`].
    pub kinds: Vec<LayerParams>,
    /// All decoder layers.
    pub layers: LayerParams,
    /// Multi-token-prediction heads (not in `total`).
    pub mtp: u64,
    /// Towers outside the language model.
    pub towers: u64,
}

/// Count the parameters of a model.
#[must_use]
pub fn count(model: &Model) -> ModelParams {
    let h = model.hidden;
    let width = if model.embedding_width == 0 {
        h
    } else {
        model.embedding_width
    };
    let table = mul([model.vocab, width]);
    let kinds: Vec<LayerParams> = model.kinds.iter().map(|k| layer(k, h)).collect();
    let layers = model
        .layers
        .iter()
        .fold(LayerParams::default(), |sum, &i| sum.plus(kinds[i]));
    ModelParams {
        embedding: table,
        positions: mul([model.learned_positions, h]),
        embedding_extra: model.embedding_extra_params,
        head: if model.tied_embeddings { 0 } else { table },
        head_extra: model.head_extra_params,
        final_norm: model.final_norm_params,
        layers,
        mtp: model.mtp.iter().fold(0, |sum, m| {
            add([sum, kinds[m.kind].total(), m.projection_params])
        }),
        towers: model.towers.iter().fold(0, |sum, t| add([sum, t.params])),
        kinds,
    }
}

impl ModelParams {
    fn outside(&self) -> u64 {
        add([
            self.embedding,
            self.positions,
            self.embedding_extra,
            self.head,
            self.head_extra,
            self.final_norm,
        ])
    }

    /// The language model, multi-token-prediction heads apart.
    #[must_use]
    pub fn language(&self) -> u64 {
        add([self.outside(), self.layers.total()])
    }

    /// The language model and its towers, multi-token-prediction heads apart: the number that model
    /// cards state.
    #[must_use]
    pub fn total(&self) -> u64 {
        add([self.language(), self.towers])
    }

    /// Parameters of the language model that one token uses: everything but the experts that are not
    /// chosen. The word table and the head count.
    #[must_use]
    pub fn active(&self) -> u64 {
        add([self.outside(), self.layers.active()])
    }

    /// [`Self::active`] without the input tables, whose lookup takes no arithmetic; the head counts,
    /// also where it is the word table. This is what 2·N FLOPs per token counts.
    #[must_use]
    pub fn active_matmul(&self) -> u64 {
        let head = if self.head == 0 {
            self.embedding
        } else {
            self.head
        };
        let kept = add([head, self.head_extra, self.final_norm]);
        add([kept, self.layers.active()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{attention as heads, model, only};
    use crate::model::{Dense, MtpHead, Tower};
    use proptest::prelude::*;

    fn llama(hidden: u64, inner: u64) -> LayerKind {
        LayerKind {
            feed_forward: Some(FeedForward::Dense(Dense {
                intermediate: inner,
                gated: true,
                bias_params: 0,
            })),
            norms: 2,
            norm_params: 2 * hidden,
            ..only(heads(32, 8, 128))
        }
    }

    fn moe(experts: u64, top_k: u64, inner: u64, shared: u64) -> Moe {
        Moe {
            experts,
            top_k,
            intermediate: inner,
            expert_hidden: 4096,
            gated: true,
            expert_bias_params: 0,
            shared_intermediate: shared,
            latent_params: 0,
            router_params: experts * 4096,
            groups: 1,
            top_groups: 1,
        }
    }

    #[test]
    fn llama_8b_to_the_parameter() {
        let m = model(vec![llama(4096, 14_336)], 32);
        let p = count(&m);
        assert_eq!(p.total(), 8_030_261_248);
        assert_eq!(p.active(), p.total());
        assert_eq!(p.active_matmul(), p.total() - p.embedding);
    }

    #[test]
    fn mixtral_8x7b_and_what_a_token_uses() {
        let kind = LayerKind {
            feed_forward: Some(FeedForward::Moe(moe(8, 2, 14_336, 0))),
            ..llama(4096, 1)
        };
        let mut m = model(vec![kind], 32);
        m.vocab = 32_000;
        let p = count(&m);
        assert_eq!(p.total(), 46_702_792_704);
        assert_eq!(p.active(), 12_879_925_248);
    }

    #[test]
    fn tied_heads_count_once_and_still_multiply() {
        let mut m = model(vec![llama(4096, 14_336)], 1);
        let apart = count(&m);
        m.tied_embeddings = true;
        let tied = count(&m);
        assert_eq!(apart.total() - tied.total(), apart.embedding);
        assert_eq!(apart.active_matmul(), tied.active_matmul());
    }

    #[test]
    fn heads_of_other_kinds_stay_apart() {
        let mut m = model(vec![llama(4096, 14_336)], 2);
        let before = count(&m);
        m.mtp = vec![MtpHead {
            kind: 0,
            projection_params: 7,
        }];
        m.towers = vec![Tower {
            name: "vision".into(),
            params: 11,
        }];
        let after = count(&m);
        assert_eq!(after.total(), before.total() + 11);
        assert_eq!(after.language(), before.total());
        assert_eq!(after.mtp, after.kinds[0].total() + 7);
    }

    #[test]
    fn absurd_sizes_are_refused_and_do_not_wrap() {
        let mut m = model(vec![llama(4096, u64::MAX)], 2);
        assert!(m.validate().is_err());
        m.hidden = 0;
        assert!(m.validate().is_err());
    }

    proptest! {
        /// The parts add up, and a token never uses more than there is.
        #[test]
        fn parts_add_up(
            experts in 1_u64..64, chosen in 1_u64..64, inner in 1_u64..4096,
            shared in 0_u64..4096, layers in 1_usize..12,
        ) {
            let top_k = chosen.min(experts);
            let kind = LayerKind {
                feed_forward: Some(FeedForward::Moe(moe(experts, top_k, inner, shared))),
                ..llama(4096, 1)
            };
            let m = model(vec![kind], layers);
            let p = count(&m);
            prop_assert_eq!(p.layers.total(), p.kinds[0].total() * layers as u64);
            prop_assert!(p.active() <= p.total());
            prop_assert_eq!(p.active() == p.total(), top_k == experts);
            let l = p.kinds[0];
            prop_assert_eq!(
                l.total(), l.tensor + l.key_value + l.replicated + l.router + l.expert
            );
        }
    }
}
