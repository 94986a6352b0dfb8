//! The part of an answer that is not a table: the account, and what nothing kept.

use std::collections::BTreeMap;

use serde::Serialize;

use super::account::{Misses, Tally};
use super::kept::Point;
use super::request::Job;
use super::{Found, Objective};
use crate::serving::deployment::{Backend, Deployment};
use crate::serving::rules::{Candidate, RULES, Rule};
use crate::serving::search::row::{Rows, row};
use crate::serving::space::Status;
use crate::table::Table;

/// A rule and what it rejects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rejection {
    /// Short name of the rule.
    pub rule: &'static str,
    /// Status that it gives.
    pub status: &'static str,
    /// The rule, with the numbers of an example.
    pub text: String,
    /// What the example does.
    pub side: &'static str,
    /// Its backend.
    pub backend: Backend,
    /// Deployments that it rejects.
    pub deployments: u128,
}

/// A deployment that misses a limit, in closed form or as replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Miss {
    /// Which.
    pub deployment: Deployment,
    /// Clients (0: requests come on their own).
    pub clients: u32,
    /// Time to first token, s.
    pub ttft_s: f64,
    /// Time per output token, s.
    pub tpot_s: f64,
}

/// A deployment whose replay falls behind the arrivals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Behind {
    /// Which.
    pub deployment: Deployment,
    /// Requests a second that it serves.
    pub requests_per_s: f64,
}

/// Deployments that come nearest to the limits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nearest {
    /// Least overshoot of the worse limit.
    pub both: Option<Miss>,
    /// Least time per output token among those that keep the time to first token.
    pub tpot: Option<Miss>,
    /// Least time to first token among those that keep the time per output token.
    pub ttft: Option<Miss>,
    /// Most requests a second among replays that fall behind the arrivals.
    pub rate: Option<Behind>,
}

/// The account of a search: `total = evaluated + pruned + Σ rejected`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Deployments of the space.
    pub total: u128,
    /// Estimated, and they keep every limit.
    pub evaluated: u128,
    /// Shown to be no better than one that was estimated.
    pub pruned: u128,
    /// Replayed request by request.
    pub replayed: u64,
    /// Rejected, by status.
    pub rejected: BTreeMap<&'static str, u128>,
    /// The same by rule, in the order of checks.
    pub rules: Vec<Rejection>,
    /// Nearest misses.
    pub nearest: Nearest,
    /// Objectives that some deployment answers, in the order of the table of the best.
    pub objectives: Vec<&'static str>,
}

/// A rejection by a rule, with its example.
#[must_use]
pub fn rejection(
    job: &Job,
    rule: &'static Rule,
    n: u128,
    example: &super::account::Example,
) -> Rejection {
    let kind = &job.kinds[example.kind];
    let candidate = Candidate {
        backend: kind.backend,
        precision: &kind.precision,
        side: example.side,
        engine: &example.engine,
    };
    Rejection {
        rule: rule.id,
        status: rule.status.name(),
        text: rule.render(&job.space.facts, &candidate),
        side: example.side.name(),
        backend: kind.backend,
        deployments: n,
    }
}

impl Job {
    /// The account of a search.
    #[must_use]
    pub fn summary(&self, found: &Found) -> Summary {
        let tally = &found.tally;
        let broken = RULES.iter().zip(&tally.rules);
        let rules: Vec<Rejection> = broken
            .filter_map(|(rule, (n, example))| Some(rejection(self, rule, *n, example.as_ref()?)))
            .collect();
        let names = Objective::ALL.iter().zip(&found.best);
        Summary {
            total: tally.total,
            evaluated: tally.evaluated,
            pruned: tally.pruned,
            replayed: found.replayed,
            rejected: by_status(tally),
            rules,
            nearest: self.nearest(&tally.misses),
            objectives: names
                .filter(|(_, best)| best.is_some())
                .map(|(objective, _)| objective.name())
                .collect(),
        }
    }

    fn nearest(&self, misses: &Misses) -> Nearest {
        let miss = |point: Option<Point>| {
            point.map(|p| Miss {
                deployment: p.deployment(self),
                clients: p.clients,
                ttft_s: p.ttft_s,
                tpot_s: p.tpot_s,
            })
        };
        Nearest {
            both: miss(misses.both),
            tpot: miss(misses.tpot),
            ttft: miss(misses.ttft),
            rate: misses.rate.map(|(requests_per_s, point)| Behind {
                deployment: point.deployment(self),
                requests_per_s,
            }),
        }
    }

    /// Tables of the best, of the front, and of the best under each objective.
    #[must_use]
    pub fn tables(&self, found: &Found) -> [Table; 3] {
        let table = |list: &mut dyn Iterator<Item = &super::verify::Verified>| {
            let mut rows = Rows::default();
            for one in list {
                rows.push(&row(self, one));
            }
            rows.into_table()
        };
        [
            table(&mut found.top.iter()),
            table(&mut found.front.iter()),
            table(&mut found.best.iter().flatten()),
        ]
    }
}

fn by_status(tally: &Tally) -> BTreeMap<&'static str, u128> {
    let mut out = BTreeMap::new();
    let rules = RULES
        .iter()
        .zip(&tally.rules)
        .map(|(r, (n, _))| (r.status, *n));
    let others = Status::ALL
        .iter()
        .copied()
        .zip(tally.statuses.iter().copied());
    for (status, n) in rules.chain(others).filter(|(_, n)| *n > 0) {
        *out.entry(status.name()).or_default() += n;
    }
    out
}
