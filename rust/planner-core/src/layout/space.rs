//! The space: every candidate layout of a job, those that obey the rules, and why the others do not.
//!
//! A candidate is a point of the cross product
//! (tp, cp) × (ep, etp) × pp × micro-batch × sequence parallel × recompute × (schedule, vpp) × sharding
//! with tp · cp · pp dividing the world. Rules are checked level by level on the way down, so a
//! broken one rejects its whole subtree, whose size is a product of axis lengths.

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::layout::axes::{Axes, Candidates};
use crate::layout::facts::Facts;
use crate::layout::rules::{Check, Level, RULES};
use crate::layout::shape::gcd;
use crate::layout::{Framework, Layout, Recompute, Schedule, Sharding};
use crate::model::Model;
use crate::training::workload::Training;

type Predicate = fn(&Facts, &Layout) -> bool;

/// All candidates of a job.
#[derive(Clone, Debug)]
pub struct Space {
    /// What the rules know.
    pub facts: Facts,
    /// Whose rules bind.
    pub framework: Framework,
    /// Values of every axis.
    pub candidates: Candidates,
    rules: Vec<Vec<(usize, Predicate)>>,
}

/// Layouts that share (tp, cp, ep, etp): one set of layer costs per micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Expert tensor-parallel degree.
    pub etp: u32,
    /// Feasible choices of pp with what may follow each, ascending in pp.
    pub prefixes: Vec<Prefix>,
}

/// Layouts that share the whole grid of ranks. Their number is
/// `sequence · recompute · sharding · Σ plans`, and [`Space::layout`] regenerates each from its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel degree.
    pub dp: u32,
    /// Feasible micro-batches, ascending.
    pub micro: Vec<Micro>,
    /// Feasible sequence parallelism.
    pub sequence: Vec<bool>,
    /// Feasible recomputation with its layers per stage.
    pub recompute: Vec<(Recompute, u32)>,
    /// Feasible sharding with its group.
    pub sharding: Vec<(Sharding, u32)>,
}

/// A micro-batch and the schedules that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Micro {
    /// Sequences in a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches per step m.
    pub count: u64,
    /// Bit i: plan i of [`Candidates::plan`] is feasible.
    pub plans: u64,
}

impl Micro {
    /// Feasible plans.
    #[must_use]
    pub const fn plan_count(&self) -> u64 {
        self.plans.count_ones() as u64
    }
}

impl Prefix {
    /// Places of every micro-batch with every sequence parallelism, in layout order.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let sequences = self.sequence.len();
        (0..self.micro.len()).flat_map(move |m| (0..sequences).map(move |s| (m, s)))
    }

    /// Layouts per plan of one micro-batch: sequence · recompute · sharding.
    #[must_use]
    pub const fn per_plan(&self) -> u64 {
        (self.sequence.len() * self.recompute.len() * self.sharding.len()) as u64
    }

    /// Layouts of the prefix.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.per_plan() * self.micro.iter().map(Micro::plan_count).sum::<u64>()
    }
}

impl Group {
    /// Layouts of the group.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.prefixes.iter().map(Prefix::size).sum()
    }
}

impl Space {
    /// The space of a job.
    ///
    /// # Errors
    /// When an input makes no sense, or the pinned axes leave no candidate at all.
    pub fn new(
        model: &Model,
        cluster: &Cluster,
        training: &Training,
        framework: Framework,
        gpus: u64,
        axes: &Axes,
    ) -> Result<Self> {
        Self::from_facts(Facts::new(model, cluster, training, gpus)?, framework, axes)
    }

    /// As [`Space::new`], from facts.
    ///
    /// # Errors
    /// When the pinned axes contradict each other or leave no candidate at all.
    pub fn from_facts(facts: Facts, framework: Framework, axes: &Axes) -> Result<Self> {
        let candidates = axes.candidates(&facts)?;
        for (name, length) in [
            ("micro_batch", candidates.micro_batch.len()),
            ("recompute_layers", candidates.recompute.len()),
            ("vpp", candidates.plan.len()),
            ("shard_group", candidates.sharding.len()),
        ] {
            if length > 64 {
                return Err(Error::field(name, length, "has more than 64 values to try"));
            }
        }
        let mut rules = vec![Vec::new(); Level::Sharding as usize + 1];
        for (index, rule) in RULES.iter().enumerate() {
            if let Check::Layout(level, holds) = rule.check
                && rule.binds(framework)
            {
                rules[level as usize].push((index, holds));
            }
        }
        let space = Self {
            facts,
            framework,
            candidates,
            rules,
        };
        let c = &space.candidates;
        let some =
            c.tp.iter()
                .any(|&tp| c.cp.iter().any(|&cp| !space.stages(tp, cp).is_empty()));
        if !some {
            let rule = format!(
                "tp · cp · pp (· dp) must divide the {} GPUs; no values of these axes do",
                space.facts.world
            );
            return Err(Error::field("tp, cp, pp, dp", "as given", rule));
        }
        Ok(space)
    }

    /// First rule of a level that a layout breaks.
    pub(super) fn broken(&self, level: Level, layout: &Layout) -> Option<usize> {
        let rules = &self.rules[level as usize];
        rules
            .iter()
            .find(|(_, holds)| !holds(&self.facts, layout))
            .map(|&(index, _)| index)
    }

    /// Candidate (pp, dp) of a (tp, cp).
    pub(super) fn stages(&self, tp: u32, cp: u32) -> Vec<(u32, u32)> {
        let ranks = u64::from(tp) * u64::from(cp);
        if !self.facts.world.is_multiple_of(ranks) {
            return Vec::new();
        }
        let rest = self.facts.world / ranks;
        let pairs = self.candidates.pp.iter().filter_map(|&pp| {
            let dp = u32::try_from(rest / u64::from(pp)).ok()?;
            let listed = self
                .candidates
                .dp
                .as_ref()
                .is_none_or(|list| list.contains(&dp));
            (listed && rest.is_multiple_of(u64::from(pp))).then_some((pp, dp))
        });
        pairs.collect()
    }

    /// Values of sequence parallelism at a tp.
    pub(super) fn sequence(&self, tp: u32) -> &[bool] {
        if tp == 1 {
            &[false]
        } else {
            &self.candidates.sequence_parallel
        }
    }

    /// Layers per stage of a kind of recomputation: those of `block`, half a stage's unless stated.
    #[must_use]
    pub fn recompute_layers(&self, kind: Recompute, layers: Option<u32>, pp: u32) -> u32 {
        recompute_layers(&self.facts, kind, layers, pp)
    }

    pub(super) fn shard_group(&self, kind: Sharding, group: Option<u32>, grid: &Layout) -> u32 {
        shard_group(&self.facts, kind, group, grid)
    }

    /// The layout at an offset of a prefix; offsets run over micro-batch, sequence parallelism,
    /// recomputation, plan, sharding, the last fastest.
    #[must_use]
    pub fn layout(&self, group: &Group, prefix: &Prefix, offset: u64) -> Option<Layout> {
        let per_plan = prefix.per_plan();
        let mut rest = offset;
        let micro = prefix.micro.iter().find(|m| {
            let size = m.plan_count() * per_plan;
            let here = rest < size;
            if !here {
                rest -= size;
            }
            here
        })?;
        let mut digit = |base: u64| {
            let value = rest % base;
            rest /= base;
            usize::try_from(value).unwrap_or(usize::MAX)
        };
        let (sharding, shard_group) = prefix.sharding[digit(prefix.sharding.len() as u64)];
        let nth = digit(micro.plan_count());
        let (recompute, recompute_layers) = prefix.recompute[digit(prefix.recompute.len() as u64)];
        let sequence_parallel = prefix.sequence[digit(prefix.sequence.len() as u64)];
        let plan = (0..64).filter(|i| micro.plans >> i & 1 == 1).nth(nth)?;
        let (schedule, vpp) = self.candidates.plan[plan];
        Some(Layout {
            tp: group.tp,
            cp: group.cp,
            ep: group.ep,
            etp: group.etp,
            pp: prefix.pp,
            dp: prefix.dp,
            vpp,
            micro_batch: micro.micro_batch,
            sequence_parallel,
            recompute,
            recompute_layers,
            sharding,
            shard_group,
            schedule,
        })
    }
}

/// The layout with every degree 1 and every switch off.
pub const ONE: Layout = Layout {
    tp: 1,
    cp: 1,
    ep: 1,
    etp: 1,
    pp: 1,
    dp: 1,
    vpp: 1,
    micro_batch: 1,
    sequence_parallel: false,
    recompute: Recompute::None,
    recompute_layers: 0,
    sharding: Sharding::None,
    shard_group: 1,
    schedule: Schedule::OneFOneB,
};

/// Layers per stage of a kind of recomputation: half a stage's for `block` unless stated.
#[must_use]
pub fn recompute_layers(facts: &Facts, kind: Recompute, layers: Option<u32>, pp: u32) -> u32 {
    match kind {
        Recompute::Block => {
            layers.unwrap_or_else(|| u32::try_from(facts.stage_layers(pp) / 2).unwrap_or(u32::MAX))
        }
        _ => 0,
    }
}

/// Ranks of a shard group: dp · cp, or for HSDP those of one NVLink domain unless stated.
#[must_use]
pub fn shard_group(facts: &Facts, kind: Sharding, group: Option<u32>, grid: &Layout) -> u32 {
    let all = u64::from(grid.dp) * u64::from(grid.cp);
    let ranks = match (kind, group) {
        (Sharding::Hsdp, Some(group)) => u64::from(group),
        (Sharding::Hsdp, None) if facts.domain.is_multiple_of(u64::from(grid.tp)) => {
            gcd(facts.domain / u64::from(grid.tp), all)
        }
        (Sharding::Hsdp, None) => 1,
        _ => all,
    };
    u32::try_from(ranks).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
