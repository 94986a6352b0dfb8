//! How many KV blocks an engine gets, and what limits it.
//!
//! * [`vllm`]: one pool of equal pages, groups of layers, the smallest worker decides;
//! * [`sglang`]: token slots from a static share of memory;
//! * [`trtllm`]: a share of the memory that is free after loading, one pool per window;
//! * llama.cpp: a buffer of the stated context.
//!
//! Memory is either what the engine reported as available, or what [`memory`] predicts.

pub mod memory;
mod query;
pub mod sglang;
pub mod stages;
pub mod trtllm;
pub mod vllm;

use serde::Serialize;

pub use query::{Engine, MambaMode, Memory, Query};

use super::layer::Class;
use crate::error::{Error, Result};
use memory::Terms;

/// What an engine makes of its memory. Every pipeline stage is a worker; ranks of a stage are
/// equal unless their memories are given apart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Blocks of the pool: the smallest worker's.
    pub num_blocks: u64,
    /// Blocks that requests can use (vLLM keeps block 0 for itself).
    pub usable_blocks: u64,
    /// Tokens in a block, the shortest where groups differ.
    pub block_tokens: u64,
    /// Cache size in tokens, as this version of the engine logs it.
    pub tokens: u64,
    /// Requests of the full length that fit at once.
    pub max_concurrency: f64,
    /// Bytes that a token takes on the fullest stage if every layer keeps it.
    pub bytes_per_token_per_gpu: f64,
    /// The same for layers that keep every token.
    pub growth_bytes_per_token_per_gpu: f64,
    /// Bytes of a block on the worker that limits.
    pub bytes_per_block: u64,
    /// Blocks of a request of the full length.
    pub blocks_per_request: u64,
    /// Whether a request of the full length fits.
    pub fits: bool,
    /// Blocks that it lacks.
    pub shortfall_blocks: u64,
    /// Longest request that fits, tokens, as the engine's error text estimates it.
    pub max_len_that_fits: u64,
    /// Memory that the engine asks for one request of the full length, bytes.
    pub request_bytes: u64,
    /// Block tables: groups of layers.
    pub groups: Vec<GroupReport>,
    /// Padding of a recurrent state's page over the state (vLLM).
    pub state_padding_ratio: f64,
    /// Workers.
    pub stages: Vec<StageReport>,
    /// Index of the stage that limits.
    pub limiting_stage: usize,
    /// Cache size in tokens under both generations of the log line (vLLM).
    pub log_lines: Option<LogLines>,
}

/// Both generations of vLLM's line `GPU KV cache size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogLines {
    /// Up to 0.19: blocks / groups × shortest block; not a capacity for hybrids.
    pub blocks_over_groups: u64,
    /// Later: concurrency × longest request; changes with the longest request.
    pub concurrency_times_length: u64,
}

/// A block table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// Tokens that its layers keep.
    pub class: Class,
    /// Layers.
    pub layers: u64,
    /// Tokens in a block.
    pub block_tokens: u64,
    /// Blocks of a request of the full length.
    pub blocks_per_request: u64,
    /// Blocks of its own pool, where groups have their own.
    pub own_blocks: Option<u64>,
}

/// A pipeline stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Decoder layers.
    pub layers: u64,
    /// Bytes of a block.
    pub bytes_per_block: u64,
    /// Memory for the cache, bytes; negative where the rest does not fit.
    pub available_bytes: f64,
    /// Blocks.
    pub num_blocks: u64,
    /// How the memory came about, where it was predicted.
    pub memory: Option<Terms>,
}

/// Answers a query.
///
/// # Errors
/// A field that makes no sense, or a combination that the engine refuses.
pub fn size(query: &Query) -> Result<Report> {
    query.check()?;
    match query.engine {
        Engine::Vllm => vllm::size(query),
        Engine::Sglang => sglang::size(query),
        Engine::Trtllm => trtllm::size(query),
        Engine::Llamacpp => trtllm::buffer(query),
    }
}

/// ⌊a / b⌋ of real bytes, 0 where a is negative or b is 0.
#[must_use]
pub fn whole(bytes: f64, each: u64) -> u64 {
    if bytes <= 0.0 || each == 0 {
        return 0;
    }
    (bytes.floor() as u64) / each
}

/// Memory of each stage, reported or predicted.
fn stage_memory(query: &Query, stages: &[Vec<usize>]) -> Result<Vec<(f64, Option<Terms>)>> {
    match &query.memory {
        Memory::Available { bytes } => {
            let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
            let per_stage = bytes.len() / stages.len();
            if bytes.len() == stages.len() || (per_stage > 1 && bytes.len() % stages.len() == 0) {
                return Ok(bytes
                    .chunks(per_stage.max(1))
                    .map(|c| (least(c), None))
                    .collect());
            }
            if bytes.is_empty() {
                return Err(Error::field(
                    "available_memory",
                    "none",
                    "at least one worker",
                ));
            }
            Ok(vec![(least(bytes), None); stages.len()])
        }
        Memory::Device(device) => {
            let last = stages.len() - 1;
            let terms = |(i, layers): (usize, &Vec<usize>)| {
                let terms = memory::stage(query, device, layers, i == 0, i == last);
                (terms.available_bytes, Some(terms))
            };
            Ok(stages.iter().enumerate().map(terms).collect())
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
