//! The account of a space: how many candidates there are, and which rule each bad one breaks.

use crate::layout::rules::RULES;
use crate::layout::{Layout, Status};

/// Candidates of a space by fate; `total = feasible + Σ rejected` exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Every candidate: the cross product of the axes (docs/space.md).
    pub total: u64,
    /// Candidates that break no rule.
    pub feasible: u64,
    /// Candidates by the first rule that they break, indexed as [`RULES`].
    pub rejected: Vec<u64>,
    /// The first candidate that breaks each rule, as far as it was known when it broke it.
    pub examples: Vec<Option<Layout>>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            total: 0,
            feasible: 0,
            rejected: vec![0; RULES.len()],
            examples: vec![None; RULES.len()],
        }
    }
}

impl Counts {
    /// Count candidates below `layout` under the rule that they break.
    pub(super) fn reject(&mut self, rule: usize, layout: &Layout, candidates: u64) {
        if candidates > 0 {
            self.rejected[rule] += candidates;
            self.examples[rule].get_or_insert(*layout);
        }
    }

    /// Candidates that break some rule.
    #[must_use]
    pub fn all_rejected(&self) -> u64 {
        self.rejected.iter().sum()
    }

    /// Rejected candidates by status, in the order of checks, zeros left out.
    #[must_use]
    pub fn by_status(&self) -> Vec<(Status, u64)> {
        Status::ALL
            .iter()
            .map(|&status| {
                let counted = RULES.iter().zip(&self.rejected);
                (
                    status,
                    counted
                        .filter(|(r, _)| r.status == status)
                        .map(|(_, n)| n)
                        .sum(),
                )
            })
            .filter(|&(_, n)| n > 0)
            .collect()
    }

    /// Rejected candidates by rule id, in the order of checks, zeros left out.
    #[must_use]
    pub fn by_rule(&self) -> Vec<(&'static str, u64)> {
        RULES
            .iter()
            .zip(&self.rejected)
            .filter(|&(_, &n)| n > 0)
            .map(|(r, &n)| (r.id, n))
            .collect()
    }
}
