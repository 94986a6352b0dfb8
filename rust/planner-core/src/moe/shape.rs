//! The shape of a placement: experts, replica slots, ranks, nodes, expert groups.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// How many experts go into how many slots on how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Logical experts E.
    pub experts: u32,
    /// Redundant experts R.
    #[serde(default)]
    pub redundant: u32,
    /// Ranks (GPUs) of the expert-parallel group.
    pub ranks: u32,
    /// Nodes that hold the ranks.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Expert groups of the router.
    #[serde(default = "one")]
    pub groups: u32,
}

const fn one() -> u32 {
    1
}

/// Experts, ranks and slots beyond this are a mistake in the input.
pub const LARGEST: u32 = 1 << 20;

impl Shape {
    /// Physical experts, E + R.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.experts + self.redundant
    }

    /// Physical experts per rank, (E + R)/ranks.
    ///
    /// ```
    /// use planner_core::moe::Shape;
    /// let s = Shape { experts: 256, redundant: 32, ranks: 32, nodes: 4, groups: 8 };
    /// assert_eq!(s.slots_per_rank(), 9);
    /// ```
    #[must_use]
    pub const fn slots_per_rank(&self) -> u32 {
        self.slots() / self.ranks
    }

    /// Whether EPLB packs groups to nodes first: the nodes share the groups evenly.
    #[must_use]
    pub const fn hierarchical(&self) -> bool {
        self.groups.is_multiple_of(self.nodes) && self.nodes > 1
    }

    /// Fewest redundant experts that fill the ranks evenly, (ranks − E mod ranks) mod ranks.
    ///
    /// ```
    /// assert_eq!(planner_core::moe::Shape::least_redundant(64, 48), 32);
    /// ```
    #[must_use]
    pub const fn least_redundant(experts: u32, ranks: u32) -> u32 {
        (ranks - experts % ranks) % ranks
    }

    /// Checks the shape.
    ///
    /// # Errors
    /// A count of zero, slots that the ranks do not share evenly, ranks that the nodes do not,
    /// groups that do not divide the experts, or more replicas than ranks for every expert.
    pub fn check(&self) -> Result<()> {
        for (name, n) in [
            ("experts", self.experts),
            ("ranks", self.ranks),
            ("nodes", self.nodes),
            ("groups", self.groups),
        ] {
            if n == 0 || n > LARGEST {
                return Err(Error::field(
                    name,
                    n,
                    format!("an integer in 1..={LARGEST}"),
                ));
            }
        }
        if self.redundant > LARGEST {
            return Err(Error::field(
                "redundant",
                self.redundant,
                format!("at most {LARGEST}"),
            ));
        }
        if !self.slots().is_multiple_of(self.ranks) {
            let least = Self::least_redundant(self.experts, self.ranks);
            return Err(Error::field(
                "redundant",
                self.redundant,
                format!(
                    "experts + redundant = {} is not a multiple of ranks = {}; the smallest that fits is {least}",
                    self.slots(),
                    self.ranks
                ),
            ));
        }
        if u64::from(self.slots()) > u64::from(self.experts) * u64::from(self.ranks) {
            return Err(Error::field(
                "redundant",
                self.redundant,
                format!(
                    "more replicas than slots on different ranks: at most experts × (ranks − 1) = {}",
                    u64::from(self.experts) * u64::from(self.ranks - 1)
                ),
            ));
        }
        if !self.ranks.is_multiple_of(self.nodes) {
            return Err(Error::field(
                "nodes",
                self.nodes,
                format!("must divide ranks = {}", self.ranks),
            ));
        }
        if !self.experts.is_multiple_of(self.groups) {
            return Err(Error::field(
                "groups",
                self.groups,
                format!("must divide experts = {}", self.experts),
            ));
        }
        Ok(())
    }
}

/// One layer's placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Expert in each slot; the slots of rank r are `r·s .. (r+1)·s`.
    pub physical_to_logical: Vec<u32>,
    /// Replicas of each expert.
    pub logical_count: Vec<u32>,
}

impl Placement {
    /// From the map alone.
    #[must_use]
    pub fn from_map(physical_to_logical: Vec<u32>, experts: u32) -> Self {
        let mut logical_count = vec![0; experts as usize];
        for &e in &physical_to_logical {
            logical_count[e as usize] += 1;
        }
        Self {
            physical_to_logical,
            logical_count,
        }
    }

    /// Load of each rank when replicas share their expert's load evenly.
    #[must_use]
    pub fn rank_loads(&self, loads: &[f64], ranks: u32) -> Vec<f64> {
        let size = self.physical_to_logical.len() / ranks as usize;
        self.physical_to_logical
            .chunks(size)
            .map(|slots| {
                slots
                    .iter()
                    .map(|&e| loads[e as usize] / f64::from(self.logical_count[e as usize]))
                    .sum()
            })
            .collect()
    }

    /// Fullest rank over the mean rank; 1 for a layer without load.
    ///
    /// ```
    /// use planner_core::moe::Placement;
    /// let p = Placement::from_map(vec![0, 1, 2, 0], 3);
    /// assert_eq!(p.max_over_mean(&[6.0, 2.0, 4.0], 2), 7.0 / 6.0);
    /// assert_eq!(p.max_over_mean(&[0.0; 3], 2), 1.0);
    /// ```
    #[must_use]
    pub fn max_over_mean(&self, loads: &[f64], ranks: u32) -> f64 {
        max_over_mean(&self.rank_loads(loads, ranks))
    }

    /// Replicas that sit beside another of the same expert on their rank: slots without use.
    ///
    /// ```
    /// use planner_core::moe::Placement;
    /// assert_eq!(Placement::from_map(vec![0, 0, 1, 2], 3).duplicates(2), 1);
    /// ```
    #[must_use]
    pub fn duplicates(&self, ranks: u32) -> u32 {
        let size = self.physical_to_logical.len() / ranks as usize;
        let mut twice = 0;
        for slots in self.physical_to_logical.chunks(size) {
            let mut sorted = slots.to_vec();
            sorted.sort_unstable();
            twice += sorted.windows(2).filter(|w| w[0] == w[1]).count() as u32;
        }
        twice
    }
}

/// Largest over mean, 1 where all are zero.
#[must_use]
pub fn max_over_mean(loads: &[f64]) -> f64 {
    let sum: f64 = loads.iter().sum();
    let max = loads.iter().copied().fold(0.0, f64::max);
    if sum > 0.0 {
        max * loads.len() as f64 / sum
    } else {
        1.0
    }
}

/// Median, 90th and 99th percentile (nearest rank); reorders the values.
///
/// ```
/// use planner_core::moe::shape::quantiles;
/// let mut loads: Vec<f64> = (0..=100).map(f64::from).collect();
/// assert_eq!(quantiles(&mut loads), [50.0, 90.0, 99.0]);
/// ```
#[must_use]
pub fn quantiles(values: &mut [f64]) -> [f64; 3] {
    if values.is_empty() {
        return [0.0; 3];
    }
    let last = values.len() as f64 - 1.0;
    // From the highest down: each selection leaves the lower part for the next.
    let mut end = values.len();
    let mut found = [0.0; 3];
    for (i, q) in [(2, 0.99), (1, 0.9), (0, 0.5)] {
        let at = (last * q).round() as usize;
        found[i] = *values[..end].select_nth_unstable_by(at, f64::total_cmp).1;
        end = at + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_named() {
        let good = Shape {
            experts: 64,
            redundant: 8,
            ranks: 8,
            nodes: 2,
            groups: 4,
        };
        assert!(good.check().is_ok());
        let message = |s: Shape| s.check().unwrap_err().to_string();
        assert!(
            message(Shape {
                redundant: 9,
                ..good
            })
            .contains("smallest that fits is 0")
        );
        assert!(
            message(Shape {
                redundant: 8 * 64,
                ..good
            })
            .contains("more replicas than slots")
        );
        assert!(message(Shape { nodes: 3, ..good }).contains("must divide ranks"));
        assert!(message(Shape { groups: 5, ..good }).contains("must divide experts"));
        assert!(message(Shape { ranks: 0, ..good }).contains("ranks"));
    }
}
