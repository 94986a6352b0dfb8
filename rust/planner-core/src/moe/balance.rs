//! The question `planner moe balance` asks: place these loads on these ranks, layer by layer.

use super::best::{Balanced, best};
use super::bound::lower_bound;
use super::eplb::eplb;
use super::shape::{LARGEST, Placement, Shape};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Which balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// DeepSeek's, map for map.
    Eplb,
    /// Ours: never worse, and with its gap to the bound.
    #[default]
    Best,
}

/// Loads and where they may go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// Tokens per expert, one row per MoE layer.
    pub loads: Vec<Vec<f64>>,
    /// Redundant experts R.
    pub redundant: u32,
    /// Ranks of the expert-parallel group.
    pub ranks: u32,
    /// Nodes that hold the ranks.
    pub nodes: u32,
    /// Expert groups of the router.
    pub groups: u32,
    /// The balancer.
    #[serde(default)]
    pub policy: Policy,
    /// Relative speed of each rank; empty: all alike.
    #[serde(default)]
    pub speeds: Vec<f64>,
    /// `best` keeps the replicas of a router group on one node, as hierarchical EPLB does.
    #[serde(default)]
    pub keep_groups: bool,
}

/// One balanced layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// Index of the layer in the input.
    pub layer: u32,
    /// Map, fullest rank and bound.
    #[serde(flatten)]
    pub balanced: Balanced,
    /// Fullest rank over the mean with experts in their own order and no replica.
    pub contiguous_max_over_mean: f64,
    /// Replicas beside another of the same expert on their rank.
    pub duplicates: u32,
}

impl Balance {
    /// Shape of every layer.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            experts: self.loads.first().map_or(0, Vec::len) as u32,
            redundant: self.redundant,
            ranks: self.ranks,
            nodes: self.nodes,
            groups: self.groups,
        }
    }

    /// Checks loads and shape.
    ///
    /// # Errors
    /// No layer, rows of different widths, a load that is negative or not a number, a shape that
    /// breaks its rules, or speeds that are not one positive number per rank.
    pub fn check(&self) -> Result<()> {
        check_loads(&self.loads)?;
        let shape = self.shape();
        shape.check()?;
        check_speeds(&self.speeds, self.ranks)
    }

    /// Places every layer.
    ///
    /// # Errors
    /// As [`Balance::check`].
    pub fn run(&self) -> Result<Vec<Layer>> {
        self.check()?;
        let shape = self.shape();
        Ok(self
            .loads
            .iter()
            .zip(0..)
            .map(|(row, layer)| self.place(row, layer, &shape))
            .collect())
    }

    fn place(&self, row: &[f64], layer: u32, shape: &Shape) -> Layer {
        let balanced = match self.policy {
            Policy::Best => best(row, shape, &self.speeds, self.keep_groups),
            Policy::Eplb => self.rated(row, shape),
        };
        Layer {
            layer,
            duplicates: balanced.placement.duplicates(self.ranks),
            contiguous_max_over_mean: contiguous(row, self.ranks),
            balanced,
        }
    }

    fn rated(&self, row: &[f64], shape: &Shape) -> Balanced {
        let loads: Vec<f32> = row.iter().map(|x| *x as f32).collect();
        let placement = eplb(&loads, shape).swap_remove(0);
        let equal = vec![1.0; self.ranks as usize];
        let speeds = if self.speeds.is_empty() {
            &equal
        } else {
            &self.speeds
        };
        let mean = row.iter().sum::<f64>() / speeds.iter().sum::<f64>();
        let (cost, bound) = (
            fullest(&placement, row, speeds),
            lower_bound(row, shape, speeds),
        );
        let idle = mean <= 0.0;
        Balanced {
            placement,
            rank_max_over_mean: if idle { 1.0 } else { cost / mean },
            bound_max_over_mean: if idle { 1.0 } else { bound / mean },
        }
    }
}

/// Largest load over speed.
pub(super) fn fullest(placement: &Placement, row: &[f64], speeds: &[f64]) -> f64 {
    let loads = placement.rank_loads(row, speeds.len() as u32);
    loads
        .iter()
        .zip(speeds)
        .map(|(l, s)| l / s)
        .fold(0.0, f64::max)
}

/// Fullest rank over the mean without replicas, experts in order (⌈E/ranks⌉ on each rank).
#[must_use]
pub fn contiguous(row: &[f64], ranks: u32) -> f64 {
    let sum: f64 = row.iter().sum();
    let size = row.len().div_ceil(ranks.max(1) as usize).max(1);
    let max = row
        .chunks(size)
        .map(|c| c.iter().sum::<f64>())
        .fold(0.0, f64::max);
    if sum > 0.0 {
        max * f64::from(ranks) / sum
    } else {
        1.0
    }
}

/// Checks that there is one positive speed per rank, or none at all.
///
/// # Errors
/// Another number of speeds, or one outside [1e-6, 1e6].
pub fn check_speeds(speeds: &[f64], ranks: u32) -> Result<()> {
    if !speeds.is_empty() && speeds.len() != ranks as usize {
        return Err(Error::field("speeds", speeds.len(), "one speed per rank"));
    }
    match speeds.iter().find(|s| !(1e-6..=1e6).contains(*s)) {
        Some(s) => Err(Error::field("speeds", s, "each in [1e-6, 1e6]")),
        None => Ok(()),
    }
}

/// Checks a matrix of loads: layers × experts.
///
/// # Errors
/// No layer, rows of different widths, a load that is negative or not a number.
pub fn check_loads(loads: &[Vec<f64>]) -> Result<()> {
    let Some(first) = loads.first() else {
        return Err(Error::field("loads", "[]", "at least one layer"));
    };
    if first.is_empty() || first.len() > LARGEST as usize {
        return Err(Error::field(
            "loads[0]",
            first.len(),
            format!("1..={LARGEST} experts"),
        ));
    }
    for (layer, row) in loads.iter().enumerate() {
        let field = format!("loads[{layer}]");
        if row.len() != first.len() {
            return Err(Error::field(
                field,
                row.len(),
                format!("{} experts as in layer 0", first.len()),
            ));
        }
        if let Some(x) = row.iter().find(|x| !(0.0..=1e30).contains(*x)) {
            return Err(Error::field(field, x, "loads are finite, ≥ 0 and ≤ 1e30"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(loads: Vec<Vec<f64>>) -> Balance {
        Balance {
            loads,
            redundant: 0,
            ranks: 2,
            nodes: 1,
            groups: 1,
            policy: Policy::Best,
            speeds: Vec::new(),
            keep_groups: false,
        }
    }

    #[test]
    fn both_policies_answer_with_a_bound() {
        let loads = vec![vec![4.0, 3.0, 2.0, 1.0], vec![0.0; 4]];
        for policy in [Policy::Eplb, Policy::Best] {
            let layers = Balance {
                policy,
                ..spec(loads.clone())
            }
            .run()
            .unwrap();
            assert_eq!(layers[0].balanced.rank_max_over_mean, 1.0);
            assert_eq!(layers[0].balanced.bound_max_over_mean, 1.0);
            assert_eq!(layers[0].contiguous_max_over_mean, 1.4);
            assert_eq!(layers[1].balanced.rank_max_over_mean, 1.0);
        }
    }

    #[test]
    fn bad_loads_are_named() {
        for bad in [
            vec![],
            vec![vec![]],
            vec![vec![1.0], vec![1.0, 2.0]],
            vec![vec![f64::NAN; 2]],
            vec![vec![-1.0; 2]],
        ] {
            assert!(spec(bad.clone()).run().is_err(), "{bad:?}");
        }
        let speeds = Balance {
            speeds: vec![1.0],
            ..spec(vec![vec![1.0; 4]])
        };
        assert!(speeds.run().is_err());
    }
}
