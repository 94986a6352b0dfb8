//! Expert capacity: how many rows an expert accepts, and what is dropped beyond.
//!
//! T is the number of tokens of one rank, so what is dropped depends on how the batch is split.

use serde::{Deserialize, Serialize};

/// Whose rule says how many rows an expert accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// [`megatron`].
    #[default]
    Megatron,
    /// [`switch`], for one expert per token.
    Switch,
    /// [`tutel`], whose factor may be 0 or negative.
    Tutel,
}

impl Rule {
    /// Names, in the order of the variants.
    pub const NAMES: &'static [&'static str] = &["megatron", "switch", "tutel"];

    /// Rows that an expert accepts of T tokens, with a largest load of `largest` rows; none where
    /// nothing is dropped and nothing padded.
    ///
    /// ```
    /// use planner_core::moe::capacity::Rule;
    /// assert_eq!(Rule::Megatron.rows(512, 8, 64, 1.1, 100), Some(71));
    /// assert_eq!(Rule::Tutel.rows(512, 8, 64, 1.1, 100), Some(64));
    /// assert_eq!(Rule::Tutel.rows(512, 8, 64, 0.0, 100), Some(100));
    /// assert_eq!(Rule::Switch.rows(4096, 1, 64, 1.1, 100), Some(70));
    /// assert_eq!(Rule::Megatron.rows(512, 8, 64, 0.0, 100), None);
    /// ```
    #[must_use]
    pub fn rows(self, tokens: u64, k: u64, experts: u64, factor: f64, largest: u64) -> Option<u64> {
        match self {
            Self::Tutel => Some(tutel(tokens, k, experts, factor, (largest, 1))),
            _ if factor == 0.0 => None,
            Self::Megatron => Some(megatron(tokens, k, experts, factor, 0)),
            Self::Switch => Some(switch(tokens, experts, factor)),
        }
    }
}

/// Megatron-LM: ⌈T·k/E·cf⌉, at least `least`, and never more than T (nothing is dropped then).
///
/// ```
/// use planner_core::moe::capacity::megatron;
/// assert_eq!(megatron(512, 8, 64, 1.1, 0), 71);
/// assert_eq!(megatron(4096, 1, 64, 1.1, 0), 71);
/// assert_eq!(megatron(4096, 1, 64, 16384.0, 0), 4096); // bounded by T, not a TiB of buffers
/// ```
#[must_use]
pub fn megatron(tokens: u64, k: u64, experts: u64, factor: f64, least: u64) -> u64 {
    let rows = ((tokens * k) as f64 / experts as f64 * factor).ceil() as u64;
    rows.max(least).min(tokens)
}

/// Switch Transformer: ⌊T/E·cf⌋, one expert per token (paper rule).
///
/// ```
/// assert_eq!(planner_core::moe::capacity::switch(4096, 64, 1.1), 70);
/// ```
#[must_use]
pub fn switch(tokens: u64, experts: u64, factor: f64) -> u64 {
    ((tokens as f64 / experts as f64 * factor) as u64).min(tokens)
}

/// Tutel: k·⌊cf·⌈T/E⌉⌋; cf = 0: the largest load; cf < 0: the largest load, bounded by the rule for
/// |cf|; then rounded up to a multiple of `align`.
///
/// ```
/// use planner_core::moe::capacity::tutel;
/// assert_eq!(tutel(512, 8, 64, 1.1, (100, 1)), 64);
/// assert_eq!(tutel(512, 8, 64, 0.0, (100, 1)), 100);
/// assert_eq!(tutel(512, 8, 64, -1.1, (100, 16)), 64);
/// ```
#[must_use]
pub fn tutel(tokens: u64, k: u64, experts: u64, factor: f64, (largest, align): (u64, u64)) -> u64 {
    let bound = k * (factor.abs() * tokens.div_ceil(experts) as f64) as u64;
    let rows = if factor == 0.0 {
        largest
    } else if factor < 0.0 {
        largest.min(bound)
    } else {
        bound
    };
    rows.next_multiple_of(align.max(1))
}

/// Share of the token-choices beyond the capacity, uniform routing: E[(X − C)₊]·E/(T·k) with
/// X binomial(T, k/E), exact. Dropping by position or by probability drops equally many; by
/// probability it drops the choices that weigh least.
///
/// ```
/// use planner_core::moe::capacity::dropped_uniform;
/// assert!((dropped_uniform(4096, 1, 64, 64) - 0.0494).abs() < 5e-5);
/// assert!((dropped_uniform(4096, 1, 64, 71) - 0.01342).abs() < 5e-6);
/// assert_eq!(dropped_uniform(4096, 1, 64, 4096), 0.0);
/// ```
#[must_use]
pub fn dropped_uniform(tokens: u64, k: u64, experts: u64, capacity: u64) -> f64 {
    let (n, p) = (tokens as f64, k as f64 / experts as f64);
    if p >= 1.0 {
        return 1.0 - (capacity.min(tokens) as f64 / n);
    }
    if capacity >= tokens {
        return 0.0;
    }
    // Walk down from the top of what matters; logs keep the start from underflowing.
    let mode = (n * p) as u64;
    let mut log_point = n * (-p).ln_1p();
    let odds = (p / (1.0 - p)).ln();
    let mut excess = 0.0;
    for x in 0..tokens {
        log_point += ((tokens - x) as f64 / (x + 1) as f64).ln() + odds;
        let at = x + 1;
        if at > capacity {
            let term = (at - capacity) as f64 * log_point.exp();
            excess += term;
            if at > mode && term < 1e-18 {
                break;
            }
        }
    }
    excess / (n * p)
}

/// Rows that an expert computes without a token when inputs are padded to the capacity, share of
/// all E·C rows, uniform routing.
///
/// ```
/// let idle = planner_core::moe::capacity::padded_uniform(4096, 1, 64, 80);
/// assert!((idle - (1.0 - 64.0 / 80.0)).abs() < 0.002);
/// ```
#[must_use]
pub fn padded_uniform(tokens: u64, k: u64, experts: u64, capacity: u64) -> f64 {
    let kept = (tokens * k) as f64 * (1.0 - dropped_uniform(tokens, k, experts, capacity));
    1.0 - kept / (experts * capacity).max(1) as f64
}
