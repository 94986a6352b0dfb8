//! The longest prefix hit of a model with several kinds of layers (vLLM `kv_cache_coordinator`).

/// One group of layers with its own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            | Self::State { block_tokens } => block_tokens,
        }
    }

    /// Blocks that must be cached at the end of a hit.
    const fn needed(self) -> usize {
        match self {
            Self::Full { .. } => usize::MAX,
            Self::Window {
                block_tokens,
                window,
            } => window.saturating_sub(1).div_ceil(block_tokens) as usize,
            Self::State { .. } => 1,
        }
    }

    /// Longest hit of at most `limit` tokens, given which blocks are cached.
    fn hit_tokens(self, cached: &[bool], limit: u64) -> u64 {
        let blocks = usize::try_from(limit / self.block_tokens())
            .unwrap_or(usize::MAX)
            .min(cached.len());
        let hit = match self.needed() {
            usize::MAX => cached[..blocks].iter().take_while(|c| **c).count(),
            needed => rightmost_run(&cached[..blocks], needed),
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
    let step = groups.iter().fold(1, |l, (g, _)| lcm(l, g.block_tokens()));
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
    fn prefix_shorter_than_a_block_hits_nothing() {
        assert_eq!(
            hit_tokens(&[(Group::Full { block_tokens: 784 }, vec![])], 240),
            0
        );
    }
}
