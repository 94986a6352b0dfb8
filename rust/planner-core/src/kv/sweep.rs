//! Block sizes, formats and layouts at once: what each wastes, holds and costs.
//!
//! vLLM's pool. Parts are computed once and combined: a plan per (block, format, tp, dcp), memory per
//! (tp, pp, share, chunk), waste per block, saved tokens per (block, prefix), chunks per (block,
//! prefix, chunk). A row is a handful of integer operations.

use serde::Deserialize;

use super::format::KvFormat;
use super::fragment::{Lengths, Waste};
use super::plan::Plan;
use super::size::vllm::Prepared;
use super::size::{Memory, Query, whole};
use crate::error::{Error, Result};
use crate::table::Table;

mod rows;

pub use rows::COLUMNS;
use rows::{Fixed, Rows};

/// Values of each axis; every combination is a row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axes {
    /// Tokens in a block.
    pub block_tokens: Vec<u64>,
    /// Formats of the cache.
    pub kv_format: Vec<KvFormat>,
    /// Tensor-parallel ranks.
    pub tp: Vec<u64>,
    /// Pipeline stages.
    pub pp: Vec<u64>,
    /// Decode context ranks.
    pub dcp: Vec<u64>,
    /// Shares of the device's memory (ignored where memory was reported).
    pub share: Vec<f64>,
    /// Longest requests, tokens.
    pub max_len: Vec<u64>,
    /// Tokens of a batch: prompts are cut into chunks of as many.
    pub chunk_tokens: Vec<u64>,
    /// Tokens that all requests share at their start.
    pub prefix_tokens: Vec<u64>,
}

/// Most rows of one sweep.
pub const MAX_ROWS: u64 = 50_000_000;

/// What a block size does to the lengths, whatever the layout.
struct BlockPart {
    waste: Waste,
    /// By prefix: saved share of prompt tokens, whole blocks shared.
    saved: Vec<(f64, u64)>,
    /// By prefix and chunk: chunks of a prompt.
    chunks: Vec<f64>,
}

/// Sweeps every combination.
///
/// # Errors
/// An empty axis, too many rows, or a value that makes no sense.
pub fn sweep(base: &Query, axes: &Axes, lengths: &Lengths) -> Result<Table> {
    let rows = check(axes, lengths)?;
    let mut out = Rows::with_capacity(rows);
    let parts: Vec<BlockPart> = axes
        .block_tokens
        .iter()
        .map(|b| part(*b, axes, lengths))
        .collect();
    for (block, part) in axes.block_tokens.iter().zip(&parts) {
        for format in &axes.kv_format {
            for tp in &axes.tp {
                for dcp in &axes.dcp {
                    let query = Query {
                        block_tokens: Some(*block),
                        kv_format: *format,
                        tp: *tp,
                        dcp: *dcp,
                        ..base.clone()
                    };
                    layouts(&query, axes, lengths, part, &mut out)?;
                }
            }
        }
    }
    Ok(out.table())
}

fn check(axes: &Axes, lengths: &Lengths) -> Result<usize> {
    let sizes = [
        ("block_size", axes.block_tokens.len()),
        ("kv_dtype", axes.kv_format.len()),
        ("tp", axes.tp.len()),
        ("pp", axes.pp.len()),
        ("dcp", axes.dcp.len()),
        ("share", axes.share.len()),
        ("max_model_len", axes.max_len.len()),
        ("chunk", axes.chunk_tokens.len()),
        ("shared_prefix", axes.prefix_tokens.len()),
    ];
    let mut rows = 1u64;
    for (field, n) in sizes {
        if n == 0 {
            return Err(Error::field(field, "none", "at least one value"));
        }
        rows = rows.saturating_mul(n as u64);
    }
    if rows > MAX_ROWS {
        return Err(Error::field(
            "rows",
            rows,
            format!("at most {MAX_ROWS}; take fewer values"),
        ));
    }
    for (field, values) in [
        ("block_size", &axes.block_tokens),
        ("chunk", &axes.chunk_tokens),
        ("max_model_len", &axes.max_len),
    ] {
        if let Some(bad) = values.iter().find(|v| **v == 0 || **v > 1 << 31) {
            return Err(Error::field(field, bad, "must be between 1 and 2^31"));
        }
    }
    if let Some(bad) = axes.share.iter().find(|s| !(**s > 0.0 && **s <= 1.0)) {
        return Err(Error::field("share", bad, "must be above 0 and at most 1"));
    }
    if lengths.requests() == 0 {
        return Err(Error::field("lengths", "none", "at least one request"));
    }
    Ok(rows as usize)
}

fn part(block: u64, axes: &Axes, lengths: &Lengths) -> BlockPart {
    let prompts: u128 = lengths
        .rows
        .iter()
        .map(|(p, _, n)| u128::from(*p) * u128::from(*n))
        .sum();
    let requests = lengths.requests() as f64;
    // All requests but the first find the prefix.
    let found = (requests - 1.0) / requests;
    let hit = |prompt: u64, prefix: u64| prefix.min(prompt.saturating_sub(1)) / block * block;
    let saved = axes.prefix_tokens.iter().map(|prefix| {
        let sum: u128 = lengths
            .rows
            .iter()
            .map(|(p, _, n)| u128::from(hit(*p, *prefix)) * u128::from(*n))
            .sum();
        (sum as f64 * found / prompts.max(1) as f64, prefix / block)
    });
    let mut chunks = Vec::new();
    for prefix in &axes.prefix_tokens {
        for chunk in &axes.chunk_tokens {
            let each = |(p, _, n): &(u64, u64, u64)| (p - hit(*p, *prefix)).div_ceil(*chunk) * n;
            chunks.push(lengths.rows.iter().map(each).sum::<u64>() as f64 / requests);
        }
    }
    BlockPart {
        waste: lengths.waste(block),
        saved: saved.collect(),
        chunks,
    }
}

/// Rows of one plan.
fn layouts(
    query: &Query,
    axes: &Axes,
    lengths: &Lengths,
    part: &BlockPart,
    out: &mut Rows,
) -> Result<()> {
    let prepared = match Prepared::new(query) {
        Ok(prepared) => Some(prepared),
        // The engine refuses these context ranks: rows with a status.
        Err(_) if query.dcp > 1 => None,
        Err(error) => return Err(error),
    };
    let means = match &prepared {
        Some(p) => means(p, query, axes, lengths),
        None => vec![0.0; axes.chunk_tokens.len()],
    };
    let mut query = query.clone();
    for pp in &axes.pp {
        query.pp = *pp;
        let bytes = prepared
            .as_ref()
            .map(|p| p.stage_bytes(&query))
            .transpose()?;
        for share in &axes.share {
            for (c, chunk) in axes.chunk_tokens.iter().enumerate() {
                query.max_batched_tokens = *chunk;
                if let Memory::Device(device) = &mut query.memory {
                    device.share = *share;
                }
                let memory = prepared.as_ref().map(|p| p.memory(&query)).transpose()?;
                for max_len in &axes.max_len {
                    let pool = match (&prepared, &bytes, &memory) {
                        (Some(p), Some(bytes), Some(memory)) => {
                            Pool::of(p, &query, (bytes, memory), *max_len, means[c])
                        }
                        _ => Pool::refused(query.block_tokens.unwrap_or(1)),
                    };
                    let fixed = Fixed {
                        query: &query,
                        share: *share,
                        max_len: *max_len,
                        chunk: *chunk,
                    };
                    for (i, prefix) in axes.prefix_tokens.iter().enumerate() {
                        let chunks = part.chunks[i * axes.chunk_tokens.len() + c];
                        out.push(&fixed, &pool, part, *prefix, i, chunks);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Mean blocks of a request, by chunk: it matters where windows keep a batch in flight.
fn means(prepared: &Prepared, query: &Query, axes: &Axes, lengths: &Lengths) -> Vec<f64> {
    let mut query = query.clone();
    let mut mean = |chunk: &u64| {
        query.max_batched_tokens = *chunk;
        prepared.mean_blocks(&query, lengths)
    };
    if prepared.has_windows() {
        return axes.chunk_tokens.iter().map(mean).collect();
    }
    vec![mean(&axes.chunk_tokens[0]); axes.chunk_tokens.len()]
}

/// The pool of a layout.
struct Pool {
    status: u8,
    block_tokens: u64,
    num_blocks: u64,
    need: u64,
    mean_need: f64,
    groups: u64,
    page_bytes: u64,
    bytes_per_block: u64,
}

impl Pool {
    fn refused(block_tokens: u64) -> Self {
        Self {
            status: 2,
            block_tokens,
            num_blocks: 0,
            need: 0,
            mean_need: 0.0,
            groups: 0,
            page_bytes: 0,
            bytes_per_block: 0,
        }
    }

    fn of(
        prepared: &Prepared,
        query: &Query,
        stages: (&[u64], &[f64]),
        max_len: u64,
        mean_need: f64,
    ) -> Self {
        let plan: &Plan = &prepared.plan;
        let blocks = |(bytes, available): (&u64, &f64)| {
            if *bytes == 0 {
                u64::MAX
            } else {
                whole(*available, *bytes)
            }
        };
        let each = || stages.0.iter().zip(stages.1);
        let (limiting, num_blocks) = each()
            .map(blocks)
            .enumerate()
            .min_by_key(|b| b.1)
            .unwrap_or((0, 0));
        let need = prepared.blocks_of(query, max_len);
        Self {
            status: u8::from(num_blocks < need),
            block_tokens: plan.block_tokens(),
            num_blocks,
            need,
            mean_need,
            groups: plan.groups.len() as u64,
            page_bytes: plan.page_bytes,
            bytes_per_block: stages.0[limiting],
        }
    }
}

#[cfg(test)]
mod tests;
