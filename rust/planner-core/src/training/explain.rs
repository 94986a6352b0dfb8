//! Why a layout costs what it costs: its process groups with the links they span, and its stages
//! with their times and memory. The same arithmetic as [`Estimator::row`], told in more words.

use serde::Serialize;

use crate::error::Result;
use crate::layout::{Layout, Sharding};

use super::Estimator;
use super::block::in_flight;
use super::group::Grid;
use super::layer::LayerKey;
use super::links::Span;
use super::row::Row;
use super::stage::{StageClass, StagePlan};

/// A process group and what it spans.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankGroup {
    /// What the group is for.
    pub name: &'static str,
    /// Ranks in the group.
    pub ranks: u64,
    /// Ranks between neighbours of the group.
    pub stride: u64,
    /// Ranks of the group inside one scale-up domain.
    pub per_domain: u64,
    /// Links that its traffic crosses, from the fastest to the slowest.
    pub links: Vec<String>,
}

/// Stages that hold the same layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// The earliest of them; the numbers of bytes are its own.
    pub stage: u32,
    /// How many there are.
    pub stages: u64,
    /// Layers by kind, kinds that occur only.
    pub layers: Vec<(String, u64)>,
    /// Holds the embedding.
    pub embedding: bool,
    /// Holds the LM head.
    pub head: bool,
    /// Forward of one micro-batch, s.
    pub forward_s: f64,
    /// Backward of one micro-batch with recomputation, s.
    pub backward_s: f64,
    /// Micro-batches whose activations are held at once, in stage equivalents.
    pub in_flight: f64,
    /// Weights and gathered layers, bytes.
    pub weights_bytes: f64,
    /// Gradients, bytes.
    pub gradients_bytes: f64,
    /// Optimizer state and master weights, bytes.
    pub optimizer_bytes: f64,
    /// Activations in flight and working set of recomputation, bytes.
    pub activations_bytes: f64,
    /// Logits and loss workspace, bytes.
    pub logits_bytes: f64,
    /// Communication and framework buffers, bytes.
    pub buffers_bytes: f64,
    /// All that the framework allocates, bytes.
    pub allocated_bytes: f64,
    /// Device memory less context and allocated bytes.
    pub headroom_bytes: f64,
}

/// A layout explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Every term.
    pub row: Row,
    /// Process groups of more than one rank.
    pub groups: Vec<RankGroup>,
    /// Stages, by earliest stage.
    pub stages: Vec<StageReport>,
}

impl Estimator {
    /// Explains one layout.
    ///
    /// # Errors
    /// As [`Estimator::row`].
    pub fn explain(&self, layout: &Layout) -> Result<Explanation> {
        let row = self.row(layout)?;
        Ok(Explanation {
            groups: self.rank_groups(layout),
            stages: self.stage_reports(layout, row.micro_batches as f64),
            row,
        })
    }

    fn rank_groups(&self, l: &Layout) -> Vec<RankGroup> {
        let grid = grid_of(l);
        let (dense, expert) = self.data_spans(grid);
        let experts = l.ep > 1 || l.etp > 1;
        let mut groups = vec![
            self.rank_group("tensor", self.links.span(f64::from(l.tp), 1.0)),
            self.rank_group("context", self.links.span(f64::from(l.cp), f64::from(l.tp))),
            self.rank_group("expert", self.links.span(f64::from(l.ep), f64::from(l.etp))),
            self.rank_group("data", dense),
            self.rank_group(
                "pipeline",
                self.links.span(f64::from(l.pp), self.stage_stride(grid)),
            ),
        ];
        if experts {
            groups.insert(4, self.rank_group("expert data", expert));
            groups.insert(
                2,
                self.rank_group("expert tensor", self.links.span(f64::from(l.etp), 1.0)),
            );
        }
        if l.sharding == Sharding::Hsdp {
            let stride = dense.stride();
            let shard = self.links.span(f64::from(l.shard_group), stride);
            groups.push(self.rank_group("shard", shard));
        }
        groups.retain(|group| group.ranks > 1);
        groups
    }

    fn rank_group(&self, name: &'static str, span: Span) -> RankGroup {
        let mut links = Vec::new();
        if span.per_domain > 1.0 || span.local() {
            links.push("scale-up".to_owned());
        }
        if !span.local() {
            links.push("NIC".to_owned());
            let tiers = self.cluster.scale_out.tiers.iter();
            links.extend(
                tiers
                    .filter(|tier| span.extent > tier.gpus as f64)
                    .map(|tier| format!("above {}", tier.name)),
            );
        }
        RankGroup {
            name,
            ranks: span.ranks as u64,
            stride: span.stride() as u64,
            per_domain: span.per_domain as u64,
            links,
        }
    }

    fn stage_reports(&self, l: &Layout, m: f64) -> Vec<StageReport> {
        let grid = grid_of(l);
        let costs = self.layer_costs(LayerKey {
            tp: l.tp,
            cp: l.cp,
            ep: l.ep,
            etp: l.etp,
            micro_batch: l.micro_batch,
            sequence_parallel: l.sequence_parallel,
        });
        let plan = StagePlan::new(&self.model, l.pp, l.vpp);
        let group = self.group_costs(grid, &plan, l.sharding, l.shard_group);
        let stride = self.stage_stride(grid);
        let block = self.block(&costs, &plan, l.recompute, l.recompute_layers, stride);
        let buffers = self.buffers(&block);
        let capacity = self.cluster.device.memory_bytes - self.software.context_bytes;
        let parts = plan.classes.iter().zip(&block.stages).zip(&group.memory);
        parts
            .map(|((class, stage), fixed)| {
                let busy = block.stage_bytes(stage, l.schedule, m);
                let fixed = fixed.under(l.schedule);
                let allocated = busy + fixed.total() + buffers;
                StageReport {
                    stage: class.stage,
                    stages: class.stages as u64,
                    layers: self.layers_of(class),
                    embedding: class.first,
                    head: class.last,
                    forward_s: stage.forward,
                    backward_s: stage.backward,
                    in_flight: in_flight(l.schedule, stage.stage, block.pp, block.vpp, m),
                    weights_bytes: fixed.weights,
                    gradients_bytes: fixed.gradients,
                    optimizer_bytes: fixed.optimizer,
                    activations_bytes: busy - stage.logits_bytes,
                    logits_bytes: stage.logits_bytes,
                    buffers_bytes: buffers,
                    allocated_bytes: allocated,
                    headroom_bytes: capacity - allocated,
                }
            })
            .collect()
    }

    fn layers_of(&self, class: &StageClass) -> Vec<(String, u64)> {
        let counts = self.model.kinds.iter().zip(&class.counts);
        counts
            .filter(|(_, n)| **n > 0.0)
            .map(|(kind, &n)| (kind.name.clone(), n as u64))
            .collect()
    }
}

fn grid_of(l: &Layout) -> Grid {
    Grid {
        tp: l.tp,
        cp: l.cp,
        ep: l.ep,
        etp: l.etp,
        pp: l.pp,
    }
}
