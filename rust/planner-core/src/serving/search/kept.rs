//! What a search keeps: the best settings of every layout, and the front of throughput and speed.
//!
//! Everything is ordered by a key and then by the order of the space, so parts found by different
//! threads merge into the same result.

use std::collections::BTreeMap;

use super::request::{Job, Objective};
use super::traffic::Demand;
use crate::serving::deployment::{Deployment, Engine, Pool};

/// Settings kept of a layout: what is tried next where a replay does not bear out the closed form.
pub const DEPTH: usize = 32;

/// A deployment and its closed form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Number of its kind.
    pub kind: usize,
    /// Number of its decode layout.
    pub number: u32,
    /// Engines that prefill only.
    pub prefill: Option<Pool>,
    /// Engines that decode.
    pub decode: Pool,
    /// Clients of the whole deployment (0: requests come on their own).
    pub clients: u32,
    /// Tokens that the cache of one decode engine holds.
    pub kv_tokens: f64,
    /// Mean time to first token, s.
    pub ttft_s: f64,
    /// Mean time per output token, s.
    pub tpot_s: f64,
    /// Output tokens a second.
    pub tokens_per_s: f64,
    /// The worse of the two times over their limits.
    pub overshoot: f64,
}

/// Kind, whether prefill is apart, and tp, pp, attention DP, prefill and decode context, ep, expert
/// TP: layouts that differ in flags, drafts and copies of experts only.
pub type Layout = (usize, bool, [u32; 7]);

impl Point {
    /// GPUs of all engines.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        let prefill = match &self.prefill {
            Some(pool) => pool.workers * pool.engine.gpus(),
            None => 0,
        };
        prefill + self.decode.workers * self.decode.engine.gpus()
    }

    /// The deployment.
    #[must_use]
    pub fn deployment(&self, job: &Job) -> Deployment {
        let kind = &job.kinds[self.kind];
        Deployment {
            backend: kind.backend,
            precision: kind.precision,
            prefill: self.prefill,
            decode: self.decode,
        }
    }

    /// Its layout, flags, drafts and copies aside.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        let Engine {
            tp,
            pp,
            attention_dp,
            pcp,
            ep,
            moe_tp,
            dcp,
            ..
        } = self.decode.engine;
        let layout = [tp, pp, attention_dp, pcp, ep, moe_tp, dcp];
        (self.kind, self.prefill.is_some(), layout)
    }
}

/// Output tokens a second over GPUs: those of the job where the search fills them, since idle ones
/// are paid for; those used where the work is given.
#[must_use]
pub fn density(job: &Job, tokens_per_s: f64, gpus: u32) -> f64 {
    let over = match job.traffic.demand {
        Demand::Chosen => job.gpus,
        _ => gpus,
    };
    tokens_per_s / f64::from(over)
}

/// What is better: larger first, then larger second.
pub type Worth = (f64, f64);

/// Worth of a deployment under an objective.
#[must_use]
pub fn worth(job: &Job, objective: Objective, tokens_per_s: f64, tpot_s: f64, gpus: u32) -> Worth {
    let used = f64::from(gpus);
    match objective {
        Objective::Throughput => (density(job, tokens_per_s, gpus), -tpot_s),
        Objective::Cost => (tokens_per_s / used, used),
        Objective::Gpus => (-used, -tpot_s),
    }
}

/// What a search keeps.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Best settings of each layout, best first.
    pub layouts: BTreeMap<Layout, Vec<(Worth, Point)>>,
    /// Best deployments under each objective, best first.
    pub objectives: [Vec<(Worth, Point)>; 3],
    /// Front of throughput and speed, fastest for a user first.
    pub front: Vec<(f64, Point)>,
    top: usize,
}

impl Kept {
    /// Nothing yet.
    #[must_use]
    pub fn new(top: usize) -> Self {
        Self {
            layouts: BTreeMap::new(),
            objectives: Default::default(),
            front: Vec::new(),
            top,
        }
    }

    /// Nothing, for another part of the same search.
    #[must_use]
    pub fn empty(&self) -> Self {
        Self::new(self.top)
    }

    /// Worth of the last of the best layouts that are wanted; below everything while there are
    /// fewer.
    #[must_use]
    pub fn last(&self) -> f64 {
        let firsts = self.layouts.values().filter_map(|list| list.first());
        let mut worths: Vec<f64> = firsts.map(|(worth, _)| worth.0).collect();
        if self.top == 0 || worths.len() < self.top {
            return f64::NEG_INFINITY;
        }
        worths.sort_by(|a, b| b.total_cmp(a));
        worths[self.top - 1]
    }

    /// Consider a deployment that keeps every limit.
    pub fn offer(&mut self, job: &Job, point: &Point) {
        let of = |objective| {
            worth(
                job,
                objective,
                point.tokens_per_s,
                point.tpot_s,
                point.gpus(),
            )
        };
        let kept = self.layouts.entry(point.layout()).or_default();
        insert(kept, (of(job.goal.objective), *point));
        for (objective, list) in Objective::ALL.iter().zip(&mut self.objectives) {
            insert(list, (of(*objective), *point));
        }
    }

    /// Consider a deployment for the front.
    pub fn offer_front(&mut self, job: &Job, point: &Point) {
        let dense = density(job, point.tokens_per_s, point.gpus());
        if self.beaten(point.tpot_s, dense) {
            return;
        }
        let at = self.front.partition_point(|(_, p)| p.tpot_s < point.tpot_s);
        let end = self.front[at..].partition_point(|(d, _)| *d <= dense);
        self.front.splice(at..at + end, [(dense, *point)]);
    }

    /// Whether some point of the front is at least as fast and as dense.
    #[must_use]
    pub fn beaten(&self, tpot_s: f64, dense: f64) -> bool {
        let at = self.front.partition_point(|(_, p)| p.tpot_s <= tpot_s);
        at > 0 && self.front[at - 1].0 >= dense
    }

    /// What two parts keep together; of equal deployments those of the first.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        for (layout, found) in other.layouts {
            let kept = self.layouts.entry(layout).or_default();
            for one in found {
                insert(kept, one);
            }
        }
        for (own, found) in self.objectives.iter_mut().zip(other.objectives) {
            for one in found {
                insert(own, one);
            }
        }
        for (dense, point) in other.front {
            if !self.beaten(point.tpot_s, dense) {
                let at = self.front.partition_point(|(_, p)| p.tpot_s < point.tpot_s);
                let end = self.front[at..].partition_point(|(d, _)| *d <= dense);
                self.front.splice(at..at + end, [(dense, point)]);
            }
        }
        self
    }
}

/// Inserts in descending order, equals in the order of the space, and keeps [`DEPTH`].
fn insert(list: &mut Vec<(Worth, Point)>, one: (Worth, Point)) {
    let order = |p: &Point| (p.kind, p.prefill.is_some(), p.number);
    let at = list.partition_point(|(worth, point)| {
        *worth > one.0 || (*worth == one.0 && order(point) <= order(&one.1))
    });
    if at < DEPTH {
        list.insert(at, one);
        list.truncate(DEPTH);
    }
}
