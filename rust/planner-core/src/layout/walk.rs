//! The walk over a space: each broken rule rejects a subtree, which is counted by the product of its
//! axis lengths and never visited.

use std::collections::HashMap;

use crate::layout::count::Counts;
use crate::layout::rules::Level;
use crate::layout::space::{Group, Micro, ONE, Prefix, Space, recompute_layers};
use crate::layout::{Layout, Schedule};

/// The feasible part of a space and the account of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enumeration {
    /// Feasible groups, in layout order.
    pub groups: Vec<Group>,
    /// Fate of every candidate.
    pub counts: Counts,
}

/// What a walk collects.
#[derive(Default)]
struct Tally {
    counts: Counts,
    /// Plans by (ep, pp, micro-batches per step).
    plans: HashMap<(u32, u32, u64), Plans>,
}

/// Feasible plans of a micro-batch, and the rules that the others break.
#[derive(Default)]
struct Plans {
    mask: u64,
    /// Rule, its first plan, number of plans.
    broken: Vec<(usize, (Schedule, u32), u64)>,
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
        self.enumerate_while(&|| true)
    }

    /// As [`Space::enumerate`], for as long as `go_on` says so: a walk that was stopped is of no
    /// use but to be dropped.
    #[must_use]
    pub fn enumerate_while(&self, go_on: &dyn Fn() -> bool) -> Enumeration {
        let mut groups = Vec::new();
        let mut tally = Tally::default();
        let c = &self.candidates;
        for &tp in &c.tp {
            for cp in c.cp.iter().copied().take_while(|_| go_on()) {
                let stages = self.stages(tp, cp);
                let below = stages.len() as u64 * self.below_grid(tp);
                let pairs = (c.ep.len() * c.etp.len()) as u64;
                tally.counts.total += below * pairs;
                let layout = Layout { tp, cp, ..ONE };
                if let Some(rule) = self.broken(Level::Tensor, &layout) {
                    tally.counts.reject(rule, &layout, below * pairs);
                    continue;
                }
                for &ep in &c.ep {
                    for &etp in &c.etp {
                        let layout = Layout { ep, etp, ..layout };
                        if let Some(rule) = self.broken(Level::Expert, &layout) {
                            tally.counts.reject(rule, &layout, below);
                            continue;
                        }
                        let prefixes = self.prefixes(&layout, &stages, &mut tally);
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
        let mut counts = tally.counts;
        counts.feasible = groups.iter().map(Group::size).sum();
        Enumeration { groups, counts }
    }

    /// Feasible prefixes of a group; the others are counted.
    fn prefixes(&self, group: &Layout, stages: &[(u32, u32)], tally: &mut Tally) -> Vec<Prefix> {
        let mut out = Vec::new();
        for &(pp, dp) in stages {
            let layout = Layout { pp, dp, ..*group };
            match self.broken(Level::Stage, &layout) {
                Some(rule) => tally
                    .counts
                    .reject(rule, &layout, self.below_grid(group.tp)),
                None => out.extend(self.prefix(&layout, tally)),
            }
        }
        out
    }

    /// What may follow a grid of ranks; what may not is counted, level by level.
    fn prefix(&self, grid: &Layout, Tally { counts, plans }: &mut Tally) -> Option<Prefix> {
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
            let count = self.facts.micro_batches(&layout);
            let key = (layout.ep, layout.pp, count);
            let known = plans.entry(key).or_insert_with(|| self.plans(&layout));
            for &(rule, (schedule, vpp), number) in &known.broken {
                let example = Layout {
                    schedule,
                    vpp,
                    ..layout
                };
                counts.reject(rule, &example, number * per_plan * n_sharding);
            }
            Micro {
                micro_batch: layout.micro_batch,
                count,
                plans: known.mask,
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
        let mut keep = |layout: Layout| match self.broken(Level::Sharding, &layout) {
            Some(rule) => {
                counts.reject(rule, &layout, below);
                None
            }
            None => Some(layout),
        };
        let sharding = sharding.filter_map(&mut keep);
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

    /// Feasible plans of a micro-batch. Their rules look at ep, pp and the number of micro-batches.
    fn plans(&self, layout: &Layout) -> Plans {
        let mut plans = Plans::default();
        for (i, &(schedule, vpp)) in self.candidates.plan.iter().enumerate() {
            match self.broken(
                Level::Schedule,
                &Layout {
                    schedule,
                    vpp,
                    ..*layout
                },
            ) {
                None => plans.mask |= 1 << i,
                Some(rule) => match plans.broken.iter_mut().find(|b| b.0 == rule) {
                    Some(known) => known.2 += 1,
                    None => plans.broken.push((rule, (schedule, vpp), 1)),
                },
            }
        }
        plans
    }
}
