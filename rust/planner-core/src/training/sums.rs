//! Sums over the units of a stage: what recomputations of the same stage share.

use crate::layout::Recompute;

use super::block::StageCosts;
use super::layer::{LayerCosts, Terms, UnitCosts};
use super::stage::StageClass;

/// One stage class for one micro-batch, before recomputation is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSums {
    /// Forward, s.
    pub forward: f64,
    /// Backward, s.
    pub backward: f64,
    /// Weight-gradient part of the backward, s.
    pub weight_gradient: f64,
    /// Activations kept without recomputation, bytes.
    pub saved_bytes: f64,
    /// What selective recomputation adds to the backward, s.
    pub selective_s: f64,
    /// What selective recomputation adds to the activations (negative), bytes.
    pub selective_bytes: f64,
    /// What full recomputation adds to the backward, s.
    pub full_s: f64,
    /// What full recomputation adds to the activations (negative), bytes.
    pub full_bytes: f64,
    /// Working set of a full recomputation: the largest layer, bytes.
    pub working_bytes: f64,
    /// The least that any recomputation adds to the activations (at most 0), bytes.
    pub least_bytes: f64,
}

fn seconds(terms: &Terms, ep_share: f64) -> f64 {
    terms.without_ep() + ep_share * terms.ep
}

impl StageSums {
    /// Sums of a class; `ep_share` of dispatch and combine is exposed.
    #[must_use]
    pub fn new(costs: &LayerCosts, class: &StageClass, ep_share: f64) -> Self {
        let mut sums = Self::default();
        for (unit, n) in units(costs, class) {
            sums.forward += n * seconds(&unit.forward, ep_share);
            sums.backward += n * seconds(&unit.backward, ep_share);
            sums.weight_gradient += n * unit.weight_gradient;
            sums.saved_bytes += n * unit.saved_bytes;
        }
        for (unit, &n) in costs.kinds.iter().zip(&class.counts) {
            if n > 0.0 {
                sums.selective_s += n * seconds(&unit.selective, ep_share);
                sums.selective_bytes += n * (unit.selective_bytes - unit.saved_bytes);
                sums.full_s += n * seconds(&unit.full, ep_share);
                sums.full_bytes += n * (unit.input_bytes - unit.saved_bytes);
                let kept = unit
                    .saved_bytes
                    .min(unit.selective_bytes)
                    .min(unit.input_bytes);
                sums.least_bytes += n * (kept - unit.saved_bytes);
                sums.working_bytes = sums.working_bytes.max(unit.saved_bytes);
            }
        }
        sums
    }

    /// The stage under a recomputation (and its layers, for `block`).
    #[inline]
    #[must_use]
    pub fn stage(
        &self,
        costs: &LayerCosts,
        class: &StageClass,
        (recompute, layers): (Recompute, u32),
        ep_share: f64,
    ) -> StageCosts {
        let (again, bytes, working_bytes) = match recompute {
            Recompute::None => (0.0, 0.0, 0.0),
            Recompute::Selective => (self.selective_s, self.selective_bytes, 0.0),
            Recompute::Full => (self.full_s, self.full_bytes, self.working_bytes),
            Recompute::Block => first_layers(costs, class, layers, ep_share),
        };
        StageCosts {
            forward: self.forward,
            backward: self.backward + again,
            weight_gradient: self.weight_gradient,
            activation_bytes: self.saved_bytes + bytes,
            working_bytes,
            logits_bytes: if class.last { costs.logits_bytes } else { 0.0 },
            stage: f64::from(class.stage),
        }
    }
}

/// Time, bytes and working set that recomputing the first `layers` layers of a stage adds. Layers
/// of one kind that follow one another are taken together.
fn first_layers(
    costs: &LayerCosts,
    class: &StageClass,
    layers: u32,
    ep_share: f64,
) -> (f64, f64, f64) {
    let first = &class.layers[..class.layers.len().min(layers as usize)];
    let (mut again, mut bytes, mut working) = (0.0, 0.0, 0.0_f64);
    for run in first.chunk_by(|a, b| a == b) {
        let (unit, n) = (&costs.kinds[run[0]], run.len() as f64);
        again += n * seconds(&unit.full, ep_share);
        bytes += n * (unit.input_bytes - unit.saved_bytes);
        working = working.max(unit.saved_bytes);
    }
    (again, bytes, working)
}

/// Terms of forward and backward (recomputation included) of one class, dispatch unweighted.
#[must_use]
pub fn stage_terms(
    costs: &LayerCosts,
    class: &StageClass,
    recompute: Recompute,
    recompute_layers: u32,
) -> (Terms, Terms, Terms) {
    let (mut forward, mut backward, mut again) =
        (Terms::default(), Terms::default(), Terms::default());
    for (unit, n) in units(costs, class) {
        forward = forward.plus(n, &unit.forward);
        backward = backward.plus(n, &unit.backward);
    }
    for (unit, n) in recomputed(costs, class, recompute, recompute_layers) {
        let terms = if recompute == Recompute::Selective {
            &unit.selective
        } else {
            &unit.full
        };
        again = again.plus(n, terms);
    }
    (forward, backward, again)
}

/// Units on a stage: layers by kind, embedding, head.
pub fn units<'a>(
    costs: &'a LayerCosts,
    class: &'a StageClass,
) -> impl Iterator<Item = (&'a UnitCosts, f64)> {
    let layers = costs
        .kinds
        .iter()
        .zip(class.counts.iter().copied())
        .filter(|(_, n)| *n > 0.0);
    let ends = [(&costs.embedding, class.first), (&costs.head, class.last)];
    layers.chain(
        ends.into_iter()
            .filter(|(_, on)| *on)
            .map(|(unit, _)| (unit, 1.0)),
    )
}

/// Layers of a stage that the backward pass recomputes, by kind.
pub fn recomputed<'a>(
    costs: &'a LayerCosts,
    class: &'a StageClass,
    recompute: Recompute,
    recompute_layers: u32,
) -> impl Iterator<Item = (&'a UnitCosts, f64)> {
    let whole = matches!(recompute, Recompute::Selective | Recompute::Full);
    let by_kind = costs
        .kinds
        .iter()
        .zip(class.counts.iter().copied())
        .filter(move |(_, n)| whole && *n > 0.0);
    let block = if recompute == Recompute::Block {
        recompute_layers as usize
    } else {
        0
    };
    let first = class
        .layers
        .iter()
        .take(block)
        .map(|&k| (&costs.kinds[k], 1.0));
    by_kind.chain(first)
}
