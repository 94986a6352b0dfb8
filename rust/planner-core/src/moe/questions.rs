//! Questions of the commands that join several formulas.

use super::balance::{check_loads, check_speeds};
use super::closed::{imbalance, with_shared};
use super::dispatch::Dispatch;
use super::fit::{LayerFit, fit};
use super::hot::{Layer, Overlap, Time, most_active, time};
use super::robust::{Robust, robust};
use super::routing::Routing;
use super::shape::Shape;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Arguments of [`imbalance`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imbalance {
    /// Who gets the tokens.
    pub routing: Routing,
    /// Experts E.
    pub experts: u32,
    /// Experts per token k.
    pub top_k: u32,
    /// Expert-parallel ranks R.
    pub ranks: u32,
    /// Tokens on each rank.
    pub tokens_per_rank: f64,
    /// Shared experts whose rows are counted beside the routed ones.
    #[serde(default)]
    pub shared_experts: u32,
}

impl Imbalance {
    /// Fullest rank over the mean.
    ///
    /// # Errors
    /// Routing that does not fit E and k, ranks outside 1..=E, tokens that are not positive.
    pub fn run(&self) -> Result<f64> {
        self.routing.check(self.experts, self.top_k)?;
        if self.ranks == 0 || self.ranks > self.experts {
            return Err(Error::field(
                "ranks",
                self.ranks,
                format!("1..={} (experts)", self.experts),
            ));
        }
        if !(self.tokens_per_rank > 0.0 && self.tokens_per_rank <= 1e12) {
            return Err(Error::field(
                "tokens_per_rank",
                self.tokens_per_rank,
                "in (0, 1e12]",
            ));
        }
        let routed = imbalance(
            &self.routing,
            self.experts,
            self.top_k,
            self.ranks,
            self.tokens_per_rank,
        );
        Ok(with_shared(routed, self.top_k, self.shared_experts))
    }
}

/// Recorded loads to describe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Describe {
    /// Snapshots × layers × experts.
    pub snapshots: Vec<Vec<Vec<f64>>>,
    /// Experts per token k.
    pub top_k: u32,
}

fn check_snapshots(snapshots: &[Vec<Vec<f64>>]) -> Result<()> {
    let Some(first) = snapshots.first() else {
        return Err(Error::field("snapshots", "[]", "at least one"));
    };
    for (i, matrix) in snapshots.iter().enumerate() {
        check_loads(matrix)?;
        if matrix.len() != first.len() || matrix[0].len() != first[0].len() {
            return Err(Error::field(
                format!("snapshots[{i}]"),
                matrix.len(),
                "of the shape of the first",
            ));
        }
        if matrix.iter().any(|row| row.iter().sum::<f64>() <= 0.0) {
            return Err(Error::field(
                format!("snapshots[{i}]"),
                0,
                "every layer has a load",
            ));
        }
    }
    Ok(())
}

impl Describe {
    /// Fits every layer.
    ///
    /// # Errors
    /// Snapshots of different shapes, loads that make no sense, k outside 1..=E.
    pub fn run(&self) -> Result<Vec<LayerFit>> {
        check_snapshots(&self.snapshots)?;
        let experts = self.snapshots[0][0].len() as u32;
        Routing::Uniform.check(experts, self.top_k)?;
        Ok(fit(&self.snapshots, self.top_k))
    }
}

/// One placement per layer for all snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RobustBalance {
    /// Snapshots × layers × experts.
    pub snapshots: Vec<Vec<Vec<f64>>>,
    /// Redundant experts R.
    pub redundant: u32,
    /// Ranks.
    pub ranks: u32,
    /// Nodes that hold the ranks.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Expert groups of the router.
    #[serde(default = "one")]
    pub groups: u32,
    /// Relative speed of each rank; empty: all alike.
    #[serde(default)]
    pub speeds: Vec<f64>,
    /// Replicas of a router group stay on one node.
    #[serde(default)]
    pub keep_groups: bool,
}

const fn one() -> u32 {
    1
}

impl RobustBalance {
    /// Places every layer.
    ///
    /// # Errors
    /// Snapshots or a shape that make no sense.
    pub fn run(&self) -> Result<Vec<Robust>> {
        check_snapshots(&self.snapshots)?;
        let shape = Shape {
            experts: self.snapshots[0][0].len() as u32,
            redundant: self.redundant,
            ranks: self.ranks,
            nodes: self.nodes,
            groups: self.groups,
        };
        shape.check()?;
        check_speeds(&self.speeds, self.ranks)?;
        Ok((0..self.snapshots[0].len())
            .map(|layer| {
                let rows: Vec<&[f64]> =
                    self.snapshots.iter().map(|s| s[layer].as_slice()).collect();
                robust(&rows, &shape, &self.speeds, self.keep_groups)
            })
            .collect())
    }
}

/// A MoE layer from dispatch to combine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Traffic.
    pub dispatch: Dispatch,
    /// Width F of an expert.
    pub expert_hidden: u32,
    /// Shared experts per token.
    pub shared_experts: u32,
    /// Bytes per weight.
    pub weight_bytes: f64,
    /// Grouped-GEMM rate that a rank reaches.
    pub flops_per_s: f64,
    /// Memory bandwidth that a rank reaches.
    pub bytes_per_s: f64,
    /// What hides the exchange.
    pub overlap: Overlap,
}

impl Timed {
    /// Terms of the layer's time. Gated experts: three matrices of H × F.
    ///
    /// # Errors
    /// As [`Dispatch::run`]; a rate that is not positive.
    pub fn run(&self) -> Result<Time> {
        let traffic = self.dispatch.run()?;
        for (name, x) in [
            ("flops_per_s", self.flops_per_s),
            ("bytes_per_s", self.bytes_per_s),
            ("weight_bytes", self.weight_bytes),
        ] {
            if !(x > 0.0 && x.is_finite()) {
                return Err(Error::field(name, x, "must be above 0"));
            }
        }
        let b = &self.dispatch.batch;
        let weights = 3.0 * f64::from(self.dispatch.hidden) * f64::from(self.expert_hidden);
        let tokens = f64::from(b.tokens) / f64::from(b.ranks);
        Ok(time(&Layer {
            mean_rows: tokens * f64::from(b.top_k),
            rank_max_over_mean: traffic.copies.rank_max_over_mean,
            most_active: most_active(b.experts, b.top_k, b.ranks, b.tokens),
            expert_bytes: weights * self.weight_bytes,
            flops_per_row: 2.0 * weights,
            shared_flops: tokens * f64::from(self.shared_experts) * 2.0 * weights,
            flops_per_s: self.flops_per_s,
            bytes_per_s: self.bytes_per_s,
            exchange_s: [traffic.dispatch.time_s, traffic.combine.time_s],
            overlap: self.overlap,
        }))
    }
}
