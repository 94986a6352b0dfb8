//! A pool that groups of layers share: each has blocks of its own for the same tokens.
//!
//! As vLLM 0.33 does it where every block is retained (`prefix_cache_retention_interval` None), one
//! request at a time: the longest prefix that all groups accept is found ([`super::hybrid`]); the rest
//! is computed in chunks. After each chunk a group gives back the blocks
//! that it needs no more (those behind its window, states of earlier checkpoints), tail first; at the
//! end the groups give back what they hold, one group after another, tail first. A state is kept at
//! the end of each chunk, and chunks end at multiples of its block.
//!
//! What a request touches depends on what it found, so capacities differ in more than size and no
//! curve exists: each is replayed. Within a request, though, only the order of giving back matters:
//! what it holds is never evicted, so at its end the pool holds the blocks given back last.

use super::hybrid::{Group, align, hit_tokens};
use super::recency::{Along, Recency, Run};
use crate::error::{Error, Result};

/// A pool of one capacity for several groups.
pub struct Layered {
    capacity: u64,
    chunk_tokens: u64,
    groups: Vec<Group>,
    /// Which blocks of a group are cached, for the request at hand.
    cached: Vec<(Group, Vec<bool>)>,
    /// First block that a group still holds.
    held: Vec<u64>,
    uses: Recency,
    runs: Vec<Run>,
    ids: Vec<u32>,
    resident: u64,
    inserted: u64,
}

impl Layered {
    /// An empty pool of `capacity` blocks; prompts are computed `chunk_tokens` at a time.
    ///
    /// # Errors
    /// No group, blocks that are not multiples of the shortest, or chunks shorter than a state's
    /// block.
    pub fn new(capacity: u64, groups: &[Group], chunk_tokens: u64) -> Result<Self> {
        let base = base_tokens(groups);
        let odd = |g: &&Group| !g.block_tokens().is_multiple_of(base.max(1));
        if base == 0 || groups.len() > 64 || groups.iter().any(|g| odd(&g)) {
            let rule = "between 1 and 64 groups, whose blocks are multiples of the shortest one";
            return Err(Error::field("groups", groups.len(), rule));
        }
        let states = groups.iter().filter(|g| is_state(g));
        let longest = states.map(|g| g.block_tokens());
        let least = longest.max().unwrap_or(1);
        if chunk_tokens < least || chunk_tokens > 1 << 31 {
            let rule = format!("between {least} (a block) and 2^31 tokens");
            return Err(Error::field("max_num_batched_tokens", chunk_tokens, rule));
        }
        Ok(Self {
            capacity,
            chunk_tokens: chunk_tokens / least * least,
            groups: groups.to_vec(),
            cached: groups.iter().map(|g| (*g, Vec::new())).collect(),
            held: vec![0; groups.len()],
            uses: Recency::new(Along::Falling),
            runs: Vec::new(),
            ids: Vec::new(),
            resident: 0,
            inserted: 0,
        })
    }

    /// Runs a request: `ids` are its whole blocks of the shortest group's length. Tokens that are
    /// found, a multiple of all block lengths and less than `prompt_tokens`.
    pub fn request(&mut self, ids: &[u32], prompt_tokens: u64) -> u64 {
        self.look_up(ids);
        let hit = hit_tokens(&self.cached, prompt_tokens);
        for (held, group) in self.held.iter_mut().zip(&self.groups) {
            *held = group.first_needed(hit);
        }
        let mut computed = hit;
        while computed < prompt_tokens {
            let before = computed;
            computed = self.next_stop(computed, prompt_tokens);
            for g in 0..self.groups.len() {
                let needed = self.groups[g].first_needed(computed);
                if before == 0 && is_state(&self.groups[g]) {
                    self.held[g] = needed; // there was no state yet
                }
                self.give_back(ids, g, needed);
            }
        }
        for g in 0..self.groups.len() {
            self.give_back(ids, g, u64::MAX);
        }
        if self.resident > self.capacity {
            let excess = (self.resident - self.capacity) as usize;
            self.uses.drop_oldest(excess);
            self.resident = self.capacity;
        }
        hit
    }

    /// Tokens computed after the next chunk. With states, chunks end at multiples of their blocks,
    /// and one ends at the last of them.
    fn next_stop(&self, computed: u64, prompt: u64) -> u64 {
        let next = (computed + self.chunk_tokens).min(prompt);
        let state = self.groups.iter().find(|g| is_state(g));
        match state.map(|g| prompt / g.block_tokens() * g.block_tokens()) {
            Some(last) if computed < last && last < next => last,
            _ => next,
        }
    }

    fn look_up(&mut self, ids: &[u32]) {
        let base = base_tokens(&self.groups);
        let groups = self.groups.len() as u32;
        for (g, (group, cached)) in (0..).zip(&mut self.cached) {
            let long = (group.block_tokens() / base) as usize;
            cached.clear();
            let last_of_each = ids.iter().skip(long - 1).step_by(long);
            cached.extend(
                last_of_each.map(|id| self.uses.is_live(id.wrapping_mul(groups).wrapping_add(g))),
            );
        }
    }

    /// Gives back the blocks of a group from the first one held up to `until`.
    fn give_back(&mut self, ids: &[u32], g: usize, until: u64) {
        let group = self.groups[g];
        let long = group.block_tokens() / base_tokens(&self.groups);
        let whole = ids.len() as u64 / long;
        let blocks = self.held[g]..until.min(whole);
        if blocks.is_empty() {
            return;
        }
        self.held[g] = blocks.end;
        let name = |block: u64| {
            let last = ids[((block + 1) * long - 1) as usize];
            last.wrapping_mul(self.groups.len() as u32)
                .wrapping_add(g as u32)
        };
        // Between two checkpoints a state has no blocks.
        let n = if is_state(&group) { 1 } else { usize::MAX };
        self.ids.clear();
        self.ids.extend(blocks.take(n).map(name));
        self.uses.make_room(&self.ids);
        self.runs.clear();
        self.uses.runs(&self.ids, |_, run| self.runs.push(run));
        let mut known = 0u64;
        for run in &self.runs {
            self.uses.clear_run(*run, |_, n| known += u64::from(n));
        }
        let new = self.uses.push(&self.ids, |_, _| {}) as u64 - known;
        self.inserted += new;
        self.resident += new;
    }

    /// Blocks in the pool, of all groups.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Blocks evicted so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.inserted - self.resident
    }

    /// Most blocks that a prompt holds at once.
    #[must_use]
    pub fn blocks_at_once(&self, prompt_tokens: u64) -> u64 {
        let of = |g: &Group| {
            let all = prompt_tokens.div_ceil(g.block_tokens());
            let flying = |keeps: u64| (keeps + self.chunk_tokens).div_ceil(g.block_tokens());
            match *g {
                Group::Full { .. } => all,
                Group::Window { window, .. } => all.min(flying(window.saturating_sub(1)) + 1),
                Group::Chunk { chunk, .. } => all.min(flying(chunk)),
                Group::State { .. } => all.min(2),
            }
        };
        self.groups.iter().map(of).sum()
    }

    /// Tokens that hits are multiples of.
    #[must_use]
    pub fn align_tokens(&self) -> u64 {
        align(self.groups.iter().copied())
    }
}

fn is_state(group: &Group) -> bool {
    matches!(group, Group::State { .. })
}

/// Shortest block, tokens.
#[must_use]
pub fn base_tokens(groups: &[Group]) -> u64 {
    groups.iter().map(|g| g.block_tokens()).min().unwrap_or(0)
}

#[cfg(test)]
mod tests;
