//! Calculators of collective volumes, times and bandwidths.

use super::{Calculator, Group, Outcome, Parameter, RANKS, bytes, count, outcome, rate, seconds};
use crate::collectives::volume::{self, Family, Operation};

const TENSOR: Parameter = bytes("bytes", "S", "bytes of the full tensor");
const TIME: Parameter = Parameter {
    least: super::TINY,
    ..seconds("time", "τ", "time of the collective")
};
const SENT: Outcome = outcome("sent_bytes", "bytes", "sent by each rank");
const STEPS: Outcome = outcome("steps", "count", "latency steps");
const BANDWIDTHS: &[Outcome] = &[
    outcome("algorithm_bytes_per_s", "bytes/s", "algorithm bandwidth"),
    outcome("bus_bytes_per_s", "bytes/s", "bus bandwidth"),
];
const NCCL: &str = "NVIDIA nccl-tests, doc/PERFORMANCE.md";
const RING: &str = "Patarasuk and Yuan 2009";

pub(super) const GROUP: Group = Group {
    title: "Collectives",
    calculators: &[
        Calculator {
            name: "all-reduce",
            doc: "Bytes sent per rank in a ring all-reduce: a reduce-scatter and an all-gather",
            equation: "2(N−1)/N · S",
            source: RING,
            code: "collectives::volume::all_reduce_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[SENT, STEPS],
            example: &[8.0, 1_073_741_824.0],
            formula: |x| {
                let n = x[0] as u64;
                let steps = volume::all_reduce_steps(Family::Ring, n) as f64;
                Ok(vec![volume::all_reduce_bytes(n, x[1]), steps])
            },
        },
        Calculator {
            name: "reduce-scatter",
            doc: "Bytes sent per rank in a ring reduce-scatter",
            equation: "(N−1)/N · S",
            source: RING,
            code: "collectives::volume::reduce_scatter_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[SENT],
            example: &[8.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::reduce_scatter_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "all-gather",
            doc: "Bytes sent per rank in a ring all-gather",
            equation: "(N−1)/N · S",
            source: RING,
            code: "collectives::volume::all_gather_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[SENT],
            example: &[8.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::all_gather_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "all-to-all",
            doc: "Bytes sent per rank in an all-to-all",
            equation: "(N−1)/N · S, S = bytes that a rank holds before the exchange",
            source: "Thakur et al. 2005",
            code: "collectives::volume::all_to_all_bytes",
            parameters: &[RANKS, bytes("bytes", "S", "bytes that a rank holds")],
            results: &[SENT],
            example: &[4.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::all_to_all_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "broadcast",
            doc: "Bytes through each rank in a pipelined broadcast or reduce",
            equation: "S",
            source: "Thakur et al. 2005",
            code: "collectives::volume::broadcast_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[SENT],
            example: &[8.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::broadcast_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "reduce",
            doc: "Bytes sent per rank in a pipelined reduce",
            equation: "S",
            source: "Thakur et al. 2005",
            code: "collectives::volume::broadcast_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[SENT],
            example: &[8.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::broadcast_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "scatter",
            doc: "Bytes through the root, which bounds a scatter",
            equation: "(N−1)/N · S at the root",
            source: "Thakur et al. 2005",
            code: "collectives::volume::scatter_root_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[outcome("root_bytes", "bytes", "sent by the root")],
            example: &[4.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::scatter_root_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "gather",
            doc: "Bytes through the root, which bounds a gather",
            equation: "(N−1)/N · S at the root",
            source: "Thakur et al. 2005",
            code: "collectives::volume::scatter_root_bytes",
            parameters: &[RANKS, TENSOR],
            results: &[outcome("root_bytes", "bytes", "received by the root")],
            example: &[4.0, 1_073_741_824.0],
            formula: |x| Ok(vec![volume::scatter_root_bytes(x[0] as u64, x[1])]),
        },
        Calculator {
            name: "all-reduce-tree",
            doc: "Bytes and latency steps of a double-binary-tree all-reduce",
            equation: "≈ 2S, 2·log₂N steps",
            source: "Sanders et al. 2009; NCCL 2.4",
            code: "collectives::volume::all_reduce_traffic",
            parameters: &[RANKS, TENSOR],
            results: &[SENT, STEPS],
            example: &[1024.0, 1_073_741_824.0],
            formula: |x| {
                let n = x[0] as u64;
                let traffic = volume::all_reduce_traffic(Family::Tree, n, x[1]);
                let steps = volume::all_reduce_steps(Family::Tree, n) as f64;
                Ok(vec![traffic.sent_bytes, steps])
            },
        },
        Calculator {
            name: "all-reduce-in-switch",
            doc: "Bytes of an all-reduce that the switch performs (SHARP, NVLS)",
            equation: "≈ S up and S down",
            source: "Graham et al. 2016 (SHARP); NCCL 2.17 (NVLS)",
            code: "collectives::volume::all_reduce_traffic",
            parameters: &[RANKS, TENSOR],
            results: &[
                SENT,
                outcome("received_bytes", "bytes", "received by each rank"),
            ],
            example: &[8.0, 1_073_741_824.0],
            formula: |x| {
                let t = volume::all_reduce_traffic(Family::InSwitch, x[0] as u64, x[1]);
                Ok(vec![t.sent_bytes, t.received_bytes])
            },
        },
        Calculator {
            name: "all-reduce-hierarchical",
            doc: "Bytes per rank on the fast and on the slow tier of a hierarchical all-reduce",
            equation: "inside 2(n−1)/n · S; between 2(g−1)/g · S/n",
            source: "Patarasuk and Yuan 2009, applied per tier",
            code: "collectives::volume::hierarchical_all_reduce",
            parameters: &[
                count("ranks_per_node", "n", "ranks of a node"),
                count("nodes", "g", "nodes"),
                TENSOR,
            ],
            results: &[
                outcome("inside_bytes", "bytes", "sent by each rank inside its node"),
                outcome("between_bytes", "bytes", "sent by each rank between nodes"),
            ],
            example: &[8.0, 4.0, 1_073_741_824.0],
            formula: |x| {
                let h = volume::hierarchical_all_reduce(x[0] as u64, x[1] as u64, x[2]);
                Ok(vec![h.inside_bytes, h.between_bytes])
            },
        },
        Calculator {
            name: "ring-time",
            doc: "Least time of a ring all-reduce",
            equation: "2(N−1)·(α + S/(N·β))",
            source: "Thakur et al. 2005",
            code: "collectives::volume::ring_all_reduce_time_s",
            parameters: &[
                RANKS,
                TENSOR,
                rate("bandwidth", "β", "bandwidth of a rank each way"),
                seconds("latency", "α", "latency of a step").or(0.0),
            ],
            results: &[outcome("time_s", "s", "time of the collective")],
            example: &[8.0, 1e9, 450e9, 1e-6],
            formula: |x| {
                Ok(vec![volume::ring_all_reduce_time_s(
                    x[0] as u64,
                    x[1],
                    x[3],
                    x[2],
                )])
            },
        },
        bandwidth(
            "all-reduce-bandwidth",
            "Algorithm and bus bandwidth of an all-reduce, as nccl-tests prints them",
            "algbw = S/τ; busbw = 2(N−1)/N · S/τ",
            |x| Ok(bandwidths(Operation::AllReduce, x)),
        ),
        bandwidth(
            "all-gather-bandwidth",
            "The same of an all-gather, reduce-scatter or all-to-all",
            "algbw = S/τ; busbw = (N−1)/N · S/τ",
            |x| Ok(bandwidths(Operation::AllGather, x)),
        ),
    ],
};

const fn bandwidth(
    name: &'static str,
    doc: &'static str,
    equation: &'static str,
    formula: fn(&[f64]) -> crate::error::Result<Vec<f64>>,
) -> Calculator {
    Calculator {
        name,
        doc,
        equation,
        source: NCCL,
        code: "collectives::volume::bus_bandwidth",
        parameters: &[RANKS, TENSOR, TIME],
        results: BANDWIDTHS,
        example: &[8.0, 1e9, 4e-3],
        formula,
    }
}

fn bandwidths(operation: Operation, x: &[f64]) -> Vec<f64> {
    vec![
        volume::algorithm_bandwidth(x[1], x[2]),
        volume::bus_bandwidth(operation, x[0] as u64, x[1], x[2]),
    ]
}
