//! How vLLM groups layers so that all groups share one pool of equal pages.

use std::collections::BTreeMap;

use super::layer::{Cache, Class};
use crate::error::{Error, Result};

/// Rules of a vLLM generation and of its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Tokens in a block, as configured.
    pub block_tokens: u64,
    /// Take the larger group size where the largest type has fewer than this many times the layers
    /// of the smallest: 1.25 up to 0.14, 1.5 in 0.33.
    pub group_slack: f64,
    /// Longest request, tokens.
    pub max_len: u64,
    /// Tokens that may be computed but not yet freed: batches in flight × tokens of a batch.
    pub inflight_tokens: u64,
    /// Ranks that share the tokens of a request (decode and prefill context parallel).
    pub context_ranks: u64,
    /// State blocks of one request in a group: 1, or 2 where states are checkpointed for prefix
    /// caching, plus the draft tokens.
    pub state_blocks: u64,
    /// Multiple to which the attention block of a model with states is rounded up.
    pub align_tokens: u64,
}

/// Layers that share a block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Tokens that its layers keep.
    pub class: Class,
    /// Tokens in a block.
    pub block_tokens: u64,
    /// Index and page bytes of each layer's cache.
    pub layers: Vec<(usize, u64)>,
    /// Blocks of the longest request.
    pub blocks_per_request: u64,
}

/// The pool's plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Groups, in order of their first layer's type.
    pub groups: Vec<Group>,
    /// Layers of a full group (the others are padded to it).
    pub group_size: u64,
    /// Bytes that one layer takes in one block, where all layers take the same.
    pub page_bytes: u64,
    /// Padding of a state's page over the state.
    pub state_padding: f64,
}

/// Attention block of a model with states: the smallest multiple of `align` whose page holds a
/// state, `align·⌈state / (align·bytes per token)⌉`.
///
/// ```
/// use planner_core::kv::plan::state_block_tokens;
/// assert_eq!(state_block_tokens(3_207_168, 4096, 16), 784);  // Qwen3.5-27B, bf16
/// assert_eq!(state_block_tokens(1_603_584, 1024, 16), 1568); // the same, TP 2, fp8
/// assert_eq!(state_block_tokens(2_146_304, 1024, 16), 2096);
/// ```
#[must_use]
pub const fn state_block_tokens(state_bytes: u64, token_bytes: u64, align: u64) -> u64 {
    align * state_bytes.div_ceil(align * token_bytes)
}

impl Rules {
    /// The same for another longest request.
    #[must_use]
    pub const fn of_length(&self, max_len: u64) -> Self {
        Self { max_len, ..*self }
    }

    /// Blocks of the longest request in a layer or group of one class.
    #[must_use]
    pub fn blocks(&self, class: Class, block: u64) -> u64 {
        let len = self.max_len.div_ceil(self.context_ranks);
        match class {
            Class::Full | Class::Latent => len.div_ceil(block),
            Class::Window(w) => {
                (w.saturating_sub(1) + self.inflight_tokens)
                    .min(len)
                    .div_ceil(block)
                    + 1
            }
            Class::Chunk(c) => (c + self.inflight_tokens).min(len).div_ceil(block),
            Class::State => self.state_blocks,
        }
    }
}

/// Groups the caches of all layers (index of the layer, cache).
///
/// # Errors
/// Nothing is cached, or pages cannot be made equal.
pub fn plan(layers: &[(usize, Cache)], rules: &Rules) -> Result<Plan> {
    if layers.is_empty() {
        return Err(Error::field(
            "model",
            "no cache",
            "at least one layer keeps keys, values or a state",
        ));
    }
    let block = block_tokens(layers, rules);
    if one_type(layers) {
        return Ok(one_group(layers, block, rules));
    }
    let page = layers
        .iter()
        .map(|(_, c)| c.page_bytes(block))
        .max()
        .unwrap_or(0);
    // Types of layers; a small page gets a longer block if a whole number of them fills the page.
    let mut types: BTreeMap<(Class, u64), Vec<(usize, u64)>> = BTreeMap::new();
    for (index, cache) in layers {
        let own = cache.page_bytes(block);
        let longer = if own > 0 && page % own == 0 {
            page / own
        } else {
            1
        };
        let tokens = if cache.class == Class::State {
            block
        } else {
            block * longer
        };
        types
            .entry((cache.class, tokens))
            .or_default()
            .push((*index, page));
    }
    Ok(split(types, page, layers, rules))
}

/// The configured block, or that which holds a state.
fn block_tokens(layers: &[(usize, Cache)], rules: &Rules) -> u64 {
    let state = layers
        .iter()
        .filter(|(_, c)| c.class == Class::State)
        .map(|(_, c)| c.entry_bytes)
        .max();
    let token = layers
        .iter()
        .filter(|(_, c)| c.class != Class::State)
        .map(|(_, c)| c.entry_bytes)
        .max();
    match (state, token) {
        (Some(state), Some(token)) => {
            rules
                .block_tokens
                .max(state_block_tokens(state, token, rules.align_tokens))
        }
        _ => rules.block_tokens,
    }
}

/// All layers keep the same tokens, whatever their widths: pages are summed in one group.
fn one_type(layers: &[(usize, Cache)]) -> bool {
    let first = layers[0].1.class;
    layers.iter().all(|(_, c)| c.class == first)
}

fn one_group(layers: &[(usize, Cache)], block: u64, rules: &Rules) -> Plan {
    let class = layers[0].1.class;
    let pages: Vec<(usize, u64)> = layers
        .iter()
        .map(|(i, c)| (*i, c.page_bytes(block)))
        .collect();
    Plan {
        group_size: pages.len() as u64,
        page_bytes: pages[0].1,
        state_padding: 0.0,
        groups: vec![Group {
            class,
            block_tokens: block,
            layers: pages,
            blocks_per_request: rules.blocks(class, block),
        }],
    }
}

/// Cuts each type into groups of equal size: the fewest layers of a type, or the most if that is
/// less than `group_slack` times it. Layers are dealt round robin, so that pipeline stages share.
fn split(
    types: BTreeMap<(Class, u64), Vec<(usize, u64)>>,
    page_bytes: u64,
    layers: &[(usize, Cache)],
    rules: &Rules,
) -> Plan {
    let counts = || types.values().map(|l| l.len() as u64);
    let (least, most) = (counts().min().unwrap_or(1), counts().max().unwrap_or(1));
    let size = if (most as f64) < least as f64 * rules.group_slack {
        most
    } else {
        least
    };
    let mut groups = Vec::new();
    for ((class, block_tokens), members) in &types {
        let n = members.len().div_ceil(size as usize);
        for first in 0..n {
            groups.push(Group {
                class: *class,
                block_tokens: *block_tokens,
                layers: members.iter().skip(first).step_by(n).copied().collect(),
                blocks_per_request: rules.blocks(*class, *block_tokens),
            });
        }
    }
    let state = layers
        .iter()
        .filter(|(_, c)| c.class == Class::State)
        .map(|(_, c)| c.entry_bytes)
        .max();
    Plan {
        groups,
        group_size: size,
        page_bytes,
        state_padding: state.map_or(0.0, |s| page_bytes as f64 / s as f64 - 1.0),
    }
}

impl Plan {
    /// Blocks of the longest request, over all groups.
    #[must_use]
    pub fn blocks_per_request(&self) -> u64 {
        self.groups.iter().map(|g| g.blocks_per_request).sum()
    }

    /// Bytes of a block on a worker that holds the layers for which `held` is true: one group sums
    /// its pages; several lie side by side in as many pages as the fullest has layers.
    #[must_use]
    pub fn bytes_per_block(&self, held: impl Fn(usize) -> bool) -> u64 {
        let own = |g: &Group| {
            g.layers
                .iter()
                .filter(|(i, _)| held(*i))
                .map(|(_, page)| page)
                .sum()
        };
        self.groups.iter().map(own).max().unwrap_or(0)
    }

    /// Shortest block, tokens.
    #[must_use]
    pub fn block_tokens(&self) -> u64 {
        self.groups
            .iter()
            .map(|g| g.block_tokens)
            .min()
            .unwrap_or(1)
    }
}

#[cfg(test)]
mod tests;
