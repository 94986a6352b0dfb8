//! Calculators of model states, weights and the KV cache.

use super::parallelism::TP;
use super::{Calculator, ELEMENT, Group, LAYERS, Parameter, RANKS, bytes, count, number, outcome};
use crate::layout::Sharding;
use crate::memory::{kv, zero};

pub(super) const WEIGHTS: Group = Group {
    title: "Weights, gradients and optimizer state",
    calculators: &[
        Calculator {
            name: "zero-memory",
            doc: "Parameters, gradients and optimizer state per rank, by ZeRO stage",
            equation: "(b_p + b_g + b_o)·Φ, each term over N if its stage shards it",
            source: "Rajbhandari et al. 2020 (ZeRO), section 3",
            code: "memory::zero::state_memory",
            parameters: &[
                number("params", "Φ", "parameters on the rank's model shard"),
                RANKS,
                Parameter {
                    most: 3.0,
                    ..count("stage", "", "ZeRO stage 0 to 3").or_zero()
                },
                number("param_bytes", "b_p", "bytes of a parameter").or(2.0),
                number("grad_bytes", "b_g", "bytes of a gradient").or(2.0),
                number("optimizer_bytes", "b_o", "bytes of optimizer state").or(12.0),
            ],
            results: &[
                outcome("param_bytes", "bytes", "parameters"),
                outcome("grad_bytes", "bytes", "gradients"),
                outcome("optimizer_bytes", "bytes", "optimizer state"),
                outcome("total_bytes", "bytes", "all three"),
            ],
            example: &[7.5e9, 64.0, 1.0, 2.0, 2.0, 12.0],
            formula: |x| {
                let stages = [
                    Sharding::None,
                    Sharding::Zero1,
                    Sharding::Zero2,
                    Sharding::Zero3,
                ];
                let per_param = zero::StateBytes {
                    param: x[3],
                    grad: x[4],
                    optimizer: x[5],
                };
                let m = zero::state_memory(stages[x[2] as usize], x[0], x[1] as u64, per_param);
                let parts = [
                    m.param_bytes,
                    m.grad_bytes,
                    m.optimizer_bytes,
                    m.total_bytes(),
                ];
                Ok(parts.to_vec())
            },
        },
        Calculator {
            name: "weights",
            doc: "Weights per rank, and the scales of group quantisation",
            equation: "Φ·b/shards; scales Φ/group · bytes of a scale/shards",
            source: "elementary; fp32 4, bf16 2, fp8 1, int4 0.5 bytes",
            code: "memory::zero::weight_bytes",
            parameters: &[
                number("params", "Φ", "parameters"),
                number("bytes_per_param", "b", "bytes of a parameter").or(2.0),
                count("shards", "", "ranks that share the weights").or(1.0),
                count("group", "", "weights that share a scale (0: no scales)")
                    .or_zero()
                    .or(0.0),
                number("scale_bytes", "", "bytes of a scale with its zero point").or(2.0),
            ],
            results: &[
                outcome("weight_bytes", "bytes", "packed weights per rank"),
                outcome("scale_bytes", "bytes", "scales per rank"),
                outcome("scale_ratio", "1", "scales over packed weights"),
            ],
            example: &[70e9, 0.5, 1.0, 128.0, 2.0],
            formula: |x| {
                let shards = x[2] as u64;
                let weights = zero::weight_bytes(x[0], x[1], shards);
                let scales = match x[3] as u64 {
                    0 => 0.0,
                    group => zero::group_scale_bytes(x[0], group, x[4]) / shards as f64,
                };
                let ratio = if weights > 0.0 { scales / weights } else { 0.0 };
                Ok(vec![weights, scales, ratio])
            },
        },
    ],
};

const TOKENS: Parameter = count("tokens", "T", "tokens").or_zero();
const BLOCK: Parameter = count("block", "B", "tokens of a block").or(16.0);

pub(super) const KV: Group = Group {
    title: "KV cache",
    calculators: &[
        Calculator {
            name: "kv-cache",
            doc: "KV cache of MHA, GQA or MQA per rank; heads replicate when t > n_kv",
            equation: "2·L·max(1, n_kv/t)·d·b per token, times alive tokens",
            source: "Shazeer 2019 (MQA); Ainslie et al. 2023 (GQA)",
            code: "memory::kv::per_token_bytes",
            parameters: &[
                LAYERS,
                count("kv_heads", "n_kv", "key/value heads"),
                count("head_dim", "d", "width of a head"),
                ELEMENT,
                TOKENS.or(1.0),
                TP.or(1.0),
            ],
            results: &[
                outcome("per_token_bytes", "bytes", "per token and rank"),
                outcome("total_bytes", "bytes", "per rank"),
            ],
            example: &[80.0, 8.0, 128.0, 2.0, 2048.0, 1.0],
            formula: |x| {
                let (layers, heads, d) = (x[0] as u64, x[1] as u64, x[2] as u64);
                let per_token = kv::per_token_bytes(layers, heads, d, x[3], x[5] as u64);
                Ok(vec![per_token, per_token * x[4]])
            },
        },
        Calculator {
            name: "kv-cache-mla",
            doc: "KV cache of multi-head latent attention, the same on every tensor-parallel rank",
            equation: "L·(r + d_r)·b per token, times alive tokens",
            source: "DeepSeek-AI 2024 (DeepSeek-V2)",
            code: "memory::kv::mla_per_token_bytes",
            parameters: &[
                LAYERS,
                count("kv_lora_rank", "r", "rank of the compressed vector").or(512.0),
                count("rope_head_dim", "d_r", "width of the rotary part").or(64.0),
                ELEMENT,
                TOKENS.or(1.0),
            ],
            results: &[
                outcome("per_token_bytes", "bytes", "per token and rank"),
                outcome("total_bytes", "bytes", "per rank"),
            ],
            example: &[61.0, 512.0, 64.0, 2.0, 4096.0],
            formula: |x| {
                let (layers, rank, rope) = (x[0] as u64, x[1] as u64, x[2] as u64);
                let per_token = kv::mla_per_token_bytes(layers, rank, rope, x[3]);
                Ok(vec![per_token, per_token * x[4]])
            },
        },
        Calculator {
            name: "kv-blocks",
            doc: "Blocks of a paged cache, and the slots of the last one that stay empty",
            equation: "⌈T/B⌉; waste ⌈T/B⌉·B − T, at worst B − 1",
            source: "Kwon et al. 2023 (PagedAttention)",
            code: "memory::kv::blocks",
            parameters: &[TOKENS, BLOCK],
            results: &[
                outcome("blocks", "count", "blocks"),
                outcome("wasted_slots", "count", "empty slots of the last block"),
            ],
            example: &[1009.0, 16.0],
            formula: |x| {
                let (tokens, block) = (x[0] as u64, x[1] as u64);
                let wasted = kv::wasted_slots(tokens, block);
                Ok(vec![kv::blocks(tokens, block) as f64, wasted as f64])
            },
        },
        Calculator {
            name: "prefill-chunks",
            doc: "Chunks of a chunked prefill",
            equation: "⌈prompt/chunk⌉",
            source: "Agrawal et al. 2024 (Sarathi-Serve)",
            code: "memory::kv::prefill_chunks",
            parameters: &[
                count("prompt", "", "tokens of the prompt").or_zero(),
                count("chunk", "", "tokens of a chunk"),
            ],
            results: &[outcome("chunks", "count", "chunks")],
            example: &[10_000.0, 2048.0],
            formula: |x| Ok(vec![kv::prefill_chunks(x[0] as u64, x[1] as u64) as f64]),
        },
        Calculator {
            name: "shared-prefix",
            doc: "Prefill tokens that requests with a common prefix save; whole blocks only",
            equation: "(N−1)·⌊P/B⌋·B; a full hit still recomputes the last block",
            source: "vLLM automatic prefix caching; Zheng et al. 2024 (RadixAttention)",
            code: "memory::kv::prefix_savings_tokens",
            parameters: &[
                Parameter {
                    most: 9e6,
                    ..count("requests", "N", "requests")
                },
                Parameter {
                    most: 9e8,
                    ..count("prefix", "P", "tokens of the common prefix").or_zero()
                },
                BLOCK.or(1.0),
            ],
            results: &[outcome("saved_tokens", "count", "prefill tokens saved")],
            example: &[100.0, 1000.0, 16.0],
            formula: |x| {
                let saved = kv::prefix_savings_tokens(x[0] as u64, x[1] as u64, x[2] as u64);
                Ok(vec![saved as f64])
            },
        },
        Calculator {
            name: "kv-transfer",
            doc: "Bytes from a prefill to a decode worker per request",
            equation: "KV per token × tokens not cached at the receiver",
            source: "Zhong et al. 2024 (DistServe); Qin et al. 2024 (Mooncake)",
            code: "memory::kv::transfer_bytes",
            parameters: &[
                bytes("per_token", "", "KV bytes per token of the whole model"),
                count("prompt", "", "tokens of the prompt").or_zero(),
                count("cached", "", "tokens cached at the receiver")
                    .or_zero()
                    .or(0.0),
            ],
            results: &[outcome("transfer_bytes", "bytes", "sent per request")],
            example: &[327_680.0, 4096.0, 1024.0],
            formula: |x| Ok(vec![kv::transfer_bytes(x[0], x[1] as u64, x[2] as u64)]),
        },
    ],
};
