//! All lengths and prefixes of one layout: a few values, and which column copies which.

use super::rows::{self, Cell, Values};
use super::{Axes, BlockPart, PlanPart};
use crate::kv::size::vllm::Prepared;
use crate::kv::size::whole;
use crate::table::Table;

/// The pool of a layout.
pub(super) struct Pool {
    /// Status of a layout that the engine refuses.
    refused: Option<u8>,
    pub block_tokens: u64,
    num_blocks: u64,
    mean_need: f64,
    groups: u64,
    page_bytes: u64,
    bytes_per_block: u64,
}

impl Pool {
    pub(super) fn refused(block_tokens: u64, status: u8) -> Self {
        Self {
            refused: Some(status),
            block_tokens,
            num_blocks: 0,
            mean_need: 0.0,
            groups: 0,
            page_bytes: 0,
            bytes_per_block: 0,
        }
    }

    pub(super) fn of(prepared: &Prepared, bytes: &[u64], memory: &[f64], mean_need: f64) -> Self {
        let blocks = |(bytes, available): (&u64, &f64)| {
            if *bytes == 0 {
                u64::MAX
            } else {
                whole(*available, *bytes)
            }
        };
        let each = bytes.iter().zip(memory).map(blocks).enumerate();
        let (limiting, num_blocks) = each.min_by_key(|b| b.1).unwrap_or((0, 0));
        Self {
            refused: None,
            block_tokens: prepared.plan.block_tokens(),
            num_blocks,
            mean_need,
            groups: prepared.plan.groups.len() as u64,
            page_bytes: prepared.plan.page_bytes,
            bytes_per_block: bytes[limiting],
        }
    }
}

/// What the rows of a cell have in common.
pub(super) struct Layout<'a> {
    pub pool: &'a Pool,
    pub part: &'a BlockPart,
    pub share: f64,
    pub chunk: usize,
    pub code: u8,
}

/// Writes the rows of a cell.
pub(super) fn write(table: &mut Table, axes: &Axes, plan: &PlanPart, layout: &Layout<'_>) {
    let (pool, part, query) = (layout.pool, layout.part, &plan.query);
    let need_of = |len: &u64| match &plan.prepared {
        Some(p) => p.blocks_of(query, *len),
        None => 0,
    };
    let need: Vec<u64> = axes.max_len.iter().map(need_of).collect();
    let status = |need: &u64| {
        pool.refused
            .unwrap_or_else(|| u8::from(pool.num_blocks < *need))
    };
    let statuses: Vec<u8> = need.iter().map(status).collect();
    let full = |need: &u64| {
        if *need == 0 {
            0.0
        } else {
            pool.num_blocks as f64 / *need as f64
        }
    };
    let full: Vec<f64> = need.iter().map(full).collect();
    let table_bytes =
        |len: &u64| 4 * query.max_seqs * len.div_ceil(pool.block_tokens.max(1)) * pool.groups;
    let tables: Vec<u64> = axes.max_len.iter().map(table_bytes).collect();
    let mean_of = |prefix: &u64| {
        let shared = (prefix / pool.block_tokens.max(1)) as f64;
        let shared = shared.min((pool.mean_need - 1.0).max(0.0));
        let free = (pool.num_blocks as f64 - shared).max(0.0);
        if pool.refused.is_some() {
            0.0
        } else {
            free / (pool.mean_need - shared).max(1.0)
        }
    };
    let mean: Vec<f64> = axes.prefix_tokens.iter().map(mean_of).collect();
    let lookups: Vec<f64> = mean
        .iter()
        .map(|m| m.min(query.max_seqs as f64) * pool.mean_need)
        .collect();
    let small = |values: &[u64]| -> Vec<u32> { values.iter().map(|v| *v as u32).collect() };
    let (lens, prefixes) = (small(&axes.max_len), small(&axes.prefix_tokens));
    let waste = &part.waste;
    let values = [
        Values::Whole(pool.block_tokens),
        Values::Code(layout.code),
        Values::Count(query.tp),
        Values::Count(query.pp),
        Values::Count(query.dcp),
        Values::Real(layout.share),
        Values::CountByLength(&lens),
        Values::Count(query.max_batched_tokens),
        Values::CountByPrefix(&prefixes),
        Values::CodeByLength(&statuses),
        Values::Whole(pool.num_blocks),
        Values::WholeByLength(&need),
        Values::RealByLength(&full),
        Values::RealByPrefix(&mean),
        Values::Real(waste.mean_tokens),
        Values::Count(waste.p50_tokens),
        Values::Count(waste.p99_tokens),
        Values::Count(waste.worst_tokens),
        Values::Real(waste.ratio),
        Values::Real(waste.closed_ratio),
        Values::RealByPrefix(&part.saved),
        Values::RealByPrefix(&part.chunks[layout.chunk]),
        Values::WholeByLength(&tables),
        Values::RealByPrefix(&lookups),
        Values::Whole(pool.page_bytes),
        Values::Whole(pool.bytes_per_block),
    ];
    let cell = Cell {
        lengths: lens.len(),
        prefixes: prefixes.len(),
    };
    rows::write(table, cell, &values);
}
