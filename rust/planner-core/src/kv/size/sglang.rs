//! SGLang: token slots.
//!
//! `tokens = ⌊(free after loading − total·(1 − mem_fraction_static)) / bytes per token⌋`, floored to
//! whole pages (read in SGLang 0.5.5, `model_runner.profile_max_num_token`). Sliding-window layers
//! get `swa_full_tokens_ratio` of the slots of full layers; recurrent states get the share
//! r / (1 + r) of the memory with r = `mamba_full_memory_ratio`.

use super::{GroupReport, Query, Report, StageReport, stage_memory, stages, whole};
use crate::error::{Error, Result};
use crate::kv::layer::{Cache, Class, caches};

/// Bytes of one stage's layers, by what they keep.
#[derive(Default)]
struct Cells {
    full: f64,
    window: f64,
    state: u64,
    windowed_tokens: u64,
    /// Caches of full layers, of windowed ones and of states.
    layers: [u64; 3],
}

/// Answers a query for SGLang. `num_blocks` counts pages.
///
/// # Errors
/// As [`super::size`].
pub fn size(query: &Query) -> Result<Report> {
    let page = query.block_tokens.unwrap_or(1);
    let total = query.model.layers.len() as u64;
    let counts = query
        .pp_layers
        .clone()
        .unwrap_or_else(|| stages::even_first(total, query.pp));
    let held = stages::assign(&counts, total, query.layer_kinds().len() as u64 - total)?;
    let memory = stage_memory(query, &held)?;
    let mut reports = Vec::new();
    let mut groups = Vec::new();
    for (own, (available, terms)) in held.iter().zip(memory) {
        let cells = cells(query, own);
        if cells.full + cells.window == 0.0 {
            return Err(Error::field(
                "model",
                "no cache",
                "SGLang sizes token slots: at least one layer keeps tokens",
            ));
        }
        let (tokens, states) = slots(query, &cells, available);
        let pages = tokens / page;
        let bytes = ((cells.full + cells.window) * page as f64).round() as u64;
        if groups.is_empty()
            || pages
                < reports
                    .iter()
                    .map(|s: &StageReport| s.num_blocks)
                    .min()
                    .unwrap_or(0)
        {
            groups = report_groups(query, &cells, pages, page, states);
        }
        reports.push(StageReport {
            layers: own.len() as u64,
            bytes_per_block: bytes,
            available_bytes: available,
            num_blocks: pages,
            memory: terms,
        });
    }
    Ok(report(query, &held, page, groups, reports))
}

fn cells(query: &Query, own: &[usize]) -> Cells {
    let (cut, kinds) = (query.cut(), query.layer_kinds());
    let mut cells = Cells::default();
    for layer in own {
        for cache in caches(&query.model.kinds[kinds[*layer]], &cut) {
            cells.add(&cache);
        }
    }
    cells
}

impl Cells {
    fn add(&mut self, cache: &Cache) {
        match cache.class {
            Class::Full | Class::Latent => {
                self.full += cache.bytes_per_token();
                self.layers[0] += 1;
            }
            Class::Window(w) | Class::Chunk(w) => {
                self.window += cache.bytes_per_token();
                self.windowed_tokens = w;
                self.layers[1] += 1;
            }
            Class::State => {
                self.state += cache.entry_bytes;
                self.layers[2] += 1;
            }
        }
    }
}

/// Token slots of full layers, and states.
fn slots(query: &Query, cells: &Cells, available: f64) -> (u64, Option<u64>) {
    let share = if cells.state > 0 {
        query.mamba_ratio / (1.0 + query.mamba_ratio)
    } else {
        0.0
    };
    let rest = available * (1.0 - share);
    let per_token = if cells.full > 0.0 {
        cells.full + query.swa_ratio * cells.window
    } else {
        cells.window
    };
    let tokens = if rest > 0.0 {
        (rest / per_token) as u64
    } else {
        0
    };
    (
        tokens,
        (cells.state > 0).then(|| whole(available * share, cells.state)),
    )
}

fn report_groups(
    query: &Query,
    cells: &Cells,
    pages: u64,
    page: u64,
    states: Option<u64>,
) -> Vec<GroupReport> {
    let need = query.max_len.div_ceil(page);
    let [full, windowed, recurrent] = cells.layers;
    let group = |class, layers, blocks_per_request, own_blocks| GroupReport {
        class,
        layers,
        block_tokens: page,
        blocks_per_request,
        own_blocks: Some(own_blocks),
    };
    let mut groups = Vec::new();
    if cells.full > 0.0 {
        groups.push(group(Class::Full, full, need, pages));
    }
    if cells.window > 0.0 {
        let own = if cells.full > 0.0 {
            (pages as f64 * query.swa_ratio) as u64
        } else {
            pages
        };
        let window = Class::Window(cells.windowed_tokens);
        groups.push(group(
            window,
            windowed,
            cells.windowed_tokens.min(query.max_len).div_ceil(page),
            own,
        ));
    }
    if let Some(states) = states {
        groups.push(group(Class::State, recurrent, 1, states));
    }
    groups
}

fn report(
    query: &Query,
    held: &[Vec<usize>],
    page: u64,
    groups: Vec<GroupReport>,
    stages: Vec<StageReport>,
) -> Report {
    let limiting = (0..stages.len())
        .min_by_key(|i| stages[*i].num_blocks)
        .unwrap_or(0);
    let pages = stages[limiting].num_blocks;
    let need = query.max_len.div_ceil(page);
    let bytes = held.iter().map(|own| query.token_bytes(own));
    let (all, growth) = bytes.fold((0.0, 0.0), |a: (f64, f64), b| (a.0.max(b.0), a.1.max(b.1)));
    let per_group = groups
        .iter()
        .map(|g| g.own_blocks.unwrap_or(pages) as f64 / g.blocks_per_request as f64);
    let concurrency = per_group.fold(f64::INFINITY, f64::min);
    Report {
        num_blocks: pages,
        usable_blocks: pages,
        block_tokens: page,
        tokens: pages * page,
        max_concurrency: concurrency,
        bytes_per_token_per_gpu: all,
        growth_bytes_per_token_per_gpu: growth,
        bytes_per_block: stages[limiting].bytes_per_block,
        blocks_per_request: need,
        fits: pages >= need,
        shortfall_blocks: need.saturating_sub(pages),
        max_len_that_fits: query.max_len.min(pages * page),
        request_bytes: need * stages[limiting].bytes_per_block,
        groups,
        limiting_stage: limiting,
        state_padding_ratio: 0.0,
        stages,
        log_lines: None,
    }
}
