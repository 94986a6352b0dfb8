//! Slots that paging wastes: the unused end of each request's last block.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::trace::{MAX_TOKENS, Reader, Request};
use crate::error::{Error, Result};

/// Lengths of requests, each with its number of occurrences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// Prompt, answer, occurrences.
    pub rows: Vec<(u64, u64, u64)>,
}

/// Waste of one block size over some lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waste {
    /// Slots allocated.
    pub allocated_tokens: u64,
    /// Of them without a token.
    pub wasted_tokens: u64,
    /// Their share.
    pub ratio: f64,
    /// Share if last blocks were filled evenly, see [`closed_ratio`].
    pub closed_ratio: f64,
    /// Wasted slots of a request: mean.
    pub mean_tokens: f64,
    /// Median.
    pub p50_tokens: u64,
    /// 99 % of requests waste at most this.
    pub p99_tokens: u64,
    /// Largest.
    pub worst_tokens: u64,
}

/// Wasted slots of a request of `len` tokens, `⌈len/B⌉·B − len`.
///
/// ```
/// use planner_core::kv::fragment::waste_tokens;
/// assert_eq!(waste_tokens(17, 16), 15); // the worst, at len mod B = 1
/// assert_eq!(waste_tokens(32, 16), 0);
/// ```
#[must_use]
pub const fn waste_tokens(len: u64, block: u64) -> u64 {
    len.next_multiple_of(block) - len
}

/// Share of allocated slots that is wasted if the last block is filled evenly:
/// `((B − 1)/2) / (mean + (B − 1)/2)`.
///
/// ```
/// use planner_core::kv::fragment::closed_ratio;
/// assert!((closed_ratio(2076.0, 16) - 0.0036).abs() < 1e-4);
/// ```
#[must_use]
pub fn closed_ratio(mean_len: f64, block: u64) -> f64 {
    let mean_waste = (block - 1) as f64 / 2.0;
    mean_waste / (mean_len + mean_waste)
}

impl Lengths {
    /// Requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.rows.iter().map(|r| r.2).sum()
    }

    /// Whether sums over the requests make sense and fit their integers.
    ///
    /// # Errors
    /// No request, too many, a prompt of no token or a length beyond [`MAX_TOKENS`].
    pub fn check(&self) -> Result<()> {
        let requests = self.rows.iter().fold(0u64, |n, r| n.saturating_add(r.2));
        if requests == 0 || requests > 1 << 31 {
            let rule = "at least one request and at most 2^31";
            return Err(Error::field("lengths", requests, rule));
        }
        let bad = |(p, o, _): &&(u64, u64, u64)| *p == 0 || *p > MAX_TOKENS || *o > MAX_TOKENS;
        match self.rows.iter().find(bad) {
            None => Ok(()),
            Some((p, o, _)) => {
                let rule = "prompts of at least 1 token, lengths of at most 2^31";
                Err(Error::field("lengths", format!("{p},{o}"), rule))
            }
        }
    }

    /// Mean of prompt and answer together, tokens.
    #[must_use]
    pub fn mean_tokens(&self) -> f64 {
        let sum: u128 = self
            .rows
            .iter()
            .map(|(p, o, n)| u128::from(p + o) * u128::from(*n))
            .sum();
        sum as f64 / self.requests().max(1) as f64
    }

    /// Lengths of every request of a trace.
    ///
    /// `stop` is polled every thousand requests.
    ///
    /// # Errors
    /// A bad line, or an interrupt.
    pub fn of_trace(reader: &mut Reader, stop: &dyn Fn() -> bool) -> Result<Self> {
        let mut request = Request::default();
        let mut counts: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        while reader.next(&mut request)? {
            *counts
                .entry((request.input_tokens, request.output_tokens))
                .or_default() += 1;
            if reader.requests().is_multiple_of(1024) && stop() {
                return Err(Error::Interrupted);
            }
        }
        Ok(Self {
            rows: counts.into_iter().map(|((p, o), n)| (p, o, n)).collect(),
        })
    }

    /// Merges equal rows and sorts them.
    #[must_use]
    pub fn merged(mut rows: Vec<(u64, u64, u64)>) -> Self {
        rows.sort_unstable();
        rows.dedup_by(|later, kept| {
            let same = (later.0, later.1) == (kept.0, kept.1);
            if same {
                kept.2 += later.2;
            }
            same
        });
        Self { rows }
    }

    /// Requests by wasted slots, ascending: counted where the block is short, else sorted.
    fn by_waste(&self, block: u64) -> Vec<(u64, u64)> {
        let wasted = |p: &u64, o: &u64| waste_tokens(p + o, block);
        if block > 1 << 16 {
            let each = self.rows.iter().map(|(p, o, n)| (wasted(p, o), *n));
            let mut sorted: Vec<(u64, u64)> = each.collect();
            sorted.sort_unstable();
            return sorted;
        }
        let mut counts = vec![0; block as usize];
        for (p, o, n) in &self.rows {
            counts[wasted(p, o) as usize] += n;
        }
        (0..).zip(counts).filter(|(_, n)| *n > 0).collect()
    }

    /// Waste at the end of the requests, prompt and answer in full.
    #[must_use]
    pub fn waste(&self, block: u64) -> Waste {
        let by_waste = self.by_waste(block);
        let requests = self.requests();
        let at = |share: f64| {
            let wanted = (share * requests as f64).ceil() as u64;
            let mut seen = 0;
            let found = by_waste.iter().find(|(_, n)| {
                seen += n;
                seen >= wanted
            });
            found.map_or(0, |(w, _)| *w)
        };
        let wasted: u64 = by_waste.iter().map(|(w, n)| w * n).sum();
        let tokens: u64 = self.rows.iter().map(|(p, o, n)| (p + o) * n).sum();
        let allocated = tokens + wasted;
        Waste {
            allocated_tokens: allocated,
            wasted_tokens: wasted,
            ratio: wasted as f64 / allocated.max(1) as f64,
            closed_ratio: closed_ratio(self.mean_tokens(), block),
            mean_tokens: wasted as f64 / requests.max(1) as f64,
            p50_tokens: at(0.5),
            p99_tokens: at(0.99),
            worst_tokens: by_waste.last().map_or(0, |(w, _)| *w),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lengths, waste_tokens};

    #[test]
    fn a_trace_by_hand() {
        let lengths = Lengths::merged(vec![(10, 7, 1), (30, 2, 2), (10, 7, 1)]);
        assert_eq!(lengths.rows, [(10, 7, 2), (30, 2, 2)]);
        let w = lengths.waste(16);
        assert_eq!((w.allocated_tokens, w.wasted_tokens), (128, 30));
        assert_eq!((w.p50_tokens, w.p99_tokens, w.worst_tokens), (0, 15, 15));
        assert_eq!(lengths.waste(1).wasted_tokens, 0);
    }

    proptest::proptest! {
        #[test]
        fn waste_is_below_a_block(len in 1u64..1_000_000, block in 1u64..5000) {
            let w = waste_tokens(len, block);
            proptest::prop_assert!(w < block);
            proptest::prop_assert_eq!((len + w) % block, 0);
        }
    }
}
