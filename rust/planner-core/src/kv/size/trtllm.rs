//! TensorRT-LLM: a share of what is free after loading, one static pool per window. And llama.cpp,
//! whose buffer is as long as the stated context.
//!
//! `blocks = ⌊free · free_gpu_memory_fraction / bytes per block⌋`, 0.9 of the *free* memory by
//! default, blocks of a power of two of at least 2 tokens (TensorRT-LLM documentation). Pools of
//! different windows share the memory in proportion to what one request of the full length keeps in
//! each.

use std::collections::BTreeMap;

use super::{GroupReport, Query, Report, StageReport, stage_memory, stages, whole};
use crate::error::{Error, Result};
use crate::kv::layer::{Class, caches};

const DEFAULT_BLOCK: u64 = 32;

/// Answers a query for TensorRT-LLM.
///
/// # Errors
/// As [`super::size`]; also a block that is not a power of two of at least 2 tokens.
pub fn size(query: &Query) -> Result<Report> {
    let block = query.block_tokens.unwrap_or(DEFAULT_BLOCK);
    if block < 2 || !block.is_power_of_two() {
        return Err(Error::field(
            "block_size",
            block,
            "a power of two of at least 2 tokens",
        ));
    }
    pools(query, block, query.free_fraction)
}

/// Answers a query for llama.cpp: slots are single tokens.
///
/// # Errors
/// As [`super::size`].
pub fn buffer(query: &Query) -> Result<Report> {
    pools(query, query.block_tokens.unwrap_or(1), 1.0)
}

fn pools(query: &Query, block: u64, fraction: f64) -> Result<Report> {
    let total = query.model.layers.len() as u64;
    let counts = query
        .pp_layers
        .clone()
        .unwrap_or_else(|| stages::even_first(total, query.pp));
    let held = stages::assign(&counts, total, query.layer_kinds().len() as u64 - total)?;
    let memory = stage_memory(query, &held)?;
    let mut reports = Vec::new();
    let mut all_groups = Vec::new();
    for (own, (available, terms)) in held.iter().zip(memory) {
        let groups = stage_groups(query, own, block, available * fraction)?;
        let requests =
            |g: &GroupReport| g.own_blocks.unwrap_or(0) as f64 / g.blocks_per_request as f64;
        let least = groups
            .iter()
            .map(|(g, _)| requests(g))
            .fold(f64::INFINITY, f64::min);
        // The pool of the layers that keep most tokens; others are as many requests deep.
        let first = groups
            .iter()
            .max_by_key(|(g, _)| g.blocks_per_request)
            .map_or(0, |(g, _)| g.own_blocks.unwrap_or(0));
        reports.push(StageReport {
            layers: own.len() as u64,
            bytes_per_block: groups.iter().map(|(_, bytes)| bytes).sum(),
            available_bytes: available,
            num_blocks: first,
            memory: terms,
        });
        all_groups.push((least, groups));
    }
    Ok(report(query, &held, block, &all_groups, reports))
}

/// Pools of one stage, each with the bytes of its block.
fn stage_groups(
    query: &Query,
    own: &[usize],
    block: u64,
    memory: f64,
) -> Result<Vec<(GroupReport, u64)>> {
    let (cut, kinds) = (query.cut(), query.layer_kinds());
    let mut sums: BTreeMap<Class, (u64, u64)> = BTreeMap::new();
    for layer in own {
        for cache in caches(&query.model.kinds[kinds[*layer]], &cut) {
            let sum = sums.entry(cache.class).or_default();
            sum.0 += 1;
            sum.1 += cache.page_bytes(block);
        }
    }
    if sums.is_empty() {
        return Err(Error::field(
            "model",
            "no cache",
            "at least one layer of every stage keeps keys or values",
        ));
    }
    let need = |class: Class| match class {
        Class::Window(w) | Class::Chunk(w) => w.min(query.max_len).div_ceil(block),
        Class::State => 1,
        Class::Full | Class::Latent => query.max_len.div_ceil(block),
    };
    let whole_request: f64 = sums
        .iter()
        .map(|(c, (_, bytes))| (need(*c) * bytes) as f64)
        .sum();
    let pool = |(class, (layers, bytes)): (&Class, &(u64, u64))| {
        let share = (need(*class) * bytes) as f64 / whole_request;
        let group = GroupReport {
            class: *class,
            layers: *layers,
            block_tokens: block,
            blocks_per_request: need(*class),
            own_blocks: Some(whole(memory * share, *bytes)),
        };
        (group, *bytes)
    };
    Ok(sums.iter().map(pool).collect())
}

fn report(
    query: &Query,
    held: &[Vec<usize>],
    block: u64,
    groups: &[(f64, Vec<(GroupReport, u64)>)],
    stages: Vec<StageReport>,
) -> Report {
    let limiting = (0..groups.len())
        .min_by(|a, b| groups[*a].0.total_cmp(&groups[*b].0))
        .unwrap_or(0);
    let blocks = stages[limiting].num_blocks;
    let need = query.max_len.div_ceil(block);
    let bytes = held.iter().map(|own| query.token_bytes(own));
    let (all, growth) = bytes.fold((0.0, 0.0), |a: (f64, f64), b| (a.0.max(b.0), a.1.max(b.1)));
    let request_bytes = groups[limiting]
        .1
        .iter()
        .map(|(g, bytes)| g.blocks_per_request * bytes)
        .sum();
    let fits = groups[limiting].0 >= 1.0;
    Report {
        num_blocks: blocks,
        usable_blocks: blocks,
        block_tokens: block,
        tokens: blocks * block,
        max_concurrency: groups[limiting].0,
        bytes_per_token_per_gpu: all,
        growth_bytes_per_token_per_gpu: growth,
        bytes_per_block: stages[limiting].bytes_per_block,
        blocks_per_request: need,
        fits,
        shortfall_blocks: if fits {
            0
        } else {
            need.saturating_sub(blocks).max(1)
        },
        max_len_that_fits: query.max_len.min(blocks * block),
        request_bytes,
        groups: groups[limiting].1.iter().map(|(g, _)| *g).collect(),
        limiting_stage: limiting,
        state_padding_ratio: 0.0,
        stages,
        log_lines: None,
    }
}
