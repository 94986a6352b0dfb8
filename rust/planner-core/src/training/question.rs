//! One layout judged: which rule it breaks, what it costs, and why.

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::error::Result;
use crate::layout::facts::Facts;
use crate::layout::rules::first_broken;
use crate::layout::space::{recompute_layers, shard_group};
use crate::layout::{Framework, Layout, Recompute, Schedule, Sharding};
use crate::model::Model;

use super::Estimator;
use super::explain::Explanation;
use super::software::Software;
use super::workload::Training;

/// A layout as people state it: what follows from the rest may be left open.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Tensor-parallel degree inside an expert.
    pub etp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel degree; open: what the other degrees leave.
    pub dp: Option<u32>,
    /// Virtual chunks per stage.
    pub vpp: u32,
    /// Sequences in a micro-batch.
    pub micro_batch: u32,
    /// Sequence parallelism; open: on where tp > 1.
    pub sequence_parallel: Option<bool>,
    /// What is recomputed.
    pub recompute: Recompute,
    /// Layers per stage of block recomputation; open: half a stage's.
    pub recompute_layers: Option<u32>,
    /// What is sharded; open: ZeRO-1 where there is a data-parallel group.
    pub sharding: Option<Sharding>,
    /// Ranks in an HSDP shard group; open: the data-parallel ranks of one domain.
    pub shard_group: Option<u32>,
    /// Pipeline schedule; open: interleaved where vpp > 1, else 1F1B.
    pub schedule: Option<Schedule>,
}

/// A job and one layout of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The model.
    pub model: Model,
    /// The cluster.
    pub cluster: Cluster,
    /// The workload.
    pub training: Training,
    /// Costs of the framework.
    pub software: Software,
    /// Whose rules bind.
    pub framework: Framework,
    /// GPUs of the job.
    pub gpus: u64,
    /// The layout.
    pub layout: Stated,
}

/// A rule that the layout breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Short name of the rule.
    pub rule: &'static str,
    /// Status that it gives.
    pub status: &'static str,
    /// The rule with the numbers in place.
    pub text: String,
}

/// What is to be said of a layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The layout, nothing left open.
    pub layout: Layout,
    /// The first rule that it breaks.
    pub refusal: Option<Refusal>,
    /// Its costs, where they can be told: always if no rule is broken.
    pub explanation: Option<Explanation>,
}

impl Stated {
    /// The layout on `world` GPUs.
    #[must_use]
    pub fn layout(&self, facts: &Facts) -> Layout {
        let inner = u64::from(self.tp) * u64::from(self.cp) * u64::from(self.pp);
        let rest = u32::try_from(facts.world / inner.max(1)).unwrap_or(u32::MAX);
        let dp = self.dp.unwrap_or(rest.max(1));
        let (sharded, chunked) = (dp > 1 || self.cp > 1, self.vpp > 1);
        let mut layout = Layout {
            tp: self.tp,
            cp: self.cp,
            ep: self.ep,
            etp: self.etp,
            pp: self.pp,
            dp,
            vpp: self.vpp,
            micro_batch: self.micro_batch,
            sequence_parallel: self.sequence_parallel.unwrap_or(self.tp > 1),
            recompute: self.recompute,
            recompute_layers: recompute_layers(
                facts,
                self.recompute,
                self.recompute_layers,
                self.pp,
            ),
            sharding: self.sharding.unwrap_or(if sharded {
                Sharding::Zero1
            } else {
                Sharding::None
            }),
            shard_group: 1,
            schedule: self.schedule.unwrap_or(if chunked {
                Schedule::Interleaved
            } else {
                Schedule::OneFOneB
            }),
        };
        layout.shard_group = shard_group(facts, layout.sharding, self.shard_group, &layout);
        layout
    }
}

impl Question {
    /// Answers the question.
    ///
    /// # Errors
    /// When an input makes no sense. A layout that breaks a rule is an answer.
    pub fn answer(self) -> Result<Answer> {
        let facts = Facts::new(&self.model, &self.cluster, &self.training, self.gpus)?;
        let layout = self.layout.layout(&facts);
        let refusal = first_broken(&facts, self.framework, &layout).map(|broken| Refusal {
            rule: broken.id,
            status: broken.status.name(),
            text: broken.text,
        });
        let estimator = Estimator::new(
            self.model,
            self.cluster,
            self.training,
            self.software,
            self.gpus,
        )?;
        let explanation = match &refusal {
            None => Some(estimator.explain(&layout)?),
            Some(_) => None,
        };
        Ok(Answer {
            layout,
            refusal,
            explanation,
        })
    }
}
