//! Why a layout costs what it costs: its process groups with the links they span, and its stages
//! with their times and memory. The same arithmetic as [`Estimator::row`], told in more words.

use serde::Serialize;

use crate::error::Result;
use crate::layout::{Layout, Schedule, Sharding};
use crate::pipeline::replay::{self, ChunkTimes};

use super::Estimator;
use super::group::Grid;
use super::layer::LayerKey;
use super::links::Span;
use super::row::Row;
use super::stage::{StageClass, StagePlan, chunk_sizes};

/// Most passes that a replay runs for an explanation.
const MOST_PASSES: u64 = 1 << 23;

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

/// The pipeline replayed event by event from the times of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// From the first forward to the last backward, messages as delays, s.
    pub makespan_s: f64,
    /// The part of it in which the slowest stage computes nothing, s.
    pub bubble_s: f64,
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
    /// The schedule replayed: with more than one stage, and not for DualPipe.
    pub replay: Option<Replayed>,
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
            replay: self.replayed(layout, row.micro_batches)?,
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
        let costs = self.layer_costs(key_of(l));
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
                    in_flight: block.in_flight(l.schedule, stage.stage, m),
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

    fn replayed(&self, l: &Layout, m: u64) -> Result<Option<Replayed>> {
        let passes = m * u64::from(l.pp) * u64::from(l.vpp);
        if l.pp == 1 || l.schedule == Schedule::DualPipe || passes > MOST_PASSES {
            return Ok(None);
        }
        let costs = self.layer_costs(key_of(l));
        let mut chunks = StagePlan::new(&self.model, l.pp * l.vpp, 1);
        chunks.vpp = l.vpp; // what hides behind other micro-batches still does
        let stride = self.stage_stride(grid_of(l));
        let block = self.block(&costs, &chunks, l.recompute, l.recompute_layers, stride);
        let times: Vec<ChunkTimes> = self
            .classes_in_order(&chunks)
            .into_iter()
            .map(|class| {
                let stage = &block.stages[class];
                ChunkTimes {
                    forward_s: stage.forward + self.software.micro_batch_s,
                    backward_input_s: (stage.backward - stage.weight_gradient).max(0.0),
                    weight_s: stage.weight_gradient,
                }
            })
            .collect();
        let plan = replay::Plan {
            schedule: l.schedule,
            stages: l.pp as usize,
            micro_batches: usize::try_from(m).unwrap_or(usize::MAX),
            forward_delay_s: block.message_s,
            backward_delay_s: block.message_s,
        };
        let replay = replay::replay(&plan, &times)?;
        Ok(Some(Replayed {
            makespan_s: replay.makespan_s,
            bubble_s: replay.idle_s.iter().copied().fold(f64::INFINITY, f64::min),
        }))
    }

    /// Class of each chunk, in model order.
    fn classes_in_order(&self, plan: &StagePlan) -> Vec<usize> {
        let count = plan.pp as usize;
        let mut next = 0;
        chunk_sizes(self.model.layers.len(), count)
            .into_iter()
            .enumerate()
            .map(|(i, size)| {
                let mut counts = vec![0.0; self.model.kinds.len()];
                for &kind in &self.model.layers[next..next + size] {
                    counts[kind] += 1.0;
                }
                next += size;
                let ends = (i == 0, i + 1 == count);
                let same = |c: &StageClass| (c.first, c.last) == ends && c.counts == counts;
                plan.classes.iter().position(same).unwrap_or(0)
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

fn key_of(l: &Layout) -> LayerKey {
    LayerKey {
        tp: l.tp,
        cp: l.cp,
        ep: l.ep,
        etp: l.etp,
        micro_batch: l.micro_batch,
        sequence_parallel: l.sequence_parallel,
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

#[cfg(test)]
mod tests {
    use crate::layout::Schedule;
    use crate::sweep::tests::small_moe;

    /// Every layout of a small space, in steps.
    #[test]
    fn an_explanation_agrees_with_its_row() {
        let job = small_moe(16);
        let mut replays = 0;
        for id in (0..job.index.len()).step_by(97) {
            let layout = job.index.layout(&job.space, id).unwrap();
            let told = job.estimator.explain(&layout).unwrap();
            let row = &told.row;
            assert_eq!(row, &job.estimator.row(&layout).unwrap());
            let ranks = |name: &str| {
                let group = told.groups.iter().find(|g| g.name == name);
                group.map_or(1, |g| g.ranks)
            };
            assert_eq!(ranks("tensor"), u64::from(layout.tp));
            assert_eq!(ranks("data"), u64::from(layout.dp * layout.cp));
            assert_eq!(ranks("expert"), u64::from(layout.ep));
            assert_eq!(ranks("pipeline"), u64::from(layout.pp));
            let stages: u64 = told.stages.iter().map(|s| s.stages).sum();
            assert_eq!(stages, u64::from(layout.pp));
            let fullest = told.stages.iter().map(|s| s.allocated_bytes);
            let allocated = row.peak_memory_bytes - row.fragmentation_bytes - row.context_bytes;
            let most = fullest.fold(0.0, f64::max);
            assert!((most / allocated - 1.0).abs() < 1e-12, "{layout:?}");
            let least = told.stages.iter().map(|s| s.headroom_bytes);
            assert!((least.fold(f64::MAX, f64::min) - row.headroom_bytes).abs() < 1.0);
            if let Some(replay) = told.replay {
                assert!(replay.bubble_s >= 0.0 && replay.bubble_s < replay.makespan_s);
                assert!(layout.pp > 1 && layout.schedule != Schedule::DualPipe);
                replays += 1;
            }
        }
        assert!(replays > 10);
    }
}
