//! Memory left for the cache when no engine has reported it: a model with few, stated numbers.
//!
//! `available = total·share − weights − activation peak − CUDA graphs − context`, where the share is
//! vLLM's `gpu_memory_utilization` or SGLang's `mem_fraction_static`; TensorRT-LLM takes its share of
//! what is left. Terms:
//!
//! * **weights**: parameters of the stage, cut by tensor and expert parallelism, in their format, with
//!   the replicas of redundant experts: (E + R)/ep experts a layer and GPU;
//! * **activation peak** of vLLM's profile run: the larger of the forward pass of a full batch and of
//!   sampling the most sequences;
//! * **graphs**: [`GRAPH_BYTES_PER_LAYER`] a captured layer;
//! * **context**: [`CONTEXT_BYTES`], and [`COLLECTIVE_BYTES`] more with several ranks.
//!
//! What is counted follows the version of vLLM. Before 0.7 the context was part of what the profile run
//! found in use; later only what grows during it is. CUDA graphs are part of it from 0.20 on. In
//! 0.6 and 0.7 a profile run of chunks (requests beyond 32,768 tokens) samples nothing.
//!
//! Constants come from start-up logs that state their terms: an RTX 3090 with Llama-3.1-8B leaves
//! 3.81 GiB at batches of 20,000 tokens and 2.89 GiB at 29,000 (vllm#10517), which is 110 kB a token
//! against 102 kB by the formula and leaves 0.48 GiB at none; logs of 0.7 and 0.8 state 0.05 to
//! 0.12 GiB beside PyTorch on one GPU and 0.20 to 0.25 GiB on several. How well it predicts is a test,
//! `tests/kv/test_memory.py`.

use serde::{Deserialize, Serialize};

use super::{Engine, Query};
use crate::kv::layer::heads_per_rank;
use crate::model::{FeedForward, LayerKind, Mixer, params};
use crate::units::Dtype;

/// CUDA context, kernels and allocator slack of one process, bytes: where the engine counts them.
pub const CONTEXT_BYTES: f64 = 0.48 * GIB;
/// What grows beside PyTorch while vLLM 0.7 and later profile, bytes.
pub const GROWTH_BYTES: f64 = 0.06 * GIB;
/// Buffers of collectives where a layout has several ranks, bytes.
pub const COLLECTIVE_BYTES: f64 = 0.19 * GIB;
/// Graph memory of one layer over all captured sizes, bytes.
pub const GRAPH_BYTES_PER_LAYER: f64 = 9.0e6;
/// Activation peak over what the formula counts.
pub const FORWARD_RATIO: f64 = 1.07;
/// Bytes of one logit while sampling with top-k and top-p, as the profile run does: the logit in 16 and
/// in 32 bits (2 + 4), sorted values and their indices (4 + 8), their probabilities, running sums and
/// mask (4 + 4 + 1), logits put back in place, probabilities and log-probabilities (4 + 4 + 4). Logs of
/// five models of vocabularies of 128,256 and 151,936 state 38.5 to 41.2.
pub const SAMPLER_BYTES: f64 = 39.0;
/// First vLLM that counts only what grows during the profile run.
const GROWTH_ONLY: (u32, u32) = (0, 7);
/// First vLLM whose default engine samples in every profile run.
const ALWAYS_SAMPLES: (u32, u32) = (0, 8);
/// First vLLM that cuts prompts into chunks where requests may be long.
const LONG_CHUNKS: (u32, u32) = (0, 6);
/// First vLLM that counts CUDA graphs.
const COUNTS_GRAPHS: (u32, u32) = (0, 20);
/// Longest request up to which vLLM 0.6 and 0.7 profile whole prompts.
const WHOLE_PROMPTS: u64 = 32_768;
const GIB: f64 = 1_073_741_824.0;

/// A device and what is known of a deployment on it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Memory that the driver shows, bytes.
    pub total_bytes: f64,
    /// Share of it that the engine may use.
    pub share: f64,
    /// Format of the linear weights; none: that of the checkpoint.
    pub weight_dtype: Option<Dtype>,
    /// Weights of one GPU, bytes, where they are known.
    pub weights_bytes: Option<f64>,
    /// Graphs are captured.
    pub graphs: bool,
}

/// Where the memory of one GPU goes: weights, activations, graphs, context and what is available add up
/// to `usable_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    /// Memory that the driver shows.
    pub total_bytes: f64,
    /// What the engine may use of it.
    pub usable_bytes: f64,
    /// Weights, replicas included.
    pub weights_bytes: f64,
    /// Activation peak.
    pub activation_bytes: f64,
    /// CUDA graphs.
    pub graph_bytes: f64,
    /// Context and collectives.
    pub context_bytes: f64,
    /// For the cache; negative where the rest does not fit.
    pub available_bytes: f64,
    /// Of the weights, what redundant experts add; 0 where the weights are stated.
    pub replica_bytes: f64,
}

/// Memory of one GPU of a stage.
#[must_use]
pub fn stage(query: &Query, device: &Device, layers: &[usize], first: bool, last: bool) -> Terms {
    let share = if query.engine == Engine::Trtllm {
        1.0
    } else {
        device.share
    };
    let usable_bytes = device.total_bytes * share;
    let dtype = device.weight_dtype.unwrap_or(query.model.weight_dtype);
    let (weights_bytes, replica_bytes) = match device.weights_bytes {
        Some(bytes) => (bytes, 0.0),
        None => {
            let replicas = replicas(query, dtype, layers);
            (
                weights(query, dtype, layers, first, last) + replicas,
                replicas,
            )
        }
    };
    // SGLang keeps activations out of its static share.
    let activation_bytes = match query.engine {
        Engine::Vllm | Engine::Trtllm => activations(query, layers, last),
        Engine::Sglang | Engine::Llamacpp => 0.0,
    };
    let vllm = query.engine == Engine::Vllm;
    let version = query.vllm_version();
    let graphs = device.graphs && vllm && version >= COUNTS_GRAPHS;
    let graph_bytes = if graphs {
        GRAPH_BYTES_PER_LAYER * layers.len() as f64
    } else {
        0.0
    };
    let ranks = query.tp * query.pp * query.ep.max(1);
    let own = if vllm && version >= GROWTH_ONLY {
        GROWTH_BYTES
    } else {
        CONTEXT_BYTES
    };
    let context_bytes = own + if ranks > 1 { COLLECTIVE_BYTES } else { 0.0 };
    Terms {
        total_bytes: device.total_bytes,
        usable_bytes,
        weights_bytes,
        activation_bytes,
        graph_bytes,
        context_bytes,
        available_bytes: usable_bytes
            - weights_bytes
            - activation_bytes
            - graph_bytes
            - context_bytes,
        replica_bytes,
    }
}

/// Bytes of a stored weight, scales included: a scale of 4 bytes per 128×128 block, of 1 byte per
/// 16 or 32 elements, or of 2 bytes per 128.
///
/// ```
/// use planner_core::{kv::size::memory::weight_bytes, units::Dtype};
/// assert_eq!(weight_bytes(Dtype::Bf16), 2.0);
/// assert_eq!(weight_bytes(Dtype::Nvfp4), 0.5625);
/// ```
#[must_use]
pub fn weight_bytes(dtype: Dtype) -> f64 {
    dtype.bytes()
        + match dtype {
            Dtype::Fp8Block => 4.0 / (128.0 * 128.0),
            Dtype::Nvfp4 => 1.0 / 16.0,
            Dtype::Mxfp4 => 1.0 / 32.0,
            Dtype::Int4 => 2.0 / 128.0,
            _ => 0.0,
        }
}

/// Weights of one GPU of a stage, bytes. Tables, norms and routers stay in 16 bits; in MXFP4
/// checkpoints so does all but the experts.
fn weights(query: &Query, dtype: Dtype, layers: &[usize], first: bool, last: bool) -> f64 {
    let model = &query.model;
    let counts = params::count(model);
    let tp = query.tp as f64;
    let expert_ranks = if query.ep > 1 { query.ep as f64 } else { tp };
    let linear = if dtype == Dtype::Mxfp4 {
        2.0
    } else {
        weight_bytes(dtype)
    };
    let kinds = query.layer_kinds();
    let layer = |index: &usize| {
        let (kind, p) = (&model.kinds[kinds[*index]], &counts.kinds[kinds[*index]]);
        let cut = p.tensor as f64 / tp + p.key_value as f64 / kv_ranks(kind, query.tp);
        let experts = p.expert as f64 / expert_ranks * weight_bytes(dtype);
        cut * linear + experts + (p.replicated + p.router) as f64 * 2.0
    };
    let table = |wanted: bool, n: u64| if wanted { n as f64 * 2.0 / tp } else { 0.0 };
    let head = if counts.head > 0 || first {
        counts.head
    } else {
        counts.embedding
    };
    let norms = if last {
        counts.final_norm as f64 * 2.0
    } else {
        0.0
    };
    layers.iter().map(layer).sum::<f64>()
        + table(
            first,
            counts.embedding + counts.positions + counts.embedding_extra + counts.towers,
        )
        + table(last, head + counts.head_extra)
        + norms
}

/// Redundant experts of one GPU of a stage, bytes: R/ep of each MoE layer.
fn replicas(query: &Query, dtype: Dtype, layers: &[usize]) -> f64 {
    let kinds = query.layer_kinds();
    let share = query.redundant_experts as f64 / query.ep as f64;
    let of_layer = |index: &usize| {
        let kind = &query.model.kinds[kinds[*index]];
        share * crate::moe::memory::expert_bytes(kind, query.model.hidden, dtype)
    };
    layers.iter().map(of_layer).sum()
}

/// Ranks over which key and value projections are cut.
fn kv_ranks(kind: &LayerKind, tp: u64) -> f64 {
    match &kind.mixer {
        Some(Mixer::Attention(a)) => {
            (a.kv_heads / heads_per_rank(a.kv_heads, tp).max(1)).max(1) as f64
        }
        _ => tp as f64,
    }
}

/// Peak of the profile run: `max(T · widest layer, min(S, T)·V · bytes of a logit)`; the logits of one
/// rank are those of the whole vocabulary, gathered.
fn activations(query: &Query, layers: &[usize], last: bool) -> f64 {
    let kinds = query.layer_kinds();
    let tokens = query.max_batched_tokens as f64;
    let widest = layers
        .iter()
        .map(|i| {
            let cut = (
                query.tp as f64,
                if query.ep > 1 { 1.0 } else { query.tp as f64 },
            );
            width(query.model.hidden, cut, &query.model.kinds[kinds[*i]])
        })
        .fold(0.0, f64::max);
    let forward = FORWARD_RATIO * tokens * widest;
    let chunks_only = query.engine == Engine::Vllm
        && (LONG_CHUNKS..ALWAYS_SAMPLES).contains(&query.vllm_version())
        && query.max_len > WHOLE_PROMPTS;
    let sampler = if last && !chunks_only {
        let sampled = query.max_seqs.min(query.max_batched_tokens);
        sampled as f64 * query.model.vocab as f64 * SAMPLER_BYTES
    } else {
        0.0
    };
    forward.max(sampler)
}

/// Bytes that a token holds at once in a layer: two hidden vectors, and the wider of the mixer's and
/// of the feed-forward's intermediates, in 16 bits. `cut`: ranks over which layers are cut, and over
/// which an expert is.
#[must_use]
pub fn width(hidden: u64, (tp, expert_tp): (f64, f64), kind: &LayerKind) -> f64 {
    let h = hidden as f64;
    let mixer = match &kind.mixer {
        Some(Mixer::Attention(a)) => {
            (2 * a.heads * a.head_dim + 2 * a.kv_heads * a.head_dim) as f64 / tp
        }
        Some(Mixer::Mla(m)) => (m.heads * (3 * m.qk_nope_head_dim + m.v_head_dim)) as f64 / tp,
        Some(Mixer::Linear(l)) => {
            (2 * l.k_heads * l.k_head_dim + 3 * l.v_heads * l.v_head_dim) as f64 / tp
        }
        Some(Mixer::Mamba2(m)) => 3.0 * (m.heads * m.head_dim) as f64 / tp,
        None => 0.0,
    };
    let ffn = match &kind.feed_forward {
        Some(FeedForward::Dense(d)) => 3.0 * d.intermediate as f64 / tp,
        Some(FeedForward::Moe(m)) => {
            let f = m.intermediate as f64 / expert_tp;
            let spread = m.top_k as f64 * ((2.0 * f).max(m.expert_hidden as f64) + f);
            spread + 3.0 * m.shared_intermediate as f64 / tp
        }
        None => 0.0,
    };
    2.0 * (2.0 * h + mixer.max(ffn))
}
