//! Calculators of kernel launches.

use super::{Calculator, Group, Parameter, count, outcome};
use crate::kernels::launch_arithmetic::{self as launch, BlockNeeds, LaunchLimits};

const CUDA: &str = "NVIDIA CUDA C++ Programming Guide, compute capability 9.0";
const BLOCK_DIM: Parameter = Parameter {
    most: 1024.0,
    ..count("block_dim", "", "threads of a block")
};
const H100: &LaunchLimits = &LaunchLimits::SM90;

pub(super) const GROUP: Group = Group {
    title: "Kernel launches",
    calculators: &[
        Calculator {
            name: "reduction-rounds",
            doc: "Rounds of a tree reduction in a block",
            equation: "⌈log₂ blockDim⌉",
            source: "Harris 2007 (Optimizing Parallel Reduction in CUDA)",
            code: "kernels::launch_arithmetic::reduction_rounds",
            parameters: &[BLOCK_DIM],
            results: &[outcome("rounds", "count", "rounds")],
            example: &[256.0],
            formula: |x| Ok(vec![launch::reduction_rounds(x[0] as u64) as f64]),
        },
        Calculator {
            name: "shared-memory",
            doc: "Shared memory of a block, checked against the limit of an H100",
            equation: "blockDim × elements per thread × sizeof(dtype) ≤ 227 KiB",
            source: CUDA,
            code: "kernels::launch_arithmetic::shared_memory_bytes",
            parameters: &[
                BLOCK_DIM,
                count("elements", "", "elements of a thread").or(1.0),
                count("element_bytes", "", "bytes per element").or(4.0),
            ],
            results: &[outcome("shared_bytes", "bytes", "per block")],
            example: &[256.0, 4.0, 4.0],
            formula: |x| {
                let shared =
                    launch::shared_memory_bytes(x[0] as u64, x[1] as u64, x[2] as u64, H100)?;
                Ok(vec![shared as f64])
            },
        },
        Calculator {
            name: "grid",
            doc: "Blocks of a grid, checked against the grid limit",
            equation: "⌈N/(blockDim · items per thread)⌉ ≤ 2³¹ − 1",
            source: CUDA,
            code: "kernels::launch_arithmetic::grid_blocks",
            parameters: &[
                count("items", "N", "items of the whole problem").or_zero(),
                BLOCK_DIM,
                count("items_per_thread", "", "items of a thread").or(1.0),
            ],
            results: &[outcome("blocks", "count", "blocks in x")],
            example: &[1_000_000.0, 256.0, 4.0],
            formula: |x| {
                let blocks = launch::grid_blocks(x[0] as u64, x[1] as u64, x[2] as u64, H100)?;
                Ok(vec![blocks as f64])
            },
        },
        Calculator {
            name: "occupancy",
            doc: "Resident blocks and warps of a multiprocessor of an H100",
            equation: "blocks = min over threads, registers, shared memory, 32; ratio = warps/64",
            source: CUDA,
            code: "kernels::launch_arithmetic::occupancy",
            parameters: &[
                BLOCK_DIM,
                count("registers", "", "registers of a thread").or(32.0),
                super::bytes("shared", "", "shared memory of a block").or(0.0),
            ],
            results: &[
                outcome("blocks", "count", "resident blocks"),
                outcome(
                    "occupancy_ratio",
                    "1",
                    "resident warps over the most possible",
                ),
            ],
            example: &[256.0, 64.0, 0.0],
            formula: |x| {
                let needs = BlockNeeds {
                    threads: x[0] as u64,
                    registers_per_thread: x[1] as u64,
                    shared_bytes: x[2].ceil() as u64,
                };
                let o = launch::occupancy(needs, H100)?;
                Ok(vec![o.blocks as f64, o.ratio])
            },
        },
    ],
};
