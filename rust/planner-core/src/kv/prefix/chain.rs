//! Chained hashes of token blocks.

/// Hashes a token stream into block keys; each key depends on every token before it.
///
/// 64 bits: among n distinct blocks two collide with probability below n² / 2⁶⁵, one in 37 million
/// for a million blocks.
///
/// ```
/// use planner_core::kv::prefix::Chain;
/// let mut a = Chain::new(2);
/// let keys: Vec<u64> = [1, 2, 3, 4, 5].iter().filter_map(|t| a.push(*t)).collect();
/// assert_eq!(keys.len(), 2);          // two whole blocks,
/// assert!(a.rest().is_some());        // and a partial one
/// let mut b = Chain::new(2);
/// let other: Vec<u64> = [9, 2, 3, 4].iter().filter_map(|t| b.push(*t)).collect();
/// assert_ne!(keys[1], other[1]);      // same tokens, other parent
/// ```
pub struct Chain {
    state: u64,
    block_tokens: u64,
    filled: u64,
    tokens: u64,
}

const FIRST_PARENT: u64 = 0x243f_6a88_85a3_08d3;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const PARTIAL: u64 = 0x1319_8a2e_0370_7344;

impl Chain {
    /// A chain with blocks of `block_tokens`.
    #[must_use]
    pub fn new(block_tokens: u64) -> Self {
        Self {
            state: FIRST_PARENT,
            block_tokens,
            filled: 0,
            tokens: 0,
        }
    }

    /// Adds a token; the key of the block that it completes.
    #[inline]
    pub fn push(&mut self, token: u64) -> Option<u64> {
        self.state = fold(self.state ^ token).wrapping_add(MULTIPLIER);
        self.filled += 1;
        self.tokens += 1;
        if self.filled < self.block_tokens {
            return None;
        }
        self.filled = 0;
        Some(self.state)
    }

    /// Key of the partial last block, if there is one; it equals no whole block's.
    #[must_use]
    pub fn rest(&self) -> Option<u64> {
        (self.filled > 0).then(|| fold(self.state ^ PARTIAL ^ self.filled))
    }

    /// Tokens seen.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// High and low half of a 128-bit product, folded.
#[inline]
fn fold(x: u64) -> u64 {
    let product = u128::from(x ^ 0xa409_3822_299f_31d0) * u128::from(MULTIPLIER);
    (product as u64) ^ ((product >> 64) as u64)
}
