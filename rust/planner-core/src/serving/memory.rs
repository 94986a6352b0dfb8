//! Where the memory of a GPU goes, and how many tokens an engine can keep.
//!
//! ```text
//! vLLM          available = total·share − weights − activations − graphs − context
//! SGLang        available = total·share − weights − context        activations are outside the share
//! TensorRT-LLM  available = (total − weights − activations − context)·share
//! tokens        L · available / bytes of a sequence of L tokens, per attention replica
//! ```
//!
//! Windows keep their last tokens only and states do not grow, so bytes of a sequence depend on its
//! length L; caches are those of [`crate::kv::layer`], the constants those of
//! [`crate::kv::size::memory`].

use serde::Serialize;

use super::costs::{Role, Setting};
use super::deployment::{Backend, Engine, Precision};
use super::hardware::Operators;
use super::operators::{Cut, Layer};
use crate::kv::format::KvFormat;
use crate::kv::layer::{self, Class};
use crate::kv::size::memory::{
    COLLECTIVE_BYTES, CONTEXT_BYTES, FORWARD_RATIO, GRAPH_BYTES_PER_LAYER, SAMPLER_BYTES, width,
};
use crate::kv::size::stages::even_first;
use crate::model::Model;
use crate::units::Dtype;

/// Memory of the GPU that has least left, bytes; the last six add up to the usable part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    /// What the driver shows.
    pub total_bytes: f64,
    /// What weights, cache and buffers may take of it.
    pub usable_bytes: f64,
    /// Weights, redundant experts and draft heads included.
    pub weights_bytes: f64,
    /// Peak of a full pass, or of sampling the most sequences.
    pub activation_bytes: f64,
    /// CUDA graphs.
    pub graph_bytes: f64,
    /// Context, and buffers of collectives.
    pub context_bytes: f64,
    /// For keys and values; negative where the rest does not fit.
    pub available_bytes: f64,
    /// Bytes of a sequence of the asked length.
    pub sequence_bytes: f64,
    /// Tokens that the engine keeps, all attention replicas together.
    pub kv_tokens: f64,
}

/// Operators do not matter for memory.
const NO_OPERATORS: Operators = Operators {
    attention: 0.0,
    latent: 0.0,
    linear: 0.0,
    indexer: 0.0,
    dense: 0.0,
    moe: 0.0,
    choice: 0.0,
    shared: 0.0,
    weight_only: 0.0,
    cast_fp8_block: 0.0,
    cast_fp4: 0.0,
};

/// Format of the cache for a format of numbers.
#[must_use]
pub const fn kv_format(dtype: Dtype) -> KvFormat {
    match dtype {
        Dtype::Fp32 | Dtype::Tf32 => KvFormat::Fp32,
        Dtype::Fp16 | Dtype::Bf16 => KvFormat::Bf16,
        Dtype::Fp8 | Dtype::Fp8Block => KvFormat::Fp8,
        Dtype::Int8 => KvFormat::Int8,
        Dtype::Nvfp4 | Dtype::Mxfp4 | Dtype::Int4 => KvFormat::Nvfp4,
    }
}

/// Stored bytes of a layer on one GPU.
fn stored(layer: &Layer) -> f64 {
    let matrices = [
        layer.projections,
        layer.unquantised,
        layer.dense,
        layer.shared,
    ];
    let experts = layer.experts.map_or(0.0, |e| e.local * e.slice().bytes());
    matrices
        .iter()
        .map(super::operators::Matrices::bytes)
        .sum::<f64>()
        + experts
}

/// Bytes that a sequence of `tokens` keeps on a GPU in the layers `range` of the model.
fn sequence_bytes(model: &Model, cut: &layer::Cut, dcp: f64, range: &[usize], tokens: f64) -> f64 {
    let mut per_kind = vec![None; model.kinds.len()];
    let mut bytes = 0.0;
    for &kind in range {
        bytes += *per_kind[kind].get_or_insert_with(|| {
            layer::caches(&model.kinds[kind], cut)
                .iter()
                .map(|c| match c.class {
                    Class::State => c.entry_bytes as f64,
                    Class::Full | Class::Latent => c.bytes_per_token() * tokens / dcp,
                    Class::Window(w) | Class::Chunk(w) => {
                        c.bytes_per_token() * tokens.min(w as f64) / dcp
                    }
                })
                .sum::<f64>()
        });
    }
    bytes
}

/// Memory of an engine whose sequences are `tokens` long, for the pipeline stage with least left.
#[must_use]
pub fn terms(
    setting: &Setting,
    precision: &Precision,
    engine: &Engine,
    role: Role,
    tokens: f64,
) -> Terms {
    let model = setting.model;
    let cut = Cut {
        hidden: model.hidden as f64,
        engine,
        precision,
        operators: &NO_OPERATORS,
        peaks: &setting.cluster.device.peak_flops,
    };
    let kinds: Vec<Layer> = model.kinds.iter().map(|k| cut.layer(k)).collect();
    let counts = even_first(model.layers.len() as u64, u64::from(engine.pp));
    let mut start = 0;
    let mut least: Option<Terms> = None;
    for (stage, count) in counts.iter().enumerate() {
        let layers = &model.layers[start..start + *count as usize];
        start += *count as usize;
        let ends = (stage == 0, stage + 1 == counts.len());
        let found = one_stage(
            setting,
            precision,
            engine,
            (layers, &kinds),
            ends,
            (role, tokens),
        );
        if least.is_none_or(|l| found.kv_tokens < l.kv_tokens) {
            least = Some(found);
        }
    }
    least.expect("an engine has a stage")
}

fn one_stage(
    setting: &Setting,
    precision: &Precision,
    engine: &Engine,
    (layers, kinds): (&[usize], &[Layer]),
    (first, last): (bool, bool),
    (role, tokens): (Role, f64),
) -> Terms {
    let model = setting.model;
    let attention_tp = f64::from(engine.attention_tp());
    let table = model.hidden as f64 * model.vocab as f64 * 2.0 / attention_tp;
    let tables = if first && last && model.tied_embeddings {
        table
    } else {
        table * (f64::from(u8::from(first)) + f64::from(u8::from(last)))
    };
    let draft = if last && engine.spec_tokens > 0 {
        model.mtp.first().map_or(0.0, |m| {
            stored(&kinds[m.kind]) + 2.0 * m.projection_params as f64
        })
    } else {
        0.0
    };
    let weights_bytes = layers.iter().map(|k| stored(&kinds[*k])).sum::<f64>() + tables + draft;
    let activation_bytes = activations(setting, engine, layers, last, role);
    let graph_bytes = match (setting.backend, role) {
        (Backend::Vllm, Role::Both | Role::Decode) => GRAPH_BYTES_PER_LAYER * layers.len() as f64,
        _ => 0.0,
    };
    let collective = if engine.gpus() > 1 {
        COLLECTIVE_BYTES
    } else {
        0.0
    };
    let context_bytes = CONTEXT_BYTES + collective;
    let total_bytes = setting.cluster.device.memory_bytes;
    let (fixed, share) = (weights_bytes + context_bytes, engine.memory_share);
    let usable_bytes = total_bytes * share;
    let available_bytes = match setting.backend {
        Backend::Vllm => usable_bytes - fixed - activation_bytes - graph_bytes,
        Backend::Sglang => usable_bytes - fixed,
        Backend::Trtllm => (total_bytes - fixed - activation_bytes) * share,
    };
    let format = layer::Cut {
        tp: u64::from(engine.attention_tp()),
        format: kv_format(precision.kv),
        activation_bytes: 2,
        draft_tokens: u64::from(engine.spec_tokens),
        windows: true,
    };
    let sequence_bytes = sequence_bytes(model, &format, f64::from(engine.dcp), layers, tokens);
    let fits = if sequence_bytes > 0.0 {
        (available_bytes / sequence_bytes).max(0.0)
    } else {
        f64::INFINITY
    };
    Terms {
        total_bytes,
        usable_bytes,
        weights_bytes,
        activation_bytes,
        graph_bytes,
        context_bytes,
        available_bytes,
        sequence_bytes,
        kv_tokens: (fits * tokens * f64::from(engine.attention_dp)).min(1e15),
    }
}

/// Peak of the profile run: a full pass, or the sampler over every slot.
fn activations(
    setting: &Setting,
    engine: &Engine,
    layers: &[usize],
    last: bool,
    role: Role,
) -> f64 {
    let model = setting.model;
    let cut = (
        f64::from(engine.attention_tp()),
        f64::from(engine.moe_tp.max(1)),
    );
    let widest = layers
        .iter()
        .map(|k| width(model.hidden, cut, &model.kinds[*k]))
        .fold(0.0, f64::max);
    let tokens = match role {
        Role::Decode => engine.max_batch * (1 + engine.spec_tokens),
        Role::Both | Role::Prefill => engine.max_batched_tokens,
    };
    let replicas = match role {
        Role::Decode => engine.attention_dp,
        Role::Both | Role::Prefill => engine.attention_dp * engine.pcp,
    };
    let own = f64::from(tokens) / f64::from(replicas);
    let slots = f64::from(engine.max_batch) / f64::from(engine.attention_dp);
    let sampler = if last {
        slots * model.vocab as f64 * SAMPLER_BYTES
    } else {
        0.0
    };
    (FORWARD_RATIO * own * widest).max(sampler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::fixture::{FP8, HARDWARE, SOFTWARE, cluster, dense, engine, latent_moe};
    use crate::serving::routing::Routing;

    fn room(model: &Model, backend: Backend, engine: &Engine, tokens: f64) -> Terms {
        let cluster = cluster();
        let setting = Setting {
            model,
            cluster: &cluster,
            hardware: &HARDWARE,
            software: &SOFTWARE,
            backend,
            routing: Routing::UNIFORM,
            measured: None,
        };
        terms(&setting, &FP8, engine, Role::Both, tokens)
    }

    #[test]
    fn terms_of_vllm_add_up() {
        let t = room(&dense(), Backend::Vllm, &engine(1), 1000.0);
        let parts = t.weights_bytes
            + t.activation_bytes
            + t.graph_bytes
            + t.context_bytes
            + t.available_bytes;
        assert!((parts / t.usable_bytes - 1.0).abs() < 1e-12);
        assert!((t.usable_bytes - 126e9).abs() < 1.0);
        // 64 KiB a token in fp8.
        assert_eq!(t.sequence_bytes, 1000.0 * 65_536.0);
        assert!((t.kv_tokens - t.available_bytes / 65_536.0).abs() < 1e-3);
    }

    #[test]
    fn latents_are_repeated_on_ranks_and_shared_out_over_replicas() {
        let model = latent_moe();
        let replicas = Engine {
            attention_dp: 8,
            ep: 8,
            moe_tp: 1,
            ..engine(8)
        };
        let (tensor, data) = (
            room(&model, Backend::Sglang, &engine(8), 1000.0),
            room(&model, Backend::Sglang, &replicas, 1000.0),
        );
        assert_eq!(tensor.sequence_bytes, data.sequence_bytes);
        // Eight pools instead of eight copies of one, less the repeated attention weights.
        assert!(data.kv_tokens > 5.0 * tensor.kv_tokens && data.kv_tokens < 8.0 * tensor.kv_tokens);
    }

    #[test]
    fn stages_hold_their_share() {
        let deep = Engine { pp: 4, ..engine(1) };
        let (one, four) = (
            room(&dense(), Backend::Trtllm, &engine(1), 1000.0),
            room(&dense(), Backend::Trtllm, &deep, 1000.0),
        );
        assert!(four.weights_bytes < 0.5 * one.weights_bytes);
        assert!(four.kv_tokens > 3.9 * one.kv_tokens);
    }

    #[test]
    fn what_does_not_fit_keeps_nothing() {
        let small = Engine {
            memory_share: 0.01,
            ..engine(1)
        };
        let t = room(&dense(), Backend::Vllm, &small, 1000.0);
        assert!(t.available_bytes < 0.0);
        assert_eq!(t.kv_tokens, 0.0);
    }
}
