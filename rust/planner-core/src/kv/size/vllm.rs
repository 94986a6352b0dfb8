//! vLLM: blocks of equal pages, shared by groups of layers.
//!
//! `num_blocks = min over workers ⌊available / bytes per block⌋`; block 0 is the null block;
//! `concurrency = num_blocks / Σ over groups ⌈bytes of the longest request / page⌉`. Read in vLLM
//! 0.14.1 and 0.33.0 (`v1/core/kv_cache_utils.py`), reproduced against start-up logs.

use super::{
    GroupReport, LogLines, MambaMode, Query, Report, StageReport, stage_memory, stages, whole,
};
use crate::error::{Error, Result};
use crate::kv::layer::{Cache, Class, caches};
use crate::kv::plan::{self, Plan, Rules, plan};
use crate::kv::prefix::hybrid as prefix;

/// First version that logs concurrency × length and groups with a slack of 1.5.
const NEW_LOG: (u32, u32) = (0, 20);

/// Tokens of a block if none is stated.
fn default_block(query: &Query) -> u64 {
    let cut = query.cut();
    let latent = |c: &Cache| c.class == Class::Latent;
    let any = query
        .model
        .kinds
        .iter()
        .flat_map(|k| caches(k, &cut))
        .any(|c| latent(&c));
    if any { 64 } else { 16 }
}

fn rules(query: &Query, latent: bool) -> Rules {
    let new = query.vllm_version() >= NEW_LOG;
    let mode = query.mamba_mode.unwrap_or(if new {
        MambaMode::Align
    } else {
        MambaMode::None
    });
    Rules {
        block_tokens: query.block_tokens.unwrap_or_else(|| default_block(query)),
        group_slack: if new { 1.5 } else { 1.25 },
        max_len: query.max_len,
        inflight_tokens: query.batches_in_flight * query.max_batched_tokens,
        context_ranks: query.dcp * query.pcp,
        state_blocks: query.draft_tokens + if mode == MambaMode::Align { 2 } else { 1 },
        align_tokens: if latent { 64 } else { 16 },
    }
}

/// Caches of all layers, each with the index of its layer.
fn all_caches(query: &Query) -> Vec<(usize, Cache)> {
    let cut = query.cut();
    let kinds = query.layer_kinds();
    let each = |(i, kind): (usize, &usize)| {
        caches(&query.model.kinds[*kind], &cut)
            .into_iter()
            .map(move |c| (i, c))
    };
    kinds.iter().enumerate().flat_map(each).collect()
}

/// A plan and what depends on it, for many layouts.
pub struct Prepared {
    /// Groups of layers.
    pub plan: Plan,
    rules: Rules,
    layers: Vec<(usize, Cache)>,
}

impl Prepared {
    /// Plans the layers of a query; its stages, memory and lengths may vary later.
    ///
    /// # Errors
    /// As [`super::size`].
    pub fn new(query: &Query) -> Result<Self> {
        query.check()?;
        let layers = all_caches(query);
        let rules = rules(query, layers.iter().any(|(_, c)| c.class == Class::Latent));
        Ok(Self {
            plan: plan(&layers, &rules)?,
            rules,
            layers,
        })
    }

    /// The rules, with the batches of a query.
    #[must_use]
    pub fn rules_for(&self, query: &Query) -> Rules {
        Rules {
            inflight_tokens: query.batches_in_flight * query.max_batched_tokens,
            ..self.rules
        }
    }

    /// Blocks of a request of `len` tokens.
    #[must_use]
    pub fn blocks_of(&self, query: &Query, len: u64) -> u64 {
        let rules = self.rules_for(query).of_length(len);
        self.plan
            .groups
            .iter()
            .map(|g| rules.blocks(g.class, g.block_tokens))
            .sum()
    }

    /// Bytes of a block on each stage.
    ///
    /// # Errors
    /// The layers of the stages do not add up.
    pub fn stage_bytes(&self, query: &Query) -> Result<Vec<u64>> {
        let bytes = |own: &Vec<usize>| self.plan.bytes_per_block(|i| own.binary_search(&i).is_ok());
        Ok(held(query)?.iter().map(bytes).collect())
    }
}

/// Groups of layers as the prefix cache sees them, in the engine's order.
///
/// # Errors
/// As [`super::size`]; ranks that share the tokens of a request.
pub fn prefix_groups(query: &Query) -> Result<Vec<prefix::Group>> {
    let ranks = query.dcp * query.pcp;
    if ranks > 1 {
        let rule = "prefix caches under context parallelism are not known";
        return Err(Error::field("dcp", ranks, rule));
    }
    let group = |g: &plan::Group| {
        let block_tokens = g.block_tokens;
        match g.class {
            Class::Full | Class::Latent => prefix::Group::Full { block_tokens },
            Class::Window(window) => prefix::Group::Window {
                block_tokens,
                window,
            },
            Class::Chunk(chunk) => prefix::Group::Chunk {
                block_tokens,
                chunk,
            },
            Class::State => prefix::Group::State { block_tokens },
        }
    };
    Ok(Prepared::new(query)?
        .plan
        .groups
        .iter()
        .map(group)
        .collect())
}

/// Memory for the cache on each stage, bytes.
///
/// # Errors
/// As [`Prepared::stage_bytes`].
pub fn memory(query: &Query) -> Result<Vec<f64>> {
    Ok(stage_memory(query, &held(query)?)?
        .into_iter()
        .map(|(bytes, _)| bytes)
        .collect())
}

/// Answers a query for vLLM.
///
/// # Errors
/// As [`super::size`].
pub fn size(query: &Query) -> Result<Report> {
    let prepared = Prepared::new(query)?;
    let held = held(query)?;
    let workers = workers(query, &prepared.plan, &held)?;
    Ok(report(
        query,
        &prepared.plan,
        &prepared.rules,
        &prepared.layers,
        &held,
        workers,
    ))
}

/// Layers of each stage.
fn held(query: &Query) -> Result<Vec<Vec<usize>>> {
    let total = query.model.layers.len() as u64;
    let counts = query
        .pp_layers
        .clone()
        .unwrap_or_else(|| stages::even_vllm(total, query.pp));
    stages::assign(&counts, total, query.layer_kinds().len() as u64 - total)
}

fn workers(query: &Query, plan: &Plan, held: &[Vec<usize>]) -> Result<Vec<StageReport>> {
    let memory = stage_memory(query, held)?;
    let each = |(own, (available, terms)): (&Vec<usize>, (f64, _))| {
        let bytes_per_block = plan.bytes_per_block(|i| own.binary_search(&i).is_ok());
        StageReport {
            layers: own.len() as u64,
            bytes_per_block,
            available_bytes: available,
            num_blocks: if bytes_per_block == 0 {
                u64::MAX
            } else {
                whole(available, bytes_per_block)
            },
            memory: terms,
        }
    };
    Ok(held.iter().zip(memory).map(each).collect())
}

fn report(
    query: &Query,
    plan: &Plan,
    rules: &Rules,
    layers: &[(usize, Cache)],
    held: &[Vec<usize>],
    stages: Vec<StageReport>,
) -> Report {
    let limiting = (0..stages.len())
        .min_by_key(|i| stages[*i].num_blocks)
        .unwrap_or(0);
    let num_blocks = stages[limiting].num_blocks;
    let need = plan.blocks_per_request();
    let concurrency = num_blocks as f64 / need as f64;
    let over_groups =
        num_blocks / plan.groups.len() as u64 * plan.block_tokens() * rules.context_ranks;
    // Exact: ⌊n·max_len / need⌋ in integers, as int(concurrency · max_len) is meant.
    let times_length =
        (u128::from(num_blocks) * u128::from(query.max_len) / u128::from(need)) as u64;
    let new = query.vllm_version() >= NEW_LOG;
    let bytes = held.iter().map(|own| query.token_bytes(own));
    let (all, growth) = bytes.fold((0.0, 0.0), |a: (f64, f64), b| (a.0.max(b.0), a.1.max(b.1)));
    Report {
        num_blocks,
        usable_blocks: num_blocks.saturating_sub(1),
        block_tokens: plan.block_tokens(),
        tokens: if new { times_length } else { over_groups },
        max_concurrency: concurrency,
        bytes_per_token_per_gpu: all / rules.context_ranks as f64,
        growth_bytes_per_token_per_gpu: growth / rules.context_ranks as f64,
        bytes_per_block: stages[limiting].bytes_per_block,
        blocks_per_request: need,
        fits: num_blocks >= need,
        shortfall_blocks: need.saturating_sub(num_blocks),
        max_len_that_fits: longest(query, rules, layers, &stages[limiting], new),
        request_bytes: request_bytes(plan, rules, layers, &stages[limiting], new),
        groups: plan.groups.iter().map(group).collect(),
        stages,
        limiting_stage: limiting,
        state_padding_ratio: plan.state_padding,
        log_lines: Some(LogLines {
            blocks_over_groups: over_groups,
            concurrency_times_length: times_length,
        }),
    }
}

fn group(group: &crate::kv::plan::Group) -> GroupReport {
    GroupReport {
        class: group.class,
        layers: group.layers.len() as u64,
        block_tokens: group.block_tokens,
        blocks_per_request: group.blocks_per_request,
        own_blocks: None,
    }
}

/// Memory that the start-up check asks for one request: whole-model pages against one worker's
/// memory up to 0.19, blocks of the worker later.
fn request_bytes(
    plan: &Plan,
    rules: &Rules,
    layers: &[(usize, Cache)],
    stage: &StageReport,
    new: bool,
) -> u64 {
    if new {
        return plan.blocks_per_request() * stage.bytes_per_block;
    }
    let block = plan.block_tokens();
    layers
        .iter()
        .map(|(_, c)| rules.blocks(c.class, block) * c.page_bytes(block))
        .sum()
}

/// Longest request that the start-up check would pass, by bisection.
fn longest(
    query: &Query,
    rules: &Rules,
    layers: &[(usize, Cache)],
    stage: &StageReport,
    new: bool,
) -> u64 {
    let fits = |max_len: u64| {
        let rules = Rules { max_len, ..*rules };
        plan(layers, &rules).is_ok_and(|p| {
            request_bytes(&p, &rules, layers, stage, new) as f64 <= stage.available_bytes
        })
    };
    let (mut low, mut high) = (0, query.max_len);
    if fits(high) {
        return high;
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
