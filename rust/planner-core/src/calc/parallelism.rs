//! Calculators of data, tensor, pipeline and expert parallelism.

use super::{
    Calculator, ELEMENT, Group, Outcome, Parameter, RANKS, count, number, outcome, seconds, switch,
};
use crate::collectives::data_parallel::{self as dp, DataParallelTraffic};
use crate::collectives::{expert_parallel as ep, tensor_parallel as tp};
use crate::error::Result;
use crate::layout::Schedule;
use crate::pipeline::bubble::{self, PassTimes};

const PARAMS: Parameter = number("params", "Φ", "parameters on the rank's model shard");
const PARAM_BYTES: Parameter = number("param_bytes", "b_p", "bytes of a parameter").or(2.0);
const GRAD_BYTES: Parameter = number("grad_bytes", "b_g", "bytes of a gradient").or(2.0);
const TRAFFIC: &[Outcome] = &[
    outcome(
        "gradient_bytes",
        "bytes",
        "gradients sent per rank and step",
    ),
    outcome(
        "parameter_bytes",
        "bytes",
        "parameters sent per rank and step",
    ),
    outcome("total_bytes", "bytes", "both"),
];
const ZERO: &str = "Rajbhandari et al. 2020 (ZeRO), section 7";

fn traffic(t: DataParallelTraffic) -> Result<Vec<f64>> {
    Ok(vec![t.gradient_bytes, t.parameter_bytes, t.total_bytes()])
}

pub(super) const DATA: Group = Group {
    title: "Data parallelism and ZeRO: bytes moved",
    calculators: &[
        Calculator {
            name: "ddp",
            doc: "Bytes that data parallelism without sharding moves per optimizer step",
            equation: "2(N−1)/N · b_g·Φ ≈ 4Φ",
            source: ZERO,
            code: "collectives::data_parallel::ddp",
            parameters: &[PARAMS, RANKS, GRAD_BYTES],
            results: TRAFFIC,
            example: &[70e9, 1024.0, 2.0],
            formula: |x| traffic(dp::ddp(x[0], x[1] as u64, x[2])),
        },
        Calculator {
            name: "zero-1-2",
            doc: "Bytes that ZeRO-1 or ZeRO-2 moves: the same as plain data parallelism",
            equation: "(N−1)/N · (b_g + b_p)·Φ ≈ 4Φ (6Φ with fp32 gradients)",
            source: ZERO,
            code: "collectives::data_parallel::zero_1_2",
            parameters: &[PARAMS, RANKS, PARAM_BYTES, GRAD_BYTES],
            results: TRAFFIC,
            example: &[70e9, 1024.0, 2.0, 2.0],
            formula: |x| traffic(dp::zero_1_2(x[0], x[1] as u64, x[2], x[3])),
        },
        Calculator {
            name: "zero-3",
            doc: "Bytes that ZeRO-3 or FSDP moves: 1.5 times plain data parallelism",
            equation: "m·(N−1)/N · (2·b_p + b_g)·Φ ≈ 6Φ·m",
            source: "Rajbhandari et al. 2020, section 7; Zhao et al. 2023 (FSDP)",
            code: "collectives::data_parallel::zero_3",
            parameters: &[
                PARAMS,
                RANKS,
                PARAM_BYTES,
                GRAD_BYTES,
                count("micro_batches", "m", "passes of a step that each reshard").or(1.0),
                switch(
                    "keep",
                    "keep parameters from forward to backward: one gather",
                ),
            ],
            results: TRAFFIC,
            example: &[70e9, 1024.0, 2.0, 2.0, 1.0, 0.0],
            formula: |x| {
                let keep = x[5] == 1.0;
                traffic(dp::zero_3(x[0], x[1] as u64, x[2], x[3], x[4] as u64, keep))
            },
        },
        Calculator {
            name: "hsdp",
            doc: "Bytes that HSDP moves between its shard groups, on top of ZeRO-3 inside them",
            equation: "2(g−1)/g · b_g·Φ/n",
            source: "Zhao et al. 2023 (FSDP), hybrid sharding",
            code: "collectives::data_parallel::hsdp_across",
            parameters: &[
                PARAMS,
                count("shard_group", "n", "ranks of a shard group"),
                count("groups", "g", "shard groups"),
                GRAD_BYTES,
            ],
            results: TRAFFIC,
            example: &[70e9, 8.0, 128.0, 2.0],
            formula: |x| traffic(dp::hsdp_across(x[0], x[1] as u64, x[2] as u64, x[3])),
        },
    ],
};

const SEQUENCES: Parameter = count("micro_batch", "B", "sequences of a micro-batch");
const LENGTH: Parameter = count("seq_len", "s", "tokens of a sequence");
const HIDDEN: Parameter = count("hidden", "H", "hidden size");
const TENSOR_PARALLEL: Parameter = count("tp", "t", "tensor-parallel degree");
const SEQUENCE_PARALLEL: Parameter = switch("sequence_parallel", "norms split over the ranks");

fn message(x: &[f64]) -> f64 {
    tp::message_bytes(x[0] as u64, x[1] as u64, x[2] as u64, x[3])
}

pub(super) const TENSOR: Group = Group {
    title: "Tensor and sequence parallelism",
    calculators: &[
        Calculator {
            name: "tp-message",
            doc: "Message of one tensor-parallel all-reduce",
            equation: "B·s·H·b",
            source: "Shoeybi et al. 2019 (Megatron-LM)",
            code: "collectives::tensor_parallel::message_bytes",
            parameters: &[SEQUENCES, LENGTH, HIDDEN, ELEMENT],
            results: &[outcome("message_bytes", "bytes", "the full activation")],
            example: &[1.0, 4096.0, 8192.0, 2.0],
            formula: |x| Ok(vec![message(x)]),
        },
        Calculator {
            name: "tp-layer",
            doc: "Collectives and bytes of one layer: 2 all-reduces forward, 2 backward",
            equation: "forward 2 · 2(t−1)/t · B·s·H·b; backward the same, twice when recomputed; \
                       with sequence parallelism 4 + 4 collectives of half the volume",
            source: "Shoeybi et al. 2019; Korthikanti et al. 2022, section 4",
            code: "collectives::tensor_parallel::layer_traffic",
            parameters: &[
                SEQUENCES,
                LENGTH,
                HIDDEN,
                ELEMENT,
                TENSOR_PARALLEL,
                SEQUENCE_PARALLEL,
                switch(
                    "full_recompute",
                    "the forward pass is repeated in the backward pass",
                ),
            ],
            results: &[
                outcome("forward_collectives", "count", "in the forward pass"),
                outcome("backward_collectives", "count", "in the backward pass"),
                outcome(
                    "forward_bytes",
                    "bytes",
                    "sent per rank in the forward pass",
                ),
                outcome(
                    "backward_bytes",
                    "bytes",
                    "sent per rank in the backward pass",
                ),
            ],
            example: &[1.0, 4096.0, 8192.0, 2.0, 8.0, 1.0, 0.0],
            formula: |x| {
                let t = tp::layer_traffic(x[4] as u64, message(x), x[5] == 1.0, x[6] == 1.0);
                Ok(vec![
                    t.forward_collectives as f64,
                    t.backward_collectives as f64,
                    t.forward_bytes,
                    t.backward_bytes,
                ])
            },
        },
    ],
};

const STAGES: Parameter = count("stages", "p", "pipeline stages");
const MICRO_BATCHES: Parameter = count("micro_batches", "m", "micro-batches of a step");
const CHUNKS: Parameter = count("chunks", "v", "virtual chunks a stage").or(1.0);
const STAGE: Parameter = count("stage", "i", "stage, from 0").or_zero().or(0.0);
const FORWARD: Parameter = seconds("forward", "F", "forward time of a micro-batch on a stage");
const BACKWARD: Parameter = seconds("backward", "B", "whole backward time");
const WEIGHT: Parameter = seconds("weight", "W", "weight-gradient part of the backward time");
const BUBBLE_S: Outcome = outcome("bubble_s", "s", "idle time of a stage in a step");

/// p, v as the core takes them; a count that does not fit is far beyond any pipeline.
fn small(x: f64) -> u32 {
    x.min(f64::from(u32::MAX)) as u32
}

fn bubble_of(schedule: Schedule, x: &[f64]) -> Result<Vec<f64>> {
    let (p, m, v) = (small(x[0]), x[1] as u64, small(x[2]));
    let ratio = bubble::bubble_ratio(schedule, p, v, m).unwrap_or_default();
    let fraction = bubble::bubble_fraction(schedule, p, v, m).unwrap_or_default();
    Ok(vec![ratio, fraction])
}

const NARAYANAN: &str = "Huang et al. 2019 (GPipe); Narayanan et al. 2021 (1F1B, interleaved)";

pub(super) const PIPELINE: Group = Group {
    title: "Pipeline parallelism",
    calculators: &[
        Calculator {
            name: "bubble",
            doc: "Bubble of GPipe and 1F1B; with chunks > 1 of interleaved 1F1B",
            equation: "bubble/ideal (p−1)/(v·m); fraction of the step (p−1)/(v·m+p−1)",
            source: NARAYANAN,
            code: "pipeline::bubble::bubble_fraction",
            parameters: &[STAGES, MICRO_BATCHES, CHUNKS],
            results: &[
                outcome("bubble_ratio", "1", "bubble over ideal time"),
                outcome("bubble_fraction", "1", "bubble over step time"),
            ],
            example: &[8.0, 8.0, 4.0],
            formula: |x| bubble_of(Schedule::Interleaved, x),
        },
        Calculator {
            name: "bubble-time",
            doc: "Bubble time of GPipe and 1F1B; with chunks > 1 of interleaved 1F1B",
            equation: "(p−1)(F+B)/v",
            source: NARAYANAN,
            code: "pipeline::bubble::bubble_time_s",
            parameters: &[STAGES, FORWARD, BACKWARD, CHUNKS],
            results: &[BUBBLE_S],
            example: &[8.0, 0.01, 0.02, 1.0],
            formula: |x| {
                let t = PassTimes {
                    forward_s: x[1],
                    backward_s: x[2],
                    ..PassTimes::default()
                };
                let schedule = Schedule::Interleaved;
                Ok(vec![bubble::bubble_time_s(
                    schedule,
                    small(x[0]),
                    small(x[3]),
                    t,
                )])
            },
        },
        Calculator {
            name: "bubble-zb-h1",
            doc: "Bubble time of the zero-bubble schedule ZB-H1",
            equation: "(p−1)(F+B−2W)",
            source: "Qi et al. 2024 (Zero Bubble Pipeline Parallelism)",
            code: "pipeline::bubble::bubble_time_s",
            parameters: &[STAGES, FORWARD, BACKWARD, WEIGHT],
            results: &[BUBBLE_S],
            example: &[8.0, 0.01, 0.02, 0.01],
            formula: |x| {
                let t = PassTimes {
                    forward_s: x[1],
                    backward_s: x[2],
                    weight_s: x[3],
                    ..PassTimes::default()
                };
                Ok(vec![bubble::bubble_time_s(
                    Schedule::ZbH1,
                    small(x[0]),
                    1,
                    t,
                )])
            },
        },
        Calculator {
            name: "bubble-dualpipe",
            doc: "Bubble time of DualPipe",
            equation: "(p/2−1)(F&B + B − 3W)",
            source: "DeepSeek-AI 2024 (DeepSeek-V3), table 2",
            code: "pipeline::bubble::bubble_time_s",
            parameters: &[
                STAGES,
                BACKWARD,
                WEIGHT,
                seconds("overlapped", "F&B", "a forward and a backward overlapped"),
            ],
            results: &[BUBBLE_S],
            example: &[16.0, 0.02, 0.01, 0.025],
            formula: |x| {
                let t = PassTimes {
                    backward_s: x[1],
                    weight_s: x[2],
                    overlapped_s: x[3],
                    ..PassTimes::default()
                };
                Ok(vec![bubble::bubble_time_s(
                    Schedule::DualPipe,
                    small(x[0]),
                    1,
                    t,
                )])
            },
        },
        Calculator {
            name: "in-flight",
            doc: "Micro-batches whose activations a stage holds, by schedule",
            equation: "GPipe m; 1F1B min(p−i, m); interleaved (2(p−i−1) + (v−1)p + 1)/v; \
                       DualPipe p+1; none above m",
            source: "Narayanan et al. 2021; DeepSeek-AI 2024, table 2",
            code: "pipeline::bubble::in_flight",
            parameters: &[STAGES, MICRO_BATCHES, CHUNKS, STAGE],
            results: &[
                outcome("gpipe", "number", "GPipe"),
                outcome("one_f_one_b", "number", "1F1B and ZB-H1"),
                outcome("interleaved", "number", "interleaved, stage-equivalents"),
                outcome("dualpipe", "number", "DualPipe, with twice the parameters"),
            ],
            example: &[4.0, 16.0, 2.0, 0.0],
            formula: |x| {
                let (p, m, v) = (small(x[0]), x[1] as u64, small(x[2]));
                if x[3] >= x[0] {
                    let rule = "must be less than the number of stages";
                    return Err(crate::error::Error::field("stage", x[3], rule));
                }
                let of = |schedule| bubble::in_flight(schedule, p, v, m, small(x[3]));
                Ok(vec![
                    of(Schedule::GPipe),
                    of(Schedule::OneFOneB),
                    of(Schedule::Interleaved),
                    of(Schedule::DualPipe),
                ])
            },
        },
        Calculator {
            name: "pipeline-boundary",
            doc: "Bytes that a rank sends over a stage boundary per micro-batch, one way",
            equation: "v · B·s·H·b, over t with sequence parallelism",
            source: "Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022",
            code: "collectives::tensor_parallel::boundary_bytes",
            parameters: &[
                SEQUENCES,
                LENGTH,
                HIDDEN,
                ELEMENT,
                TENSOR_PARALLEL,
                SEQUENCE_PARALLEL,
                CHUNKS,
            ],
            results: &[outcome(
                "boundary_bytes",
                "bytes",
                "one way, per micro-batch",
            )],
            example: &[1.0, 4096.0, 8192.0, 2.0, 8.0, 1.0, 1.0],
            formula: |x| {
                let (t, sequence, v) = (x[4] as u64, x[5] == 1.0, x[6] as u64);
                Ok(vec![tp::boundary_bytes(message(x), t, sequence, v)])
            },
        },
    ],
};

const TOKENS: Parameter = count("tokens", "T", "tokens on a rank");
const TOP_K: Parameter = count("top_k", "k", "experts per token");
const EXPERTS: Parameter = count("experts", "E", "experts");

/// k experts of E: k may not exceed E.
fn chosen(k: f64, e: f64) -> Result<()> {
    if k <= e {
        return Ok(());
    }
    Err(crate::error::Error::field(
        "top_k",
        k,
        "must not exceed the experts",
    ))
}

pub(super) const EXPERT: Group = Group {
    title: "Mixture of experts",
    calculators: &[
        Calculator {
            name: "moe-all-to-all",
            doc: "Bytes of a dispatch: upper bound, and what leaves the rank; combine is the same",
            equation: "T·k·H·b one way; remote share 1 − 1/EP",
            source: "Lepikhin et al. 2021 (GShard)",
            code: "collectives::expert_parallel::remote_dispatch_bytes",
            parameters: &[
                TOKENS,
                TOP_K,
                HIDDEN,
                ELEMENT,
                count("ep", "EP", "expert-parallel ranks"),
            ],
            results: &[
                outcome("upper_bytes", "bytes", "if every choice leaves the rank"),
                outcome("remote_bytes", "bytes", "what leaves the rank, one way"),
                outcome("round_trip_bytes", "bytes", "dispatch and combine"),
            ],
            example: &[4096.0, 8.0, 7168.0, 2.0, 64.0],
            formula: |x| {
                let upper = ep::dispatch_bytes(x[0] as u64, x[1] as u64, x[2] as u64, x[3]);
                let remote = ep::remote_dispatch_bytes(upper, x[4] as u64);
                Ok(vec![upper, remote, 2.0 * remote])
            },
        },
        Calculator {
            name: "moe-node-dispatch",
            doc: "Bytes that leave the node when a token is sent to each node once",
            equation: "T·H·b · R·(1 − C(E−m,k)/C(E,k)) · (1 − 1/R), m = E/R",
            source: "DeepSeek-AI 2024 (DeepSeek-V3), section 3.2; uniform routing",
            code: "collectives::expert_parallel::node_dispatch_bytes",
            parameters: &[
                TOKENS,
                HIDDEN,
                ELEMENT,
                EXPERTS,
                TOP_K,
                count("nodes", "R", "nodes that share the experts"),
            ],
            results: &[
                outcome(
                    "distinct_nodes",
                    "number",
                    "mean nodes that a token touches",
                ),
                outcome(
                    "sent_bytes",
                    "bytes",
                    "what leaves the node, per rank, one way",
                ),
            ],
            example: &[4096.0, 7168.0, 1.0, 256.0, 8.0, 8.0],
            formula: |x| {
                chosen(x[4], x[3])?;
                let (e, k, r) = (x[3] as u64, x[4] as u64, x[5] as u64);
                if !e.is_multiple_of(r) {
                    let rule = "must divide the experts";
                    return Err(crate::error::Error::field("nodes", r, rule));
                }
                if k > 1_000_000 {
                    let rule = "must not exceed 1,000,000";
                    return Err(crate::error::Error::field("top_k", k, rule));
                }
                let bytes = ep::node_dispatch_bytes(x[0] as u64, x[1] as u64, x[2], (e, k, r));
                Ok(vec![ep::distinct_nodes(e, k, r), bytes])
            },
        },
        Calculator {
            name: "tokens-per-expert",
            doc: "Mean tokens of an expert; hot experts exceed it",
            equation: "T·k/E",
            source: "Fedus et al. 2022 (Switch)",
            code: "collectives::expert_parallel::tokens_per_expert",
            parameters: &[
                count("tokens", "T", "tokens of all ranks that share the experts"),
                TOP_K,
                EXPERTS,
            ],
            results: &[outcome("tokens_per_expert", "number", "mean")],
            example: &[4096.0, 8.0, 256.0],
            formula: |x| {
                chosen(x[1], x[2])?;
                Ok(vec![ep::tokens_per_expert(
                    x[0] as u64,
                    x[1] as u64,
                    x[2] as u64,
                )])
            },
        },
        Calculator {
            name: "active-experts",
            doc: "Experts that a decode batch wakes, uniform routing",
            equation: "E·(1 − (1 − k/E)^B)",
            source: "elementary; uniform independent tokens",
            code: "collectives::expert_parallel::active_experts",
            parameters: &[EXPERTS, TOP_K, count("batch", "B", "tokens of the batch")],
            results: &[outcome("active_experts", "number", "mean")],
            example: &[256.0, 8.0, 64.0],
            formula: |x| {
                chosen(x[1], x[0])?;
                Ok(vec![ep::active_experts(
                    x[0] as u64,
                    x[1] as u64,
                    x[2] as u64,
                )])
            },
        },
    ],
};

/// A parameter of the KV calculators as well.
pub(super) const TP: Parameter = TENSOR_PARALLEL;
