//! A sweep as it is asked for, and the part of the answer that is not a table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::error::Result;
use crate::layout::axes::Axes;
use crate::layout::rules::RULES;
use crate::layout::space::Space;
use crate::layout::{Framework, Layout, Status};
use crate::model::Model;
use crate::training::Estimator;
use crate::training::software::Software;
use crate::training::workload::Training;

use super::control::Control;
use super::{Job, Outcome};

/// Bytes in a GiB, as people read memory.
const GIB: f64 = 1_073_741_824.0;

/// A job whose space is to be swept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
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
    /// Axes of the space.
    pub space: Axes,
}

/// A rule and what it rejects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejection {
    /// Short name of the rule; empty for memory.
    pub rule: &'static str,
    /// Status that it gives.
    pub status: &'static str,
    /// The rule, with the numbers of the example.
    pub text: String,
    /// Candidates that it rejects.
    pub layouts: u64,
    /// One of them, as far as it was known when it broke the rule.
    pub example: Layout,
}

/// The account of a sweep: `total = evaluated + pruned + Σ rejected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Candidates of the space.
    pub total: u64,
    /// Candidates that obey every rule.
    pub feasible: u64,
    /// Candidates estimated, and they fit.
    pub evaluated: u64,
    /// Candidates that a bound ruled out.
    pub pruned: u64,
    /// Candidates that are not feasible, by status; `memory` among them.
    pub rejected: BTreeMap<&'static str, u64>,
    /// The same by rule, in the order of checks.
    pub rules: Vec<Rejection>,
    /// Where nothing fits: the constraint that is nearest to giving way.
    pub nearest: Option<Rejection>,
}

impl Request {
    /// Walk the space.
    ///
    /// # Errors
    /// When an input makes no sense, no candidate is left, or `control` says stop.
    pub fn job(self, control: &Control) -> Result<Job> {
        let Self {
            model,
            cluster,
            training,
            software,
            framework,
            gpus,
            space,
        } = self;
        let space = Space::new(&model, &cluster, &training, framework, gpus, &space)?;
        let estimator = Estimator::new(model, cluster, training, software, gpus)?;
        Job::walk(estimator, space, control)
    }
}

impl Job {
    /// The account of a sweep.
    #[must_use]
    pub fn summary(&self, outcome: &Outcome) -> Summary {
        let counts = &outcome.counts;
        let mut rejected: BTreeMap<_, _> = counts
            .by_status()
            .into_iter()
            .map(|(status, n)| (status.name(), n))
            .collect();
        if outcome.over_memory > 0 {
            rejected.insert(Status::Memory.name(), outcome.over_memory);
        }
        let broken = RULES.iter().zip(&counts.rejected).zip(&counts.examples);
        let rules: Vec<Rejection> = broken
            .filter_map(|((rule, &layouts), example)| {
                let example = (*example)?;
                let text = rule.render(&self.space.facts, &example);
                Some(Rejection {
                    rule: rule.id,
                    status: rule.status.name(),
                    text,
                    layouts,
                    example,
                })
            })
            .collect();
        let nearest = if outcome.top.is_empty() {
            self.over_memory(outcome).or_else(|| rules.last().cloned())
        } else {
            None
        };
        Summary {
            total: counts.total,
            feasible: counts.feasible,
            evaluated: outcome.evaluated,
            pruned: outcome.pruned,
            rejected,
            rules,
            nearest,
        }
    }

    /// The leanest layout, where none fits.
    fn over_memory(&self, outcome: &Outcome) -> Option<Rejection> {
        let leanest = outcome.leanest.as_ref()?;
        let device = self.estimator.cluster.device.memory_bytes;
        Some(Rejection {
            rule: "",
            status: Status::Memory.name(),
            text: format!(
                "the leanest layout needs {:.1} GiB of {:.1} GiB a GPU",
                leanest.peak_bytes / GIB,
                device / GIB
            ),
            layouts: outcome.over_memory,
            example: leanest.layout,
        })
    }
}
