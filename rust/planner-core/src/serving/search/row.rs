//! The row: every column of the table of deployments, declared once.

use serde::{Deserialize, Serialize};

use crate::layout::named_enum;
use crate::table::{name_cells, rows};
use crate::units::Dtype;

use super::kept::Point;
use super::request::Job;
use super::verify::Verified;
use crate::serving::deployment::{Backend, Engine};
use crate::serving::estimate::Estimate;
use crate::serving::space::{Mode, Status};

named_enum! {
    /// Names of backends in a column.
    Software {
        /// vLLM.
        Vllm = "vllm",
        /// SGLang.
        Sglang = "sglang",
        /// TensorRT-LLM.
        Trtllm = "trtllm",
    }
}

named_enum! {
    /// Names of formats in a column.
    Format {
        /// Single precision.
        Fp32 = "fp32",
        /// Half precision.
        Fp16 = "fp16",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit float, a scale per tensor.
        Fp8 = "fp8",
        /// 8-bit float, a scale per block.
        Fp8Block = "fp8_block",
        /// 4-bit float, scales per 16.
        Nvfp4 = "nvfp4",
        /// 4-bit float, scales per 32.
        Mxfp4 = "mxfp4",
        /// 8-bit integer.
        Int8 = "int8",
        /// 4-bit integer.
        Int4 = "int4",
    }
}

name_cells!(Software, Format, Mode, Status);

/// The first name: what an empty row holds.
macro_rules! first_name {
    ($($t:ty),+) => {$(
        impl Default for $t {
            fn default() -> Self {
                Self::ALL[0]
            }
        }
    )+};
}
first_name!(Software, Format, Mode, Status);

impl From<Backend> for Software {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Vllm => Self::Vllm,
            Backend::Sglang => Self::Sglang,
            Backend::Trtllm => Self::Trtllm,
        }
    }
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Fp32 | Dtype::Tf32 => Self::Fp32,
            Dtype::Fp16 => Self::Fp16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::Fp8 => Self::Fp8,
            Dtype::Fp8Block => Self::Fp8Block,
            Dtype::Nvfp4 => Self::Nvfp4,
            Dtype::Mxfp4 => Self::Mxfp4,
            Dtype::Int8 => Self::Int8,
            Dtype::Int4 => Self::Int4,
        }
    }
}

rows! {
    /// One deployment, replayed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
    gpus: u32, "1", "GPUs of all engines";
    backend: Software, "", "Serving engine software";
    mode: Mode, "", "agg: engines prefill and decode; disagg: engines of their own for each";
    status: Status, "", "ok, or the first limit that is missed";
    weight_dtype: Format, "", "Format of the experts, or of all weights of a dense model";
    attention_dtype: Format, "", "Format of the attention projections";
    kv_dtype: Format, "", "Format of keys and values";
    workers: u32, "1", "Engines that decode, alone or besides prefill";
    tp: u32, "1", "GPUs of a pipeline stage of an engine, attention replicas included";
    pp: u32, "1", "Pipeline stages";
    attention_dp: u32, "1", "Attention replicas inside a stage";
    pcp: u32, "1", "Prefill context parallelism, inside tp";
    ep: u32, "1", "Expert-parallel ranks";
    moe_tp: u32, "1", "Tensor-parallel degree inside an expert";
    dcp: u32, "1", "Decode context parallelism";
    spec_tokens: u32, "1", "Draft tokens of a step";
    redundant_experts: u32, "1", "Copies of experts beyond one each";
    max_batch: u32, "1", "Request slots of an engine";
    max_batched_tokens: u32, "tokens", "Token budget of a step of an engine";
    block_tokens: u32, "tokens", "Tokens in a KV block";
    recv_interval: u32, "1", "Decode steps between two looks at the queue (SGLang)";
    memory_share_ratio: f64, "1", "Share of memory for weights and cache, as the engine's own flag counts it";
    prefill_workers: u32, "1", "Engines that only prefill (0: aggregated)";
    prefill_tp: u32, "1", "The same of an engine that only prefills";
    prefill_pp: u32, "1", "Its pipeline stages";
    prefill_attention_dp: u32, "1", "Its attention replicas";
    prefill_pcp: u32, "1", "Its prefill context parallelism";
    prefill_ep: u32, "1", "Its expert-parallel ranks";
    prefill_moe_tp: u32, "1", "Its tensor-parallel degree inside an expert";
    prefill_redundant_experts: u32, "1", "Its copies of experts";
    prefill_max_batched_tokens: u32, "tokens", "Its token budget";
    concurrency: u32, "1", "Clients of the whole deployment (0: requests come on their own)";
    requests_per_s: f64, "1/s", "Requests a second";
    tokens_per_s: f64, "tokens/s", "Output tokens a second, whole deployment";
    tokens_per_s_per_gpu: f64, "tokens/s", "Output tokens per second and GPU used";
    tokens_per_s_per_user: f64, "tokens/s", "Output tokens per second that one user sees, 1/TPOT";
    cost_per_million_tokens: f64, "price", "Price of a million output tokens; NaN without a price";
    ttft_s: f64, "s", "Time to first token, first token less arrival, mean";
    ttft_p50_s: f64, "s", "Median of it";
    ttft_p90_s: f64, "s", "90 % of the requests are below";
    ttft_p99_s: f64, "s", "99 % of the requests are below";
    tpot_s: f64, "s", "Time per output token, (last token less first) / (output tokens - 1), mean";
    tpot_p50_s: f64, "s", "Median of it";
    tpot_p90_s: f64, "s", "90 % of the requests are below";
    tpot_p99_s: f64, "s", "99 % of the requests are below";
    queue_s: f64, "s", "From arrival to admission, mean";
    ttft_margin_ratio: f64, "1", "Limit on TTFT over the value that it is on, less 1; NaN without a limit";
    tpot_margin_ratio: f64, "1", "Limit on TPOT over the value that it is on, less 1; NaN without a limit";
    goodput_per_s: f64, "1/s", "Requests a second that keep both limits";
    saturated: bool, "", "More is asked than the deployment gives: latencies say how long the replay was";
    peak_running: u32, "1", "Most requests that decoded at once in an engine";
    mean_running: f64, "1", "Requests that run in an engine, mean";
    peak_kv_ratio: f64, "1", "Highest share of a KV pool that was held";
    preemptions: u32, "1", "Times that a request lost its blocks";
    step_s: f64, "s", "A decode step at the mean number of running requests: the sum of the next eleven";
    step_projections_s: f64, "s", "Projections of attention";
    step_core_s: f64, "s", "Keys, values and recurrent states";
    step_dense_s: f64, "s", "Dense MLPs";
    step_experts_s: f64, "s", "Routed experts of a rank with an even share";
    step_imbalance_s: f64, "s", "Routed experts of the fullest rank beyond that";
    step_shared_s: f64, "s", "Shared experts";
    step_head_s: f64, "s", "LM head";
    step_exchange_s: f64, "s", "Collectives and pipeline sends";
    step_operators_s: f64, "s", "Latency floor of the operators";
    step_host_s: f64, "s", "Host: step and sequences";
    step_draft_s: f64, "s", "Draft tokens";
    pass_s: f64, "s", "Prefill pass of one mean prompt: the sum of the next eleven";
    pass_projections_s: f64, "s", "Projections of attention";
    pass_core_s: f64, "s", "Attention and recurrent states";
    pass_dense_s: f64, "s", "Dense MLPs";
    pass_experts_s: f64, "s", "Routed experts of a rank with an even share";
    pass_imbalance_s: f64, "s", "Routed experts of the fullest rank beyond that";
    pass_shared_s: f64, "s", "Shared experts";
    pass_head_s: f64, "s", "LM head";
    pass_exchange_s: f64, "s", "Collectives";
    pass_elementwise_s: f64, "s", "Norms, activations, residuals";
    pass_launch_s: f64, "s", "Launches that the GPU waits for";
    pass_host_s: f64, "s", "Host";
    moe_imbalance_ratio: f64, "1", "Rows of the fullest expert-parallel rank over the mean in a decode step; 1 without expert parallelism";
    active_experts: f64, "1", "Experts of that rank which a decode step wakes, of a layer; 0 without experts";
    memory_total_bytes: f64, "bytes", "Memory of a GPU of an engine that decodes";
    memory_usable_bytes: f64, "bytes", "What the engine may use of it";
    weights_bytes: f64, "bytes", "Weights, copies of experts and draft heads";
    activation_bytes: f64, "bytes", "Peak of a full pass";
    graph_bytes: f64, "bytes", "CUDA graphs";
    context_bytes: f64, "bytes", "Context, and buffers of collectives";
    kv_bytes: f64, "bytes", "What is left for keys and values";
    kv_tokens: f64, "tokens", "Tokens that the cache of an engine holds";
    kv_sequence_bytes: f64, "bytes", "Bytes of a mean request on a GPU";
    prefill_kv_tokens: f64, "tokens", "Tokens that the cache of an engine that only prefills holds (NaN: none)";
    prefill_weights_bytes: f64, "bytes", "Weights of a GPU of such an engine (NaN: none)";
    prefill_busy_ratio: f64, "1", "Share of time that such engines compute (NaN: none)";
}

/// The row of a replayed deployment.
#[must_use]
pub fn row(job: &Job, found: &Verified) -> Row {
    let out = &found.estimate.outcome;
    let gpus = f64::from(found.point.gpus());
    let at = |q| job.goal.at.of(q);
    let margin = |limit: Option<f64>, q| limit.map_or(f64::NAN, |limit| limit / at(q) - 1.0);
    Row {
        status: found.status,
        requests_per_s: out.requests_per_s,
        tokens_per_s: out.output_tokens_per_s,
        tokens_per_s_per_gpu: out.output_tokens_per_s / gpus,
        tokens_per_s_per_user: 1.0 / out.tpot_s.mean,
        cost_per_million_tokens: job
            .goal
            .cost_per_million_tokens(gpus, out.output_tokens_per_s),
        ttft_s: out.ttft_s.mean,
        ttft_p50_s: out.ttft_s.p50,
        ttft_p90_s: out.ttft_s.p90,
        ttft_p99_s: out.ttft_s.p99,
        tpot_s: out.tpot_s.mean,
        tpot_p50_s: out.tpot_s.p50,
        tpot_p90_s: out.tpot_s.p90,
        tpot_p99_s: out.tpot_s.p99,
        queue_s: out.queue_s,
        ttft_margin_ratio: margin(job.goal.ttft_s, &out.ttft_s),
        tpot_margin_ratio: margin(job.goal.tpot_s, &out.tpot_s),
        goodput_per_s: out.goodput_per_s,
        saturated: out.saturated,
        peak_running: out.peak_running,
        mean_running: out.mean_running,
        peak_kv_ratio: out.peak_kv_ratio,
        preemptions: out.preemptions,
        ..deployment(job, &found.point, costs(&found.estimate))
    }
}

/// Which deployment a row is about.
fn deployment(job: &Job, point: &Point, costs: Row) -> Row {
    let kind = &job.kinds[point.kind];
    let decode = &point.decode.engine;
    let none = Engine {
        tp: 0,
        pp: 0,
        attention_dp: 0,
        pcp: 0,
        ep: 0,
        moe_tp: 0,
        redundant_experts: 0,
        max_batched_tokens: 0,
        ..*decode
    };
    let prefill = point.prefill.map_or(none, |pool| pool.engine);
    Row {
        gpus: point.gpus(),
        backend: kind.backend.into(),
        mode: if point.prefill.is_some() {
            Mode::Disagg
        } else {
            Mode::Agg
        },
        weight_dtype: kind.precision.experts.into(),
        attention_dtype: kind.precision.attention.into(),
        kv_dtype: kind.precision.kv.into(),
        workers: point.decode.workers,
        tp: decode.tp,
        pp: decode.pp,
        attention_dp: decode.attention_dp,
        pcp: decode.pcp,
        ep: decode.ep,
        moe_tp: decode.moe_tp,
        dcp: decode.dcp,
        spec_tokens: decode.spec_tokens,
        redundant_experts: decode.redundant_experts,
        max_batch: decode.max_batch,
        max_batched_tokens: decode.max_batched_tokens,
        block_tokens: decode.block_tokens,
        recv_interval: decode.recv_interval,
        memory_share_ratio: decode.memory_share,
        prefill_workers: point.prefill.map_or(0, |pool| pool.workers),
        prefill_tp: prefill.tp,
        prefill_pp: prefill.pp,
        prefill_attention_dp: prefill.attention_dp,
        prefill_pcp: prefill.pcp,
        prefill_ep: prefill.ep,
        prefill_moe_tp: prefill.moe_tp,
        prefill_redundant_experts: prefill.redundant_experts,
        prefill_max_batched_tokens: prefill.max_batched_tokens,
        concurrency: point.clients,
        ..costs
    }
}

/// Terms of steps and memory, which do not depend on a replay.
fn costs(estimate: &Estimate) -> Row {
    let (step, pass, memory) = (&estimate.decode, &estimate.prefill, &estimate.memory);
    let [own, first] = &estimate.imbalance;
    let prefill = |f: fn(&crate::serving::memory::Terms) -> f64| {
        estimate.prefill_memory.as_ref().map_or(f64::NAN, f)
    };
    Row {
        step_s: step.total_s(),
        step_projections_s: step.projections_s,
        step_core_s: step.core_s,
        step_dense_s: step.dense_s,
        step_experts_s: step.experts_s - own.beyond_s,
        step_imbalance_s: own.beyond_s,
        step_shared_s: step.shared_s,
        step_head_s: step.head_s,
        step_exchange_s: step.exchange_s,
        step_operators_s: step.operators_s,
        step_host_s: step.host_s,
        step_draft_s: step.draft_s,
        pass_s: pass.total_s(),
        pass_projections_s: pass.projections_s,
        pass_core_s: pass.core_s,
        pass_dense_s: pass.dense_s,
        pass_experts_s: pass.experts_s - first.beyond_s,
        pass_imbalance_s: first.beyond_s,
        pass_shared_s: pass.shared_s,
        pass_head_s: pass.head_s,
        pass_exchange_s: pass.exchange_s,
        pass_elementwise_s: pass.elementwise_s,
        pass_launch_s: pass.launch_s,
        pass_host_s: pass.host_s,
        moe_imbalance_ratio: own.rows_ratio,
        active_experts: own.active_experts,
        memory_total_bytes: memory.total_bytes,
        memory_usable_bytes: memory.usable_bytes,
        weights_bytes: memory.weights_bytes,
        activation_bytes: memory.activation_bytes,
        graph_bytes: memory.graph_bytes,
        context_bytes: memory.context_bytes,
        kv_bytes: memory.available_bytes,
        kv_tokens: memory.kv_tokens,
        kv_sequence_bytes: memory.sequence_bytes,
        prefill_kv_tokens: prefill(|m| m.kv_tokens),
        prefill_weights_bytes: prefill(|m| m.weights_bytes),
        prefill_busy_ratio: estimate.prefill_busy_ratio.unwrap_or(f64::NAN),
        ..Row::default()
    }
}
