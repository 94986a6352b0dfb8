//! Bytes of experts and of their replicas on a rank.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::kv::size::memory::weight_bytes;
use crate::model::{LayerKind, Model, params};
use crate::units::Dtype;

/// Weights of one routed expert of a layer, bytes; 0 in a dense layer.
#[must_use]
pub fn expert_bytes(kind: &LayerKind, hidden: u64, dtype: Dtype) -> f64 {
    let experts = kind.experts().unwrap_or(0);
    if experts == 0 {
        return 0.0;
    }
    params::layer(kind, hidden).expert as f64 / experts as f64 * weight_bytes(dtype)
}

/// What the experts of a model take on each rank.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertMemory {
    /// The model.
    pub model: Model,
    /// Format of the weights; absent: that of the checkpoint.
    #[serde(default)]
    pub weight_dtype: Option<Dtype>,
    /// Redundant experts R of a layer.
    pub redundant: u32,
    /// Expert-parallel ranks.
    pub ranks: u32,
}

/// Memory of one rank, over all MoE layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankMemory {
    /// Experts E of a MoE layer.
    pub experts: u64,
    /// MoE layers.
    pub moe_layers: u64,
    /// Slots of a rank in a layer, (E + R)/ranks.
    pub slots_per_rank: f64,
    /// Weights of one expert of a layer, bytes.
    pub expert_bytes: f64,
    /// Experts of a rank, replicas included, bytes.
    pub experts_bytes_per_rank: f64,
    /// Of that, replicas: R/ranks of each layer. The KV cache loses them.
    pub replica_bytes_per_rank: f64,
}

impl ExpertMemory {
    /// Answers.
    ///
    /// # Errors
    /// A model without experts, or with layers of different experts; no rank.
    pub fn run(&self) -> Result<RankMemory> {
        if self.ranks == 0 {
            return Err(Error::field("ranks", 0, "at least 1"));
        }
        let model = &self.model;
        let dtype = self.weight_dtype.unwrap_or(model.weight_dtype);
        let kinds = model.layers.iter().map(|kind| &model.kinds[*kind]);
        let layers: Vec<(u64, f64)> = kinds
            .filter_map(|kind| Some((kind.experts()?, expert_bytes(kind, model.hidden, dtype))))
            .collect();
        let Some(&(experts, bytes)) = layers.first() else {
            return Err(Error::field(
                "model",
                &model.name,
                "must have routed experts, and has none",
            ));
        };
        if layers.iter().any(|layer| layer.0 != experts) {
            return Err(Error::field(
                "model",
                &model.name,
                "has the same number of experts in every MoE layer",
            ));
        }
        let all: f64 = layers.iter().map(|layer| layer.1).sum();
        let ranks = f64::from(self.ranks);
        let slots = experts as f64 + f64::from(self.redundant);
        Ok(RankMemory {
            experts,
            moe_layers: layers.len() as u64,
            slots_per_rank: slots / ranks,
            expert_bytes: bytes,
            experts_bytes_per_rank: all * slots / ranks,
            replica_bytes_per_rank: all * f64::from(self.redundant) / ranks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_take_their_share() {
        let model: Model =
            serde_json::from_str(include_str!("../../fixtures/small-moe.json")).unwrap();
        let ask = |redundant, ranks| {
            let model = model.clone();
            let question = ExpertMemory {
                model,
                weight_dtype: Some(Dtype::Bf16),
                redundant,
                ranks,
            };
            question.run().unwrap()
        };
        let (none, some) = (ask(0, 4), ask(4, 4));
        let total: u64 = params::count(&model)
            .kinds
            .iter()
            .map(|k| k.expert)
            .max()
            .unwrap();
        assert_eq!(none.expert_bytes, 2.0 * total as f64 / none.experts as f64);
        assert_eq!(none.replica_bytes_per_rank, 0.0);
        let more = some.experts_bytes_per_rank - none.experts_bytes_per_rank;
        assert!((more / some.replica_bytes_per_rank - 1.0).abs() < 1e-12);
        let one_each = some.moe_layers as f64 * some.expert_bytes;
        assert!((some.replica_bytes_per_rank / one_each - 1.0).abs() < 1e-12);
    }
}
