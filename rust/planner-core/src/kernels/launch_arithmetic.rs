//! Kernel launch arithmetic: rounds, shared memory, grid, occupancy.
//!
//! Source: NVIDIA CUDA C++ Programming Guide, "Compute Capabilities" (limits) and the occupancy
//! calculator's rules (allocation granularity).

use crate::collectives::volume::ceil_log2;
use crate::error::{Error, Result};

/// Limits of a device for one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchLimits {
    /// Threads of a block.
    pub threads_per_block: u64,
    /// Threads of a multiprocessor.
    pub threads_per_sm: u64,
    /// Blocks of a multiprocessor.
    pub blocks_per_sm: u64,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_sm: u64,
    /// Shared memory that one block may ask for, bytes.
    pub shared_bytes_per_block: u64,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_bytes_per_sm: u64,
    /// Shared memory that the system keeps of each block, bytes.
    pub reserved_shared_bytes: u64,
    /// Blocks of a grid in x.
    pub grid_x: u64,
}

/// Threads of a warp.
pub const WARP: u64 = 32;
/// Registers are allocated to a warp in units of this many.
const REGISTER_UNIT: u64 = 256;
/// Shared memory is allocated to a block in units of this many bytes.
const SHARED_UNIT: u64 = 128;

impl LaunchLimits {
    /// Compute capability 8.0 (A100).
    pub const SM80: Self = Self {
        threads_per_block: 1024,
        threads_per_sm: 2048,
        blocks_per_sm: 32,
        registers_per_sm: 65_536,
        shared_bytes_per_block: 163 * 1024,
        shared_bytes_per_sm: 164 * 1024,
        reserved_shared_bytes: 1024,
        grid_x: (1 << 31) - 1,
    };
    /// Compute capability 9.0 (H100, H200) and 10.0 (B200).
    pub const SM90: Self = Self {
        shared_bytes_per_block: 227 * 1024,
        shared_bytes_per_sm: 228 * 1024,
        ..Self::SM80
    };
}

/// Rounds of a tree reduction in a block: ⌈log₂ blockDim⌉.
///
/// ```
/// use planner_core::kernels::launch_arithmetic::reduction_rounds;
/// assert_eq!(reduction_rounds(256), 8);
/// assert_eq!(reduction_rounds(100), 7);
/// ```
#[must_use]
pub const fn reduction_rounds(block_dim: u64) -> u64 {
    ceil_log2(block_dim)
}

/// Shared memory of a block: blockDim × elements per thread × sizeof(dtype), bytes.
///
/// # Errors
/// When it exceeds the device's limit per block.
///
/// ```
/// use planner_core::kernels::launch_arithmetic::{shared_memory_bytes, LaunchLimits};
/// assert_eq!(shared_memory_bytes(256, 4, 4, &LaunchLimits::SM90), Ok(4096));
/// assert!(shared_memory_bytes(1024, 64, 4, &LaunchLimits::SM90).is_err());
/// ```
pub fn shared_memory_bytes(
    block_dim: u64,
    elements: u64,
    element_bytes: u64,
    limits: &LaunchLimits,
) -> Result<u64> {
    let bytes = block_dim
        .saturating_mul(elements)
        .saturating_mul(element_bytes);
    if bytes > limits.shared_bytes_per_block {
        let rule = format!(
            "must not exceed {} bytes a block",
            limits.shared_bytes_per_block
        );
        return Err(Error::field("shared_memory", bytes, rule));
    }
    Ok(bytes)
}

/// Blocks of a grid: ⌈N/(blockDim · items per thread)⌉.
///
/// # Errors
/// When it exceeds the device's grid limit, or a block has no thread.
///
/// ```
/// use planner_core::kernels::launch_arithmetic::{grid_blocks, LaunchLimits};
/// assert_eq!(grid_blocks(1_000_000, 256, 4, &LaunchLimits::SM90), Ok(977));
/// ```
pub fn grid_blocks(n: u64, block_dim: u64, items: u64, limits: &LaunchLimits) -> Result<u64> {
    let per_block = block_dim.saturating_mul(items);
    if per_block == 0 {
        return Err(Error::field("block_dim · items", 0, "must be at least 1"));
    }
    let blocks = n.div_ceil(per_block);
    if blocks > limits.grid_x {
        let rule = format!("must not exceed {} blocks in x", limits.grid_x);
        return Err(Error::field("grid", blocks, rule));
    }
    Ok(blocks)
}

/// What a block asks of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNeeds {
    /// Threads.
    pub threads: u64,
    /// Registers of a thread.
    pub registers_per_thread: u64,
    /// Shared memory, bytes.
    pub shared_bytes: u64,
}

/// How many blocks a multiprocessor runs at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occupancy {
    /// Resident blocks.
    pub blocks: u64,
    /// Resident warps over the most that the device allows.
    pub ratio: f64,
}

/// Occupancy: blocks = min over threads, registers, shared memory and the block limit.
///
/// Registers are allocated to whole warps in units of 256, shared memory in units of 128 bytes plus
/// what the system reserves for a block.
///
/// # Errors
/// When one block alone does not fit.
///
/// ```
/// use planner_core::kernels::launch_arithmetic::{occupancy, BlockNeeds, LaunchLimits};
/// let needs = BlockNeeds { threads: 256, registers_per_thread: 64, shared_bytes: 0 };
/// let o = occupancy(needs, &LaunchLimits::SM90).unwrap();
/// assert_eq!((o.blocks, o.ratio), (4, 0.5)); // 65,536 registers / (8 warps · 2,048)
/// ```
pub fn occupancy(needs: BlockNeeds, limits: &LaunchLimits) -> Result<Occupancy> {
    let warps = needs.threads.div_ceil(WARP);
    if needs.threads == 0 || needs.threads > limits.threads_per_block {
        let rule = format!("must lie in 1..={}", limits.threads_per_block);
        return Err(Error::field("threads", needs.threads, rule));
    }
    if needs.registers_per_thread > 255 {
        return Err(Error::field(
            "registers_per_thread",
            needs.registers_per_thread,
            "must not exceed 255",
        ));
    }
    let warp_registers = (needs.registers_per_thread * WARP).next_multiple_of(REGISTER_UNIT);
    let shared = needs
        .shared_bytes
        .saturating_add(limits.reserved_shared_bytes)
        .div_ceil(SHARED_UNIT)
        .saturating_mul(SHARED_UNIT);
    let by_warps = limits.threads_per_sm / WARP / warps;
    let by_registers = match warp_registers {
        0 => u64::MAX,
        r => limits.registers_per_sm / r / warps,
    };
    let blocks = by_warps
        .min(by_registers)
        .min(limits.shared_bytes_per_sm / shared)
        .min(limits.blocks_per_sm);
    if blocks == 0 || needs.shared_bytes > limits.shared_bytes_per_block {
        let rule = "registers or shared memory of one block exceed the multiprocessor";
        return Err(Error::field("block", format!("{needs:?}"), rule));
    }
    Ok(Occupancy {
        blocks,
        ratio: (blocks * warps * WARP) as f64 / limits.threads_per_sm as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H100: LaunchLimits = LaunchLimits::SM90;

    proptest! {
        #[test]
        fn a_grid_covers_every_item_with_no_block_to_spare(
            n in 1_u64..1 << 40, block in 1_u64..1025, items in 1_u64..64,
        ) {
            if let Ok(blocks) = grid_blocks(n, block, items, &H100) {
                prop_assert!(blocks * block * items >= n);
                prop_assert!((blocks - 1) * block * items < n);
            }
        }

        #[test]
        fn asking_for_more_never_raises_occupancy(
            threads in 1_u64..1025, registers in 0_u64..255, shared in 0_u64..200_000,
        ) {
            let of = |registers_per_thread, shared_bytes| {
                let needs = BlockNeeds { threads, registers_per_thread, shared_bytes };
                occupancy(needs, &H100).map_or(0, |o| o.blocks)
            };
            prop_assert!(of(registers + 1, shared) <= of(registers, shared));
            prop_assert!(of(registers, shared + 1) <= of(registers, shared));
        }
    }

    #[test]
    fn each_resource_can_be_the_limit() {
        let of = |threads, registers_per_thread, shared_bytes| {
            let needs = BlockNeeds {
                threads,
                registers_per_thread,
                shared_bytes,
            };
            occupancy(needs, &H100).map(|o| o.blocks)
        };
        assert_eq!(of(1024, 32, 0), Ok(2)); // threads
        assert_eq!(of(32, 16, 0), Ok(32)); // blocks
        assert_eq!(of(128, 255, 0), Ok(2)); // registers: 255·32 → 8,192 a warp
        assert_eq!(of(128, 32, 100 * 1024), Ok(2)); // shared memory
        assert_eq!(of(128, 32, 227 * 1024), Ok(1)); // the most a block may ask for
        assert!(of(128, 32, 227 * 1024 + 1).is_err());
        assert!(of(1024, 255, 0).is_err());
        assert!(of(0, 32, 0).is_err());
        assert!(of(2048, 32, 0).is_err());
    }

    #[test]
    fn limits_are_errors() {
        assert!(grid_blocks(u64::MAX, 1, 1, &H100).is_err());
        assert!(grid_blocks(1, 0, 1, &H100).is_err());
        assert_eq!(grid_blocks(0, 256, 1, &H100), Ok(0));
        assert!(shared_memory_bytes(u64::MAX, 2, 2, &H100).is_err());
        assert_eq!(reduction_rounds(1), 0);
        assert_eq!(reduction_rounds(1024), 10);
    }
}
