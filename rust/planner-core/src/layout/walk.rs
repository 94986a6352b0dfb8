//! The walk over a space: each broken rule rejects a subtree, which is counted by the product of its
//! axis lengths and never visited.

use crate::layout::Layout;
use crate::layout::count::Counts;
use crate::layout::rules::Level;
use crate::layout::space::{Group, Micro, ONE, Prefix, Space, recompute_layers};

/// The feasible part of a space and the account of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enumeration {
    /// Feasible groups, in layout order.
    pub groups: Vec<Group>,
    /// Fate of every candidate.
    pub counts: Counts,
}

impl Space {
    /// Candidates below one grid of ranks.
    fn below_grid(&self, tp: u32) -> u64 {
        let c = &self.candidates;
        let free = c.micro_batch.len() * c.recompute.len() * c.plan.len() * c.sharding.len();
        (free * self.sequence(tp).len()) as u64
    }

    /// Walk the space: the feasible groups, and every other candidate counted under its rule.
    #[must_use]
    pub fn enumerate(&self) -> Enumeration {
        let mut groups = Vec::new();
        let mut counts = Counts::default();
        let c = &self.candidates;
        for &tp in &c.tp {
            for &cp in &c.cp {
                let stages = self.stages(tp, cp);
                let below = stages.len() as u64 * self.below_grid(tp);
                let pairs = (c.ep.len() * c.etp.len()) as u64;
                counts.total += below * pairs;
                let layout = Layout { tp, cp, ..ONE };
                if let Some(rule) = self.broken(Level::Tensor, &layout) {
                    counts.reject(rule, &layout, below * pairs);
                    continue;
                }
                for &ep in &c.ep {
                    for &etp in &c.etp {
                        let layout = Layout { ep, etp, ..layout };
                        if let Some(rule) = self.broken(Level::Expert, &layout) {
                            counts.reject(rule, &layout, below);
                            continue;
                        }
                        let prefixes = self.prefixes(&layout, &stages, &mut counts);
                        if !prefixes.is_empty() {
                            groups.push(Group {
                                tp,
                                cp,
                                ep,
                                etp,
                                prefixes,
                            });
                        }
                    }
                }
            }
        }
        counts.feasible = groups.iter().map(Group::size).sum();
        Enumeration { groups, counts }
    }

    /// Feasible prefixes of a group; the others are counted.
    fn prefixes(&self, group: &Layout, stages: &[(u32, u32)], counts: &mut Counts) -> Vec<Prefix> {
        let mut out = Vec::new();
        for &(pp, dp) in stages {
            let layout = Layout { pp, dp, ..*group };
            match self.broken(Level::Stage, &layout) {
                Some(rule) => counts.reject(rule, &layout, self.below_grid(group.tp)),
                None => out.extend(self.prefix(&layout, counts)),
            }
        }
        out
    }

    /// What may follow a grid of ranks); what may not is counted, level by level.
    fn prefix(&self, grid: &Layout, counts: &mut Counts) -> Option<Prefix> {
        let c = &self.candidates;
        let (n_recompute, n_plan, n_sharding) = (
            c.recompute.len() as u64,
            c.plan.len() as u64,
            c.sharding.len() as u64,
        );
        let all_sequence = self.sequence(grid.tp);
        let mut keep = |level: Level, layout: Layout, below: u64| match self.broken(level, &layout)
        {
            Some(rule) => {
                counts.reject(rule, &layout, below);
                None
            }
            None => Some(layout),
        };

        let below = all_sequence.len() as u64 * n_recompute * n_plan * n_sharding;
        let batches = c.micro_batch.iter().map(|&micro_batch| Layout {
            micro_batch,
            ..*grid
        });
        let micro: Vec<_> = batches
            .filter_map(|l| keep(Level::MicroBatch, l, below))
            .collect();

        let below = micro.len() as u64 * n_recompute * n_plan * n_sharding;
        let sequence = all_sequence.iter().map(|&on| Layout {
            sequence_parallel: on,
            ..*grid
        });
        let sequence: Vec<_> = sequence
            .filter_map(|l| keep(Level::Sequence, l, below))
            .collect();

        let below = (micro.len() * sequence.len()) as u64 * n_plan * n_sharding;
        let recompute = c.recompute.iter().map(|&(kind, layers)| {
            let recompute_layers = recompute_layers(&self.facts, kind, layers, grid.pp);
            Layout {
                recompute: kind,
                recompute_layers,
                ..*grid
            }
        });
        let recompute: Vec<_> = recompute
            .filter_map(|l| keep(Level::Recompute, l, below))
            .collect();

        let per_plan = (sequence.len() * recompute.len()) as u64;
        let with_plans = |layout: Layout| {
            let plans = c
                .plan
                .iter()
                .enumerate()
                .fold(0, |mask, (i, &(schedule, vpp))| {
                    let plan = Layout {
                        schedule,
                        vpp,
                        ..layout
                    };
                    mask | u64::from(keep(Level::Schedule, plan, per_plan * n_sharding).is_some())
                        << i
                });
            let count = self.facts.micro_batches(&layout);
            Micro {
                micro_batch: layout.micro_batch,
                count,
                plans,
            }
        };
        let micro: Vec<_> = micro
            .into_iter()
            .map(with_plans)
            .filter(|m| m.plans > 0)
            .collect();

        let below = per_plan * micro.iter().map(Micro::plan_count).sum::<u64>();
        let sharding = c.sharding.iter().map(|&(kind, group)| {
            let shard_group = self.shard_group(kind, group, grid);
            Layout {
                sharding: kind,
                shard_group,
                ..*grid
            }
        });
        let sharding = sharding.filter_map(|l| keep(Level::Sharding, l, below));
        let sharding: Vec<_> = sharding.map(|l| (l.sharding, l.shard_group)).collect();

        let prefix = Prefix {
            pp: grid.pp,
            dp: grid.dp,
            micro,
            sequence: sequence.iter().map(|l| l.sequence_parallel).collect(),
            recompute: recompute
                .iter()
                .map(|l| (l.recompute, l.recompute_layers))
                .collect(),
            sharding,
        };
        (prefix.size() > 0).then_some(prefix)
    }
}
