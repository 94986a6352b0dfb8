//! Prefix caches: which blocks of a prompt are already in the pool.
//!
//! A block's key is the chained hash of all tokens up to its end, so a cached block implies nothing
//! about its ancestors and a lookup stops at the first block that is missing. After a request the
//! engine frees its blocks from the tail, so the head is the most recent and the last to go.
//!
//! * [`Lru`], [`Fifo`]: one capacity, exactly as the engine would do it;
//! * [`Curve`]: every capacity at once, by stack distances;
//! * [`hybrid`]: the longest hit that several groups of layers agree on, and [`Layered`], a pool of
//!   their blocks;
//! * [`replay`]: a trace through one of them.

mod chain;
mod curve;
mod fifo;
pub mod hybrid;
mod intern;
mod layers;
mod lru;
mod recency;
pub mod replay;

pub use chain::Chain;
pub use curve::{Counted, Curve, HitCurve, Mark};
pub use fifo::Fifo;
pub use intern::Intern;
pub use layers::{Layered, base_tokens};
pub use lru::{Lru, Order};

/// Most tokens of a prompt that an identical resend can hit: whole blocks, and at least one token
/// is computed, `⌊(prompt − 1) / B⌋ · B` (vLLM `kv_cache_manager.get_computed_blocks`).
///
/// ```
/// use planner_core::kv::prefix::resend_hit_tokens;
/// assert_eq!(resend_hit_tokens(2015, 3584), 0);
/// assert_eq!(resend_hit_tokens(47074, 3584), 46592);
/// assert_eq!(resend_hit_tokens(16, 16), 0); // a fully cached prompt recomputes a whole block
/// ```
#[must_use]
pub const fn resend_hit_tokens(prompt_tokens: u64, block_tokens: u64) -> u64 {
    prompt_tokens.saturating_sub(1) / block_tokens * block_tokens
}
