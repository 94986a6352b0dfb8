//! Seeded Monte-Carlo over batches: the same bytes at any thread count.

use super::rng::Pcg64;
use super::routing::{Routing, ease};
use super::sampler::{Alias, Grouped, Histogram, Sampler};
use super::shape::{Placement, quantiles};
use crate::error::{Error, Result};
use crate::sweep::control::Control;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// A batch to be routed many times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Who gets the tokens.
    pub routing: Routing,
    /// Experts E.
    pub experts: u32,
    /// Experts per token k.
    pub top_k: u32,
    /// Tokens over all ranks T.
    pub tokens: u32,
    /// Expert-parallel ranks R.
    pub ranks: u32,
    /// Nodes that hold the ranks.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Router groups and how many of them a token may use (group-limited routing).
    #[serde(default)]
    pub group_limit: Option<(u32, u32)>,
    /// Slots of experts, rank after rank; empty: experts in order, no replica.
    #[serde(default)]
    pub placement: Vec<u32>,
    /// Rows that an expert accepts; absent: no limit.
    #[serde(default)]
    pub capacity: Option<u32>,
}

const fn one() -> u32 {
    1
}

/// How long to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// Batches.
    pub trials: u32,
    /// Seed.
    pub seed: u64,
    /// Threads; 0: one per core.
    #[serde(default)]
    pub threads: usize,
}

/// Mean with its 95 % half-width, and quantiles over the batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean.
    pub mean: f64,
    /// Half-width of the 95 % confidence interval of the mean.
    pub ci95: f64,
    /// Median batch.
    pub p50: f64,
    /// 99th percentile of the batches.
    pub p99: f64,
}

/// What a batch looks like on the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Fullest expert over the mean expert.
    pub expert_max_over_mean: Estimate,
    /// Median expert over the mean expert.
    pub expert_p50_over_mean: Estimate,
    /// 90th percentile of the experts over the mean expert.
    pub expert_p90_over_mean: Estimate,
    /// 99th percentile of the experts over the mean expert.
    pub expert_p99_over_mean: Estimate,
    /// Fullest rank over the mean rank.
    pub rank_max_over_mean: Estimate,
    /// Different ranks that a token goes to.
    pub distinct_ranks: Estimate,
    /// Different nodes that a token goes to.
    pub distinct_nodes: Estimate,
    /// Experts that at least one token chose.
    pub active_experts: Estimate,
    /// Most active experts on one rank.
    pub active_on_fullest_rank: Estimate,
    /// Token-choices dropped at the capacity, share of all.
    pub dropped_ratio: Estimate,
}

const FIELDS: usize = 10;

impl Batch {
    /// Checks the batch.
    ///
    /// # Errors
    /// Routing that does not fit E and k, ranks or nodes that do not divide, a placement that
    /// misses an expert, or a group limit under which k experts do not fit.
    pub fn check(&self) -> Result<()> {
        self.routing.check(self.experts, self.top_k)?;
        if self.ranks == 0 || self.nodes == 0 || !self.ranks.is_multiple_of(self.nodes) {
            return Err(Error::field(
                "nodes",
                self.nodes,
                format!("must divide ranks = {}", self.ranks),
            ));
        }
        let slots = if self.placement.is_empty() {
            self.experts as usize
        } else {
            self.placement.len()
        };
        if slots % self.ranks as usize != 0 {
            return Err(Error::field(
                "ranks",
                self.ranks,
                format!("must divide the {slots} slots of experts"),
            ));
        }
        if let Some(e) = self.placement.iter().find(|e| **e >= self.experts) {
            return Err(Error::field(
                "placement",
                e,
                format!("experts below {}", self.experts),
            ));
        }
        let placed = Placement::from_map(self.placement.clone(), self.experts);
        if !self.placement.is_empty() && placed.logical_count.contains(&0) {
            return Err(Error::field("placement", "", "every expert has a slot"));
        }
        if let Some((groups, keep)) = self.group_limit {
            let fits = groups > 0
                && keep > 0
                && keep <= groups
                && self.experts.is_multiple_of(groups)
                && self.top_k <= self.experts / groups * keep;
            if !fits {
                return Err(Error::field(
                    "group_limit",
                    format!("{groups},{keep}"),
                    "groups divide experts, and the groups kept hold k experts",
                ));
            }
        }
        Ok(())
    }

    /// Routes the batch `draw.trials` times.
    ///
    /// # Errors
    /// As [`Batch::check`]; no trial.
    pub fn simulate(&self, draw: &Draw) -> Result<Outcome> {
        self.simulate_until(draw, &Control::default())
    }

    /// The same, until `control` says stop.
    ///
    /// # Errors
    /// As [`Batch::simulate`]; interrupted.
    pub fn simulate_until(&self, draw: &Draw, control: &Control) -> Result<Outcome> {
        self.check()?;
        if draw.trials == 0 || draw.trials > 10_000_000 {
            return Err(Error::field("trials", draw.trials, "1..=10,000,000"));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(draw.threads)
            .build()
            .map_err(|e| Error::field("threads", draw.threads, e.to_string()))?;
        let layout = self.layout();
        let rows = pool.install(|| {
            (0..draw.trials)
                .into_par_iter()
                .map_init(
                    || Scratch::new(self),
                    |scratch, trial| {
                        control.advance(1)?;
                        Ok(self.trial(trial, draw.seed, &layout, scratch))
                    },
                )
                .collect::<Result<Vec<[f64; FIELDS]>>>()
        })?;
        Ok(summarise(&rows))
    }

    /// Where the replicas are.
    pub(super) fn layout(&self) -> Layout {
        Layout::new(self)
    }

    /// The sampler of a trial; Dirichlet shares, and the ranks on which popular experts of other
    /// models lie, are drawn anew for each.
    pub(super) fn sampler(&self, trial: u32, rng: &mut Pcg64) -> Sampler {
        let (left, base) = self.routing.unbiased();
        let mut shares = match base {
            Routing::Uniform => None,
            skewed => Some(skewed.draw_shares(self.experts, self.top_k, u64::from(trial), rng)),
        };
        if let Some(row) = &mut shares {
            ease(row, left);
        }
        match (self.group_limit, shares) {
            (Some((groups, keep)), shares) => Sampler::Grouped(Grouped {
                size: (self.experts / groups) as usize,
                keep: keep as usize,
                exponents: shares.map_or_else(Vec::new, |s| {
                    s.iter()
                        .map(|x| 1.0 / (x * f64::from(self.experts)).max(1e-9))
                        .collect()
                }),
            }),
            (None, Some(shares)) => Sampler::Weighted(Alias::new(&shares, self.top_k)),
            (None, None) => Sampler::Uniform,
        }
    }

    fn trial(&self, trial: u32, seed: u64, layout: &Layout, s: &mut Scratch) -> [f64; FIELDS] {
        let mut rng = Pcg64::new(seed, u64::from(trial));
        let sampler = self.sampler(trial, &mut rng);
        s.histogram.clear();
        sampler.count(self.tokens, self.top_k, &mut s.histogram, &mut rng);
        s.loads.clear();
        s.loads.extend(s.histogram.loads().map(f64::from));
        let total = f64::from(self.tokens) * f64::from(self.top_k);
        let expert_max = s.loads.iter().copied().fold(0.0, f64::max);
        let (rank_max, active_max) = layout.fullest(&s.loads);
        let dropped: f64 = self.capacity.map_or(0.0, |c| {
            s.loads.iter().map(|x| (x - f64::from(c)).max(0.0)).sum()
        });
        let (ranks, nodes) = self.spread(&sampler, layout, s, &mut rng);
        let scale = |max: f64, n: u32| {
            if total > 0.0 {
                max * f64::from(n) / total
            } else {
                1.0
            }
        };
        let active = s.loads.iter().filter(|x| **x > 0.0).count() as f64;
        let [p50, p90, p99] = quantiles(&mut s.loads);
        [
            scale(expert_max, self.experts),
            scale(rank_max, self.ranks),
            ranks,
            nodes,
            active,
            active_max,
            if total > 0.0 { dropped / total } else { 0.0 },
            scale(p50, self.experts),
            scale(p90, self.experts),
            scale(p99, self.experts),
        ]
    }

    /// Mean number of different ranks and nodes of a token, over a few tokens of the batch.
    fn spread(
        &self,
        sampler: &Sampler,
        layout: &Layout,
        s: &mut Scratch,
        rng: &mut Pcg64,
    ) -> (f64, f64) {
        let tokens = self.tokens.min(TOKENS_FOR_SPREAD);
        let (mut ranks, mut nodes) = (0u32, 0u32);
        for token in 0..tokens {
            sampler.token(self.experts, &mut s.picks, rng);
            s.homes.clear();
            s.homes
                .extend(s.picks.iter().map(|e| layout.home(*e, token)));
            s.homes.sort_unstable();
            s.homes.dedup();
            ranks += s.homes.len() as u32;
            let per_node = self.ranks / self.nodes;
            s.homes.iter_mut().for_each(|r| *r /= per_node);
            s.homes.dedup();
            nodes += s.homes.len() as u32;
        }
        let n = f64::from(tokens.max(1));
        (f64::from(ranks) / n, f64::from(nodes) / n)
    }
}

/// Tokens of a batch whose ranks are looked at one by one.
const TOKENS_FOR_SPREAD: u32 = 256;

struct Scratch {
    histogram: Histogram,
    loads: Vec<f64>,
    picks: Vec<u32>,
    homes: Vec<u32>,
}

impl Scratch {
    fn new(batch: &Batch) -> Self {
        Self {
            histogram: Histogram::new(batch.experts as usize),
            loads: Vec::new(),
            picks: vec![0; batch.top_k as usize],
            homes: Vec::new(),
        }
    }
}

/// Where the replicas of an expert are.
pub(super) struct Layout {
    ranks: usize,
    slots: Vec<u32>,
    counts: Vec<f64>,
    homes: Vec<Vec<u32>>,
}

impl Layout {
    fn new(batch: &Batch) -> Self {
        let slots: Vec<u32> = if batch.placement.is_empty() {
            (0..batch.experts).collect()
        } else {
            batch.placement.clone()
        };
        let size = slots.len() as u32 / batch.ranks;
        let mut homes = vec![Vec::new(); batch.experts as usize];
        for (slot, e) in slots.iter().enumerate() {
            homes[*e as usize].push(slot as u32 / size);
        }
        let counts = homes.iter().map(|h| h.len() as f64).collect();
        Self {
            ranks: batch.ranks as usize,
            slots,
            counts,
            homes,
        }
    }

    /// Load and active experts of the fullest rank (each its own maximum); replicas share evenly.
    fn fullest(&self, loads: &[f64]) -> (f64, f64) {
        let size = self.slots.len() / self.ranks;
        let (mut most, mut active) = (0.0f64, 0usize);
        for rank in self.slots.chunks(size) {
            let load: f64 = rank
                .iter()
                .map(|e| loads[*e as usize] / self.counts[*e as usize])
                .sum();
            most = most.max(load);
            active = active.max(rank.iter().filter(|e| loads[**e as usize] > 0.0).count());
        }
        (most, active as f64)
    }

    /// Rank that a token uses for an expert: replicas take turns.
    pub(super) fn home(&self, expert: u32, token: u32) -> u32 {
        let homes = &self.homes[expert as usize];
        homes[token as usize % homes.len()]
    }
}

fn summarise(rows: &[[f64; FIELDS]]) -> Outcome {
    let field = |i: usize| estimate(rows.iter().map(|r| r[i]).collect());
    Outcome {
        expert_max_over_mean: field(0),
        expert_p50_over_mean: field(7),
        expert_p90_over_mean: field(8),
        expert_p99_over_mean: field(9),
        rank_max_over_mean: field(1),
        distinct_ranks: field(2),
        distinct_nodes: field(3),
        active_experts: field(4),
        active_on_fullest_rank: field(5),
        dropped_ratio: field(6),
    }
}

/// Mean, 95 % half-width and quantiles of independent trials, in the order of the trials.
#[must_use]
pub fn estimate(mut values: Vec<f64>) -> Estimate {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0).max(1.0);
    values.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| values[((n - 1.0) * q).round() as usize];
    Estimate {
        mean,
        ci95: 1.959_964 * (variance / n).sqrt(),
        p50: at(0.5),
        p99: at(0.99),
    }
}

#[cfg(test)]
mod tests;
