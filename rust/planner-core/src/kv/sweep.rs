//! Block sizes, formats and layouts at once: what each wastes, holds and costs.
//!
//! vLLM's pool. Parts are computed once and combined: a plan per (block, format, tp, dcp), memory per
//! (tp, pp, share, chunk), waste per block, saved tokens and chunks per (block, prefix, chunk). What
//! is left of a cell, all lengths and prefixes of one layout, is copies of a few values into columns.

use std::collections::HashMap;

use serde::Deserialize;

use super::format::KvFormat;
use super::fragment::{Lengths, Waste};
use super::layer::Class;
use super::size::vllm::Prepared;
use super::size::{Memory, Query};
use crate::error::{Error, Result};
use crate::table::Table;

mod cell;
mod prompts;
mod rows;

use cell::{Layout, Pool};
use prompts::Prompts;
pub use rows::COLUMNS;

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
pub const MAX_ROWS: u64 = 1_000_000_000;
/// Most rows of a cell, lengths × prefixes: what is written at once.
pub const MAX_CELL: u64 = 1 << 20;

/// What a block size does to the lengths, whatever the layout.
struct BlockPart {
    waste: Waste,
    /// By prefix: saved share of prompt tokens.
    saved: Vec<f64>,
    /// By chunk, then prefix: chunks of a prompt.
    chunks: Vec<Vec<f64>>,
}

/// The plan of one (block, format, tp, dcp); none where the engine refuses it.
struct PlanPart {
    prepared: Option<Prepared>,
    query: Query,
    /// Bytes of a block on each stage, by pp.
    stage_bytes: Vec<Vec<u64>>,
    /// Mean blocks of a request, by chunk.
    mean_need: Vec<f64>,
}

/// A sweep that gives its rows in the order of the axes, some at a time.
pub struct Sweep {
    axes: Axes,
    base: Query,
    lengths: Lengths,
    prompts: Prompts,
    /// By tokens of the block that an engine makes of the configured one.
    blocks: HashMap<u64, BlockPart>,
    plan: Option<(usize, PlanPart)>,
    /// Memory of each stage by (tp, pp, share, chunk).
    memory: HashMap<[usize; 4], Vec<f64>>,
    /// Blocks that requests of the given lengths take in a group, summed.
    group_blocks: HashMap<(Class, u64, u64, u64), u64>,
    next: usize,
    cells: usize,
}

impl Sweep {
    /// Checks the axes and prepares what depends on lengths only.
    ///
    /// # Errors
    /// An empty axis, too many rows, or a value that makes no sense.
    pub fn new(base: &Query, axes: &Axes, lengths: &Lengths) -> Result<Self> {
        check(axes, lengths)?;
        let mut sweep = Self {
            cells: shape(axes).iter().product(),
            axes: axes.clone(),
            base: base.clone(),
            prompts: Prompts::new(lengths),
            lengths: lengths.clone(),
            blocks: HashMap::new(),
            plan: None,
            memory: HashMap::new(),
            group_blocks: HashMap::new(),
            next: 0,
        };
        sweep.add_blocks(&axes.block_tokens);
        Ok(sweep)
    }

    /// Prepares blocks of these lengths.
    fn add_blocks(&mut self, blocks: &[u64]) {
        let axes = &self.axes;
        let found = self
            .prompts
            .found(blocks, &axes.prefix_tokens, &axes.chunk_tokens);
        let requests = self.lengths.requests() as f64;
        // All requests but the first find the prefix.
        let share = (requests - 1.0) / requests / self.prompts.sum_tokens().max(1) as f64;
        let chunks = axes.chunk_tokens.len();
        for (block, found) in blocks.iter().zip(found) {
            let mean = |c: usize| {
                let by_prefix = found.chunks.iter().skip(c).step_by(chunks);
                by_prefix.map(|n| *n as f64 / requests).collect()
            };
            let part = BlockPart {
                waste: self.lengths.waste(*block),
                saved: found.hit_tokens.iter().map(|t| *t as f64 * share).collect(),
                chunks: (0..chunks).map(mean).collect(),
            };
            self.blocks.insert(*block, part);
        }
    }

    /// Rows of the whole sweep.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.cells as u64 * (self.axes.max_len.len() * self.axes.prefix_tokens.len()) as u64
    }

    /// Empties `table` and writes the next rows into it, whole cells up to at least `least` rows;
    /// false if none were left. The memory of the table is used again.
    ///
    /// # Errors
    /// A layout that makes no sense.
    pub fn fill(&mut self, table: &mut Table, least: usize) -> Result<bool> {
        if table.data.is_empty() {
            *table = rows::empty();
        }
        rows::clear(table);
        let started = self.next;
        let cell = self.axes.max_len.len() * self.axes.prefix_tokens.len();
        rows::reserve(
            table,
            ((self.cells - started) * cell).min(least.saturating_add(cell)),
        );
        while self.next < self.cells && table.data[0].len() < least {
            self.cell(table)?;
            self.next += 1;
        }
        Ok(self.next > started)
    }

    fn cell(&mut self, table: &mut Table) -> Result<()> {
        let [block, format, tp, dcp, pp, share, chunk] = digits(self.next, shape(&self.axes));
        let plan_at = self.next / (shape(&self.axes)[4..].iter().product::<usize>());
        let memory = self.memory_of([tp, pp, share, chunk])?;
        if self.plan.as_ref().is_none_or(|(at, _)| *at != plan_at) {
            let plan = self.plan_of([block, format, tp, dcp])?;
            if let Some(prepared) = &plan.prepared
                && !self.blocks.contains_key(&prepared.plan.block_tokens())
            {
                self.add_blocks(&[prepared.plan.block_tokens()]);
            }
            self.plan = Some((plan_at, plan));
        }
        let Some((_, plan)) = &mut self.plan else {
            return Ok(());
        };
        plan.query.pp = self.axes.pp[pp];
        plan.query.max_batched_tokens = self.axes.chunk_tokens[chunk];
        let block = self.axes.block_tokens[block];
        let pool = match &plan.prepared {
            Some(p) if plan.query.pp > plan.query.model.layers.len() as u64 => {
                Pool::refused(p.plan.block_tokens(), rows::LAYERS)
            }
            Some(p) => Pool::of(p, &plan.stage_bytes[pp], &memory, plan.mean_need[chunk]),
            None => Pool::refused(block, rows::CONTEXT),
        };
        let layout = Layout {
            pool: &pool,
            part: &self.blocks[&pool.block_tokens],
            share: self.axes.share[share],
            chunk,
            code: rows::code(self.axes.kv_format[format]),
        };
        cell::write(table, &self.axes, plan, &layout);
        Ok(())
    }

    fn plan_of(&mut self, [block, format, tp, dcp]: [usize; 4]) -> Result<PlanPart> {
        let mut query = Query {
            block_tokens: Some(self.axes.block_tokens[block]),
            kv_format: self.axes.kv_format[format],
            tp: self.axes.tp[tp],
            dcp: self.axes.dcp[dcp],
            ..self.base.clone()
        };
        let prepared = match Prepared::new(&query) {
            Ok(prepared) => prepared,
            // The engine refuses these context ranks: rows with a status.
            Err(_) if query.dcp > 1 => {
                return Ok(PlanPart {
                    prepared: None,
                    query,
                    stage_bytes: Vec::new(),
                    mean_need: Vec::new(),
                });
            }
            Err(error) => return Err(error),
        };
        let mut stage_bytes = Vec::new();
        for pp in &self.axes.pp {
            query.pp = *pp;
            stage_bytes.push(prepared.stage_bytes(&query)?);
        }
        let mut mean_need = Vec::new();
        for chunk in &self.axes.chunk_tokens {
            query.max_batched_tokens = *chunk;
            let rules = prepared.rules_for(&query);
            let mut sum = 0;
            for group in &prepared.plan.groups {
                // Only windows and chunks look at what is in flight.
                let inflight = match group.class {
                    Class::Window(_) | Class::Chunk(_) => rules.inflight_tokens,
                    _ => 0,
                };
                let key = (group.class, group.block_tokens, inflight, query.dcp);
                let lengths = &self.lengths;
                sum += *self.group_blocks.entry(key).or_insert_with(|| {
                    let each = |(p, o, n): &(u64, u64, u64)| {
                        let rules = rules.of_length(p + o);
                        rules.blocks(group.class, group.block_tokens) * n
                    };
                    lengths.rows.iter().map(each).sum()
                });
            }
            mean_need.push(sum as f64 / self.lengths.requests() as f64);
        }
        Ok(PlanPart {
            prepared: Some(prepared),
            query,
            stage_bytes,
            mean_need,
        })
    }

    /// Memory for the cache on each stage.
    fn memory_of(&mut self, key: [usize; 4]) -> Result<Vec<f64>> {
        if let Some(known) = self.memory.get(&key) {
            return Ok(known.clone());
        }
        let [tp, pp, share, chunk] = key;
        let mut query = Query {
            tp: self.axes.tp[tp],
            pp: self.axes.pp[pp],
            max_batched_tokens: self.axes.chunk_tokens[chunk],
            ..self.base.clone()
        };
        if let Memory::Device(device) = &mut query.memory {
            device.share = self.axes.share[share];
        }
        let memory = super::size::vllm::memory(&query)?;
        self.memory.insert(key, memory.clone());
        Ok(memory)
    }
}

/// Lengths of the axes that make a cell, the fastest last.
fn shape(axes: &Axes) -> [usize; 7] {
    [
        axes.block_tokens.len(),
        axes.kv_format.len(),
        axes.tp.len(),
        axes.dcp.len(),
        axes.pp.len(),
        axes.share.len(),
        axes.chunk_tokens.len(),
    ]
}

/// Index along each axis.
fn digits(mut cell: usize, shape: [usize; 7]) -> [usize; 7] {
    let mut at = [0; 7];
    for (digit, n) in at.iter_mut().zip(shape).rev() {
        *digit = cell % n;
        cell /= n;
    }
    at
}

/// Sweeps every combination into one table.
///
/// # Errors
/// As [`Sweep::new`] and [`Sweep::fill`].
pub fn sweep(base: &Query, axes: &Axes, lengths: &Lengths) -> Result<Table> {
    let mut table = rows::empty();
    Sweep::new(base, axes, lengths)?.fill(&mut table, usize::MAX)?;
    Ok(table)
}

fn check(axes: &Axes, lengths: &Lengths) -> Result<()> {
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
    let cell = (axes.max_len.len() as u64).saturating_mul(axes.prefix_tokens.len() as u64);
    for (field, value, most) in [
        ("rows", rows, MAX_ROWS),
        ("max_model_len × shared_prefix", cell, MAX_CELL),
    ] {
        if value > most {
            let rule = format!("at most {most}; take fewer values");
            return Err(Error::field(field, value, rule));
        }
    }
    for (field, values, least) in [
        ("block_size", &axes.block_tokens, 1),
        ("chunk", &axes.chunk_tokens, 1),
        ("max_model_len", &axes.max_len, 1),
        ("tp", &axes.tp, 1),
        ("pp", &axes.pp, 1),
        ("dcp", &axes.dcp, 1),
        ("shared_prefix", &axes.prefix_tokens, 0),
    ] {
        if let Some(bad) = values.iter().find(|v| **v < least || **v > 1 << 31) {
            let rule = format!("must be between {least} and 2^31");
            return Err(Error::field(field, bad, rule));
        }
    }
    if let Some(bad) = axes.share.iter().find(|s| !(**s > 0.0 && **s <= 1.0)) {
        return Err(Error::field("share", bad, "must be above 0 and at most 1"));
    }
    lengths.check()
}

#[cfg(test)]
mod tests;
