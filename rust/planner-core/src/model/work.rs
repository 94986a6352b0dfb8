//! What one micro-batch makes a rank do in one layer: GEMMs with their real shapes, attention
//! cores, bytes of memory-bound operators, kernels, messages, and the activations that stay.
//!
//! Symbols: b sequences in a micro-batch, s sequence length, H hidden size, t tensor parallel,
//! c context parallel, T = b·s/c tokens on a rank, F intermediate width.

pub use super::split::{Gemm, Split};
use super::{
    Attention, Dense, FeedForward, Indexer, LayerKind, Linear, Mamba2, Mixer, Mla, Moe, Span,
};
use crate::training::workload::CpComm;

/// Activations of one layer and micro-batch on one rank, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activations {
    /// Layer input: all that full recomputation keeps.
    pub input: f64,
    /// All that is kept without recomputation, input included.
    pub saved: f64,
    /// The part of `saved` that belongs to the attention core (scores, softmax, its dropout).
    pub core: f64,
}

/// Work of one layer for one micro-batch on one rank, forward; the backward pass follows from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerWork {
    /// Dense GEMMs of the forward pass.
    pub gemms: Vec<Gemm>,
    /// Grouped GEMMs of routed experts, forward.
    pub expert_gemms: Vec<Gemm>,
    /// FLOPs of the attention core, forward (causal half, window and top-k applied).
    pub core_flops: f64,
    /// The part of `core_flops` that the tiles of a fused kernel add on the diagonal.
    pub tile_flops: f64,
    /// Width of a head: narrow heads run slower.
    pub core_head_dim: f64,
    /// Elements of a materialised score matrix (0 for fused attention).
    pub score_elements: f64,
    /// Bytes of memory-bound operators, forward.
    pub forward_bytes: f64,
    /// Bytes of memory-bound operators, backward.
    pub backward_bytes: f64,
    /// Bytes of recurrent scans, forward.
    pub scan_forward_bytes: f64,
    /// Bytes of recurrent scans, backward.
    pub scan_backward_bytes: f64,
    /// Bytes that permute and unpermute move, each of forward and backward.
    pub permute_bytes: f64,
    /// Kernels launched, forward.
    pub forward_kernels: f64,
    /// Kernels launched, backward.
    pub backward_kernels: f64,
    /// Tensor-parallel all-reduces (or reduce-scatter + all-gather pairs) of T·H, each direction.
    pub tp_messages: f64,
    /// Bytes of one of them.
    pub tp_message_bytes: f64,
    /// Bytes that expert-tensor-parallel ranks gather and scatter, each direction.
    pub etp_message_bytes: f64,
    /// Bytes of keys and values that a rank sends to its context-parallel peers, forward.
    pub cp_bytes: f64,
    /// Tokens that a rank dispatches (0 without experts).
    pub dispatch_tokens: f64,
    /// Width of a dispatched token.
    pub dispatch_width: f64,
    /// Experts per token.
    pub dispatch_top_k: f64,
    /// Routed experts.
    pub dispatch_experts: f64,
    /// What stays in memory.
    pub activations: Activations,
}

impl LayerWork {
    /// Work of `kind` in a model of hidden size `hidden`.
    #[must_use]
    pub fn new(kind: &LayerKind, hidden: f64, split: &Split) -> Self {
        let mut work = Self {
            core_head_dim: 128.0,
            ..Self::default()
        };
        work.norms(kind, hidden, split);
        match &kind.mixer {
            Some(Mixer::Attention(a)) => work.attention(a, hidden, split),
            Some(Mixer::Mla(a)) => work.mla(a, hidden, split),
            Some(Mixer::Linear(l)) => work.linear(l, hidden, split),
            Some(Mixer::Mamba2(x)) => work.mamba(x, hidden, split),
            None => {}
        }
        match &kind.feed_forward {
            Some(FeedForward::Dense(d)) => work.dense(d, hidden, split),
            Some(FeedForward::Moe(m)) => work.moe(m, hidden, split),
            None => {}
        }
        work.tp_message_bytes = split.tokens() * hidden * 2.0;
        work
    }

    /// Norms, residuals and dropout. With dropout and biases (GPT) a norm moves 5.5 passes of
    /// T·H forward and 8.5 backward, without (Llama) 5 and 6.
    fn norms(&mut self, kind: &LayerKind, hidden: f64, split: &Split) {
        let rows = split.norm_tokens();
        let (forward, backward) = if split.dropout {
            (5.5, 8.5)
        } else {
            (5.0, 6.0)
        };
        let pass = rows * hidden * 2.0;
        let norms = kind.norms as f64;
        self.forward_bytes += norms * forward * pass;
        self.backward_bytes += norms * backward * pass;
        let blocks =
            f64::from(u8::from(kind.mixer.is_some()) + u8::from(kind.feed_forward.is_some()));
        // Input of a norm in 16 bits, its output as the next GEMM saves it, a one-byte mask.
        let mask = if split.dropout { 1.0 } else { 0.0 };
        self.activations.input = rows * hidden * 2.0;
        self.activations.saved += blocks * rows * hidden * (2.0 + split.saved_input_bytes + mask);
    }

    /// FLOPs of a causal core, 2·b·s/c·keys·heads/t·(d_k + d_v), with keys the mean number that a
    /// query sees; a tile of 128 keys straddles the diagonal, hence (1 + 128/s).
    fn core(&mut self, heads: f64, d_k: f64, d_v: f64, span: Span, split: &Split) {
        let tokens = split.tokens();
        let local_heads = heads / split.tp;
        let keys = if split.unfused {
            split.seq_len
        } else {
            mean_keys(span, split.seq_len) * (1.0 + 128.0 / split.seq_len)
        };
        self.core_flops += 2.0 * tokens * keys * local_heads * (d_k + d_v);
        if !split.unfused {
            let straddling = keys * 128.0 / (split.seq_len + 128.0);
            self.tile_flops += 2.0 * tokens * straddling * local_heads * (d_k + d_v);
        }
        self.core_head_dim = f64::midpoint(d_k, d_v);
        if split.unfused {
            self.score_elements +=
                split.micro_batch * local_heads * split.seq_len * split.seq_len / split.cp;
        }
        // Scores after softmax (2 B), dropped scores (2 B) and their mask (1 B); fused kernels keep
        // one fp32 statistic a row.
        self.activations.core += if split.unfused {
            self.score_elements * (if split.dropout { 5.0 } else { 4.0 })
        } else {
            4.0 * tokens * local_heads
        };
        self.activations.saved += self.activations.core;
    }

    fn attention(&mut self, a: &Attention, hidden: f64, split: &Split) {
        let tokens = split.tokens();
        let heads = a.heads as f64 / split.tp;
        let kv_heads = if a.shares_kv {
            0.0
        } else {
            (a.kv_heads as f64 / split.tp).max(1.0)
        };
        let (d_k, d_v) = (a.head_dim as f64, a.v_head_dim as f64);
        let kv_width = kv_heads * (d_k + if a.shares_k_and_v { 0.0 } else { d_v });
        let gate = if a.output_gate { heads * d_v } else { 0.0 };
        let qkv = heads * d_k + kv_width + gate;
        if a.q_lora_rank > 0 {
            let rank = a.q_lora_rank as f64;
            self.gemms
                .push(Gemm::linear(tokens, rank + kv_width + gate, hidden));
            self.gemms.push(Gemm::linear(tokens, heads * d_k, rank));
        } else {
            self.gemms.push(Gemm::linear(tokens, qkv, hidden));
        }
        if a.o_lora_rank > 0 {
            let groups = (a.o_groups.max(1) as f64 / split.tp).max(1.0);
            let rank = a.o_lora_rank as f64;
            let down = Gemm::linear(tokens, rank, heads * d_v / groups);
            self.gemms.push(Gemm { groups, ..down });
            self.gemms.push(Gemm::linear(tokens, hidden, groups * rank));
        } else {
            self.gemms.push(Gemm::linear(tokens, hidden, heads * d_v));
        }
        self.core(a.heads as f64, d_k, d_v, a.span, split);
        if let Some(c) = &a.compress {
            let pooled = mean_keys(Span::Full, split.seq_len) / c.ratio as f64;
            let keys = if c.top_k > 0 {
                pooled.min(c.top_k as f64)
            } else {
                pooled
            };
            self.core_flops += 2.0 * tokens * keys * heads * (d_k + d_v);
            self.gemms.push(Gemm::linear(tokens, 2.0 * d_k, hidden));
            self.forward_kernels += 8.0;
            self.backward_kernels += 12.0;
        }
        self.indexer(a.indexer.as_ref(), split);
        self.activations.saved += tokens * (2.0 * qkv + 2.0 * heads * d_v)
            + self.saved_output(tokens, heads * d_v, split);
        self.cp_exchange(kv_width, heads * d_k, split);
        let (forward, backward) = if split.unfused {
            (26.0, 36.0)
        } else {
            (20.0, 30.0)
        };
        self.forward_kernels += forward;
        self.backward_kernels += backward;
        self.tp_messages += 1.0;
    }

    /// A quantised recipe keeps its own copy of a GEMM input beside the 16-bit one of the core.
    #[allow(clippy::unused_self, reason = "reads as a step of the layer")]
    fn saved_output(&self, tokens: f64, width: f64, split: &Split) -> f64 {
        if split.saved_input_bytes < 2.0 {
            tokens * width * split.saved_input_bytes
        } else {
            0.0
        }
    }

    fn mla(&mut self, a: &Mla, hidden: f64, split: &Split) {
        let tokens = split.tokens();
        let heads = a.heads as f64 / split.tp;
        let (nope, rope, v) = (
            a.qk_nope_head_dim as f64,
            a.qk_rope_head_dim as f64,
            a.v_head_dim as f64,
        );
        let (q_rank, kv_rank) = (a.q_lora_rank as f64, a.kv_lora_rank as f64);
        let q_width = heads * (nope + rope);
        if a.q_lora_rank > 0 {
            self.gemms.push(Gemm::linear(tokens, q_rank, hidden));
            self.gemms.push(Gemm::linear(tokens, q_width, q_rank));
        } else {
            self.gemms.push(Gemm::linear(tokens, q_width, hidden));
        }
        self.gemms
            .push(Gemm::linear(tokens, kv_rank + rope, hidden));
        self.gemms
            .push(Gemm::linear(tokens, heads * (nope + v), kv_rank));
        let gate = if a.output_gate { heads * v } else { 0.0 };
        if gate > 0.0 {
            self.gemms.push(Gemm::linear(tokens, gate, hidden));
        }
        self.gemms.push(Gemm::linear(tokens, hidden, heads * v));
        self.core(a.heads as f64, nope + rope, v, a.span, split);
        self.indexer(a.indexer.as_ref(), split);
        let kept = 2.0 * (q_rank + kv_rank + rope + gate)
            + split.saved_input_bytes * (q_rank + kv_rank)
            + 2.0 * heads * (2.0 * (nope + rope) + v)
            + 2.0 * heads * v;
        self.activations.saved += tokens * kept + self.saved_output(tokens, heads * v, split);
        // Rotary embedding, concatenation and the norms on the compressed vectors.
        let bytes = tokens * 2.0 * (2.0 * (q_rank + kv_rank) + 4.0 * q_width + 2.0 * heads * v);
        self.forward_bytes += bytes;
        self.backward_bytes += 1.5 * bytes;
        // Keys and values are expanded to heads before the core, and exchanged so.
        self.cp_exchange(heads * (nope + rope + v), q_width, split);
        self.forward_kernels += 30.0;
        self.backward_kernels += 45.0;
        self.tp_messages += 1.0;
    }

    /// Scores of the sparse-attention indexer: all previous keys, few narrow heads, forward and a
    /// distillation backward like any core.
    fn indexer(&mut self, indexer: Option<&Indexer>, split: &Split) {
        if let Some(i) = indexer {
            let keys = mean_keys(Span::Full, split.seq_len);
            self.core_flops +=
                2.0 * split.tokens() * keys * (i.heads * i.head_dim) as f64 / split.tp;
            self.forward_kernels += 8.0;
            self.backward_kernels += 12.0;
        }
    }

    /// Bytes of keys and values over context-parallel ranks: a ring or all-gather passes (c−1)
    /// chunks of them, an all-to-all moves (c−1)/c of q, k, v and output.
    fn cp_exchange(&mut self, kv_width: f64, q_width: f64, split: &Split) {
        let tokens = split.tokens();
        self.cp_bytes += match split.cp_comm {
            CpComm::P2p | CpComm::AllGather => (split.cp - 1.0) * tokens * kv_width * 2.0,
            CpComm::AllToAll => {
                (split.cp - 1.0) / split.cp * tokens * (kv_width + 2.0 * q_width) * 2.0
            }
        };
    }

    fn linear(&mut self, l: &Linear, hidden: f64, split: &Split) {
        let tokens = split.tokens();
        let width_in = l.in_params as f64 / hidden / split.tp;
        let width_out = l.out_params as f64 / hidden / split.tp;
        self.gemms.push(Gemm::linear(tokens, width_in, hidden));
        self.gemms.push(Gemm::linear(tokens, hidden, width_out));
        let (d_k, d_v) = (l.k_head_dim as f64, l.v_head_dim as f64);
        let heads = l.v_heads as f64 / split.tp;
        // Chunks of 64 tokens: three d_k × d_v products with the state, and inside the chunk.
        self.core_flops += tokens * heads * (6.0 * d_k * d_v + 2.0 * 64.0 * (2.0 * d_k + d_v));
        let pass = tokens * heads * d_v * 2.0;
        self.scan_forward_bytes += 10.0 * pass;
        self.scan_backward_bytes += 20.0 * pass;
        self.activations.saved += tokens * (2.0 * 2.0 * width_in + 3.0 * 2.0 * width_out);
        self.forward_kernels += 30.0;
        self.backward_kernels += 45.0;
        self.tp_messages += 1.0;
    }

    fn mamba(&mut self, x: &Mamba2, hidden: f64, split: &Split) {
        let tokens = split.tokens();
        let inner = (x.heads * x.head_dim) as f64 / split.tp;
        let groups = (x.groups as f64 / split.tp).max(1.0);
        let heads = x.heads as f64 / split.tp;
        let state = x.state as f64;
        let width_in = 2.0 * inner + 2.0 * groups * state + heads;
        self.gemms.push(Gemm::linear(tokens, width_in, hidden));
        self.gemms.push(Gemm::linear(tokens, hidden, inner));
        // Chunks of 256 tokens: state update and read, and the quadratic part inside a chunk.
        self.core_flops += tokens * (4.0 * inner * state + 256.0 * (groups * state + inner));
        let pass = tokens * inner * 2.0;
        self.scan_forward_bytes += 10.0 * pass;
        self.scan_backward_bytes += 20.0 * pass;
        self.activations.saved += tokens * (2.0 * 2.0 * width_in + 3.0 * 2.0 * inner);
        self.forward_kernels += 25.0;
        self.backward_kernels += 40.0;
        self.tp_messages += 1.0;
    }

    fn dense(&mut self, d: &Dense, hidden: f64, split: &Split) {
        self.mlp(
            split.tokens(),
            d.intermediate as f64 / split.tp,
            d.gated,
            hidden,
            split,
        );
        self.forward_kernels += 14.0;
        self.backward_kernels += 24.0;
        self.tp_messages += 1.0;
    }

    /// Two or three projections and the activation between them: GELU moves 2F elements forward
    /// and 3F backward, SwiGLU 3F and 5F.
    fn mlp(&mut self, rows: f64, width: f64, gated: bool, hidden: f64, split: &Split) {
        let fan = if gated { 2.0 } else { 1.0 };
        self.gemms.push(Gemm::linear(rows, fan * width, hidden));
        self.gemms.push(Gemm::linear(rows, hidden, width));
        let pass = rows * width * 2.0;
        self.forward_bytes += (fan + 1.0) * pass;
        self.backward_bytes += (2.0 * fan + 1.0) * pass;
        self.activations.saved +=
            rows * width * (split.activation_input_bytes * fan + split.saved_input_bytes);
    }

    fn moe(&mut self, m: &Moe, hidden: f64, split: &Split) {
        let tokens = split.tokens();
        let local = tokens / split.tp;
        let experts = m.experts as f64;
        let router = Gemm {
            quantized: false,
            ..Gemm::linear(local, experts, hidden)
        };
        self.gemms.push(router);
        let width = m.expert_hidden as f64;
        if m.latent_params > 0 {
            self.gemms.push(Gemm::linear(local, width, hidden));
            self.gemms.push(Gemm::linear(local, hidden, width));
        }
        let top_k = m.top_k as f64;
        let rows = local * top_k * split.etp * split.imbalance;
        let local_experts = experts / split.ep;
        let inner = m.intermediate as f64 / split.etp;
        let fan = if m.gated { 2.0 } else { 1.0 };
        let grouped = |n: f64, k: f64| Gemm {
            groups: local_experts,
            ..Gemm::linear(rows / local_experts, n, k)
        };
        self.expert_gemms.push(grouped(fan * inner, width));
        self.expert_gemms.push(grouped(width, inner));
        let pass = rows * inner * 2.0;
        self.forward_bytes += (fan + 1.0) * pass;
        self.backward_bytes += (2.0 * fan + 1.0) * pass;
        self.permute_bytes += 6.0 * rows * width * 2.0;
        self.activations.saved +=
            rows * inner * (split.activation_input_bytes * fan + split.saved_input_bytes)
                + rows * width * (split.saved_input_bytes + 2.0)
                + local * experts * 4.0;
        self.etp_message_bytes += if split.etp > 1.0 {
            2.0 * rows * width * 2.0
        } else {
            0.0
        };
        self.dispatch_tokens = local;
        self.dispatch_width = width;
        self.dispatch_top_k = top_k;
        self.dispatch_experts = experts;
        self.forward_kernels += 64.0;
        self.backward_kernels += 94.0;
        if m.shared_intermediate > 0 {
            self.mlp(
                tokens,
                m.shared_intermediate as f64 / split.tp,
                m.gated,
                hidden,
                split,
            );
            self.tp_messages += 1.0;
            self.forward_kernels += 10.0;
            self.backward_kernels += 16.0;
        }
    }

    /// FLOPs that a rank runs forward: GEMMs and cores.
    #[must_use]
    pub fn flops(&self) -> f64 {
        self.gemms
            .iter()
            .chain(&self.expert_gemms)
            .map(Gemm::flops)
            .sum::<f64>()
            + self.core_flops
    }
}

/// Mean number of keys that a query of a causal sequence of `s` tokens sees.
///
/// Full: s/2 (the diagonal counted in the tile term of the core). Window W: W − W²/(2s) for
/// W ≤ s. Chunk C: C/2. Top-k: as a window of k.
///
/// ```
/// use planner_core::model::{Span, work::mean_keys};
/// assert_eq!(mean_keys(Span::Full, 8192.0), 4096.0);
/// assert_eq!(mean_keys(Span::Window(1024), 8192.0), 960.0);
/// assert_eq!(mean_keys(Span::Window(16384), 8192.0), 4096.0);
/// assert_eq!(mean_keys(Span::Chunk(2048), 8192.0), 1024.0);
/// ```
#[must_use]
pub fn mean_keys(span: Span, s: f64) -> f64 {
    match span {
        Span::Full => s / 2.0,
        Span::Window(w) | Span::TopK(w) => {
            let w = (w as f64).min(s);
            w - w * w / (2.0 * s)
        }
        Span::Chunk(c) => (c as f64).min(s) / 2.0,
    }
}
