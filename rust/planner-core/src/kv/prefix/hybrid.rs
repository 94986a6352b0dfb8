//! The longest prefix hit of a model with several kinds of layers (vLLM `kv_cache_coordinator`).

use serde::{Deserialize, Serialize};

/// One group of layers with its own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Group {
    /// Every block of the prefix must be cached.
    Full {
        /// Tokens in a block.
        block_tokens: u64,
    },
    /// Only the last ⌈(W − 1) / B⌉ blocks before the hit's end must be cached.
    Window {
        /// Tokens in a block.
        block_tokens: u64,
        /// Keys that a query sees, W.
        window: u64,
    },
    /// Only blocks of the chunk that the hit ends in must be cached.
    Chunk {
        /// Tokens in a block.
        block_tokens: u64,
        /// Tokens of a chunk, C.
        chunk: u64,
    },
    /// Only the state at the hit's end must be cached.
    State {
        /// Tokens between checkpoints.
        block_tokens: u64,
    },
}

impl Group {
    /// Tokens in a block.
    #[must_use]
    pub const fn block_tokens(self) -> u64 {
        match self {
            Self::Full { block_tokens }
            | Self::Window { block_tokens, .. }
            | Self::Chunk { block_tokens, .. }
            | Self::State { block_tokens } => block_tokens,
        }
    }

    /// Index of the first block that a request needs once `computed` tokens are done; all before it
    /// are given back.
    #[must_use]
    pub const fn first_needed(self, computed: u64) -> u64 {
        match self {
            Self::Full { .. } => 0,
            // The next token sees itself and W − 1 before it.
            Self::Window {
                block_tokens,
                window,
            } => (computed + 1).saturating_sub(window) / block_tokens,
            Self::Chunk {
                block_tokens,
                chunk,
            } => computed / chunk * chunk / block_tokens,
            Self::State { block_tokens } => (computed / block_tokens).saturating_sub(1),
        }
    }

    /// Longest hit of at most `limit` tokens, given which blocks are cached.
    fn hit_tokens(self, cached: &[bool], limit: u64) -> u64 {
        let blocks = usize::try_from(limit / self.block_tokens())
            .unwrap_or(usize::MAX)
            .min(cached.len());
        let run = |from: usize| cached[from..blocks].iter().take_while(|c| **c).count();
        let hit = match self {
            Self::Full { .. } => run(0),
            Self::Window {
                block_tokens,
                window,
            } => {
                let needed = window.saturating_sub(1).div_ceil(block_tokens);
                rightmost_run(&cached[..blocks], needed as usize)
            }
            Self::Chunk {
                block_tokens,
                chunk,
            } => {
                let start = (limit / chunk * chunk / block_tokens) as usize;
                start.min(blocks) + run(start.min(blocks))
            }
            Self::State { .. } => rightmost_run(&cached[..blocks], 1),
        };
        hit as u64 * self.block_tokens()
    }
}

/// End of the rightmost run of `needed` cached blocks; a run that reaches the start may be shorter.
fn rightmost_run(cached: &[bool], needed: usize) -> usize {
    if needed == 0 {
        return cached.len();
    }
    let mut run = 0;
    for i in (0..cached.len()).rev() {
        run = if cached[i] { run + 1 } else { 0 };
        if run >= needed {
            return i + run;
        }
    }
    run
}

/// Longest hit in tokens that all groups accept: at most `prompt − 1`, a multiple of the least
/// common multiple of the block sizes. Lengths only shrink, so iterating ends.
///
/// ```
/// use planner_core::kv::prefix::hybrid::{hit_tokens, Group};
/// let full = Group::Full { block_tokens: 16 };
/// let window = Group::Window { block_tokens: 16, window: 33 };
/// // The window group needs only the last ⌈32 / 16⌉ = 2 blocks of the hit.
/// let groups = [(full, vec![true; 6]), (window, vec![false, false, true, true, false, true])];
/// assert_eq!(hit_tokens(&groups, 200), 64);
/// ```
#[must_use]
pub fn hit_tokens(groups: &[(Group, Vec<bool>)], prompt_tokens: u64) -> u64 {
    let step = align(groups.iter().map(|(g, _)| *g));
    let mut hit = prompt_tokens.saturating_sub(1) / step * step;
    loop {
        let before = hit;
        for (group, cached) in groups {
            hit = group.hit_tokens(cached, hit) / step * step;
        }
        if hit == before {
            return hit;
        }
    }
}

/// Tokens that hits are multiples of: the least common multiple of all blocks.
#[must_use]
pub fn align(groups: impl Iterator<Item = Group>) -> u64 {
    groups.fold(1, |l, g| lcm(l, g.block_tokens()))
}

/// Least common multiple.
#[must_use]
pub const fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{Group, hit_tokens};

    #[test]
    fn block_sizes_meet_at_their_common_multiple() {
        let groups = [
            (Group::Full { block_tokens: 32 }, vec![true; 10]),
            (Group::Full { block_tokens: 48 }, vec![true; 10]),
        ];
        assert_eq!(hit_tokens(&groups, 300), 288);
        assert_eq!(hit_tokens(&groups, 288), 192); // one token at least is computed
    }

    #[test]
    fn a_window_run_at_the_start_may_be_short() {
        let window = Group::Window {
            block_tokens: 16,
            window: 100,
        };
        assert_eq!(hit_tokens(&[(window, vec![true, true, false])], 64), 32);
    }

    #[test]
    fn a_state_is_found_at_its_checkpoint_only() {
        let groups = [
            (Group::Full { block_tokens: 16 }, vec![true; 4]),
            (
                Group::State { block_tokens: 16 },
                vec![false, true, false, false],
            ),
        ];
        assert_eq!(hit_tokens(&groups, 100), 32);
    }

    #[test]
    fn a_chunk_looks_at_itself_only() {
        let chunk = Group::Chunk {
            block_tokens: 16,
            chunk: 64,
        };
        // A hit of up to 96 tokens ends in the second chunk, whose blocks are 4, 5, …
        let cached = vec![false, false, false, false, true, true];
        assert_eq!(hit_tokens(&[(chunk, cached.clone())], 97), 96);
        assert_eq!(hit_tokens(&[(chunk, cached)], 81), 80);
        // The chunk before is over: none of its blocks are needed.
        assert_eq!(hit_tokens(&[(chunk, vec![false; 6])], 97), 64);
    }

    #[test]
    fn what_is_given_back() {
        let window = Group::Window {
            block_tokens: 16,
            window: 33,
        };
        let needed = [0, 32, 47, 48, 64].map(|n| window.first_needed(n));
        assert_eq!(needed, [0, 0, 0, 1, 2]);
        let state = Group::State { block_tokens: 16 };
        assert_eq!([0, 16, 40, 48].map(|n| state.first_needed(n)), [0, 0, 1, 2]);
    }

    #[test]
    fn prefix_shorter_than_a_block_hits_nothing() {
        assert_eq!(
            hit_tokens(&[(Group::Full { block_tokens: 784 }, vec![])], 240),
            0
        );
    }
}
