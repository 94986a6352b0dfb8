//! Imbalance over a grid: one row per point, closed forms, no draw.
//!
//! Everything that depends on few axes is computed once: moments of the R-bin maximum per R, the
//! balanced skew per (E, R, redundancy, skew), different ranks and nodes per (E, k, R).

use super::best::best;
use super::capacity::Rule;
use super::closed::{rank_bin, symmetric};
use super::extremes::{NormalMax, excess};
use super::rng::Pcg64;
use super::routing::{Routing, draw_dirichlet};
use super::shape::{LARGEST, Shape};
use crate::collectives::expert_parallel::{active_experts, distinct_nodes};
use crate::error::{Error, Result};
use crate::sweep::control::Control;
use crate::table::{Data, Table};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use columns::COLUMNS;

/// The axes; every combination is a row. The last axis runs fastest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axes {
    /// Experts E.
    pub experts: Vec<u32>,
    /// Experts per token k.
    pub top_k: Vec<u32>,
    /// Expert-parallel ranks R.
    pub ranks: Vec<u32>,
    /// Nodes.
    pub nodes: Vec<u32>,
    /// Redundant experts.
    pub redundant: Vec<u32>,
    /// Dirichlet concentration per expert; 0 stands for uniform routing.
    pub alpha: Vec<f64>,
    /// Tokens on each rank.
    pub tokens_per_rank: Vec<u32>,
    /// Capacity factor; 0: dropless (Tutel: the largest load), negative: Tutel's bound on it.
    pub capacity_factor: Vec<f64>,
    /// Whose rule the factor is of.
    #[serde(default = "megatron")]
    pub capacity_rule: Vec<Rule>,
}

fn megatron() -> Vec<Rule> {
    vec![Rule::Megatron]
}

/// Whether a point makes sense.
pub const STATUS: &[&str] = &["ok", "top_k", "experts", "nodes", "capacity"];

/// Rows of one parallel chunk.
const CHUNK: usize = 4096;
/// Most rows of one sweep.
pub const MOST_ROWS: u64 = 200_000_000;
/// Draws of the shares over which the balanced skew is averaged.
const DRAWS: u64 = 8;

#[derive(Clone, Copy)]
struct Point {
    experts: u32,
    top_k: u32,
    ranks: u32,
    nodes: u32,
    redundant: u32,
    alpha: f64,
    tokens_per_rank: u32,
    capacity_factor: f64,
    capacity_rule: Rule,
}

impl Axes {
    /// Number of points.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.lengths().iter().map(|n| *n as u64).product()
    }

    const fn lengths(&self) -> [usize; 9] {
        [
            self.experts.len(),
            self.top_k.len(),
            self.ranks.len(),
            self.nodes.len(),
            self.redundant.len(),
            self.alpha.len(),
            self.tokens_per_rank.len(),
            self.capacity_factor.len(),
            self.capacity_rule.len(),
        ]
    }

    /// Checks the axes.
    ///
    /// # Errors
    /// An empty axis, a count of zero or beyond reason, a number that is negative or not finite.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("experts", &self.experts),
            ("top_k", &self.top_k),
            ("ranks", &self.ranks),
            ("nodes", &self.nodes),
            ("tokens_per_rank", &self.tokens_per_rank),
        ];
        for (name, values) in counts {
            if let Some(bad) = values.iter().find(|v| **v == 0 || **v > LARGEST) {
                return Err(Error::field(name, bad, format!("1..={LARGEST}")));
            }
        }
        if let Some(bad) = self.redundant.iter().find(|v| **v > LARGEST) {
            return Err(Error::field("redundant", bad, format!("at most {LARGEST}")));
        }
        if let Some(bad) = self
            .alpha
            .iter()
            .find(|a| **a != 0.0 && !(1e-3..=1e9).contains(*a))
        {
            return Err(Error::field("alpha", bad, "0 (uniform) or in [0.001, 1e9]"));
        }
        let tutel = self.capacity_rule.iter().all(|r| *r == Rule::Tutel);
        let least = if tutel { -1e6 } else { 0.0 };
        let outside = |c: &&f64| !(least..=1e6).contains(*c);
        if let Some(bad) = self.capacity_factor.iter().find(outside) {
            let rule = "in [0, 1e6]; tutel alone takes negative factors";
            return Err(Error::field("capacity_factor", bad, rule));
        }
        let rows = self.rows();
        if rows == 0 || rows > MOST_ROWS {
            return Err(Error::field(
                "axes",
                rows,
                format!("1..={MOST_ROWS} points, no empty axis"),
            ));
        }
        Ok(())
    }

    fn point(&self, mut row: usize) -> Point {
        let mut at = [0usize; 9];
        for (i, n) in self.lengths().iter().enumerate().rev() {
            at[i] = row % n;
            row /= n;
        }
        Point {
            experts: self.experts[at[0]],
            top_k: self.top_k[at[1]],
            ranks: self.ranks[at[2]],
            nodes: self.nodes[at[3]],
            redundant: self.redundant[at[4]],
            alpha: self.alpha[at[5]],
            tokens_per_rank: self.tokens_per_rank[at[6]],
            capacity_factor: self.capacity_factor[at[7]],
            capacity_rule: self.capacity_rule[at[8]],
        }
    }

    /// All points, a table per chunk, in the order of the axes; the same bytes at any thread count.
    ///
    /// # Errors
    /// As [`Axes::check`].
    pub fn run(&self, threads: usize) -> Result<Vec<Table>> {
        self.run_until(threads, &Control::default())
    }

    /// The same, until `control` says stop.
    ///
    /// # Errors
    /// As [`Axes::run`]; interrupted.
    pub fn run_until(&self, threads: usize, control: &Control) -> Result<Vec<Table>> {
        self.check()?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|e| Error::field("threads", threads, e.to_string()))?;
        let rows = self.rows() as usize;
        pool.install(|| {
            let memo = Memo::new(self, control)?;
            (0..rows.div_ceil(CHUNK))
                .into_par_iter()
                .map(|c| {
                    control.advance(0)?;
                    let mut chunk = Chunk::default();
                    for row in c * CHUNK..rows.min((c + 1) * CHUNK) {
                        chunk.push(&self.point(row), &memo);
                    }
                    Ok(chunk.table())
                })
                .collect()
        })
    }
}

/// What few axes decide.
struct Memo {
    maxima: BTreeMap<u32, NormalMax>,
    /// (E, ranks, redundant, alpha bits) → fullest rank of the balanced long-run load.
    balanced: BTreeMap<(u32, u32, u32, u64), f64>,
}

impl Memo {
    fn new(axes: &Axes, control: &Control) -> Result<Self> {
        let bins = axes.experts.iter().chain(&axes.ranks);
        let maxima = bins.map(|n| (*n, NormalMax::of(*n))).collect();
        let mut keys = Vec::new();
        for e in &axes.experts {
            for r in &axes.ranks {
                for spare in &axes.redundant {
                    for alpha in axes.alpha.iter().filter(|a| **a > 0.0) {
                        keys.push((*e, *r, *spare, alpha.to_bits()));
                    }
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let balanced = keys
            .into_par_iter()
            .map(|k| {
                control.advance(0)?;
                Ok((k, balanced_skew(k)))
            })
            .collect::<Result<_>>()?;
        Ok(Self { maxima, balanced })
    }
}

/// Mean over draws of the fullest rank after balancing, no sampling noise; 1 where the shape is bad.
fn balanced_skew((experts, ranks, redundant, alpha): (u32, u32, u32, u64)) -> f64 {
    let shape = Shape {
        experts,
        redundant,
        ranks,
        nodes: 1,
        groups: 1,
    };
    if shape.check().is_err() {
        return 1.0;
    }
    let sum: f64 = (0..DRAWS)
        .map(|d| {
            let shares = draw_dirichlet(
                f64::from_bits(alpha),
                experts,
                1,
                &mut Pcg64::new(0x0ba1, d),
            );
            best(&shares, &shape, &[], false).rank_max_over_mean
        })
        .sum();
    sum / DRAWS as f64
}

#[derive(Default)]
struct Chunk {
    counts: [Vec<u32>; 5],
    alpha: Vec<f64>,
    tokens: Vec<u32>,
    factor: Vec<f64>,
    rule: Vec<u8>,
    status: Vec<u8>,
    ratios: [Vec<f64>; 6],
    capacity: Vec<u64>,
    dropped: Vec<f64>,
    padded: Vec<f64>,
    slots: Vec<u32>,
}

impl Chunk {
    fn push(&mut self, p: &Point, memo: &Memo) {
        for (column, value) in
            self.counts
                .iter_mut()
                .zip([p.experts, p.top_k, p.ranks, p.nodes, p.redundant])
        {
            column.push(value);
        }
        self.alpha.push(p.alpha);
        self.tokens.push(p.tokens_per_rank);
        self.factor.push(p.capacity_factor);
        self.rule.push(p.capacity_rule as u8);
        let status = status(p);
        self.status.push(status);
        let values = if status == 0 {
            values(p, memo)
        } else {
            ([f64::NAN; 6], (0, f64::NAN, f64::NAN))
        };
        for (column, value) in self.ratios.iter_mut().zip(values.0) {
            column.push(value);
        }
        let (capacity, dropped, padded) = values.1;
        self.capacity.push(capacity);
        self.dropped.push(dropped);
        self.padded.push(padded);
        self.slots.push((p.experts + p.redundant) / p.ranks);
    }

    fn table(self) -> Table {
        let mut data: Vec<Data> = self.counts.into_iter().map(Data::U32).collect();
        data.extend([
            Data::F64(self.alpha),
            Data::U32(self.tokens),
            Data::F64(self.factor),
            Data::Name {
                codes: self.rule,
                names: Rule::NAMES,
            },
            Data::Name {
                codes: self.status,
                names: STATUS,
            },
        ]);
        data.extend(self.ratios.into_iter().map(Data::F64));
        data.extend([
            Data::U64(self.capacity),
            Data::F64(self.dropped),
            Data::F64(self.padded),
            Data::U32(self.slots),
        ]);
        Table {
            columns: COLUMNS.to_vec(),
            data,
        }
    }
}

fn status(p: &Point) -> u8 {
    let shape = Shape {
        experts: p.experts,
        redundant: p.redundant,
        ranks: p.ranks,
        nodes: p.nodes,
        groups: 1,
    };
    if p.top_k > p.experts {
        1
    } else if !p.ranks.is_multiple_of(p.nodes) {
        3
    } else if shape.check().is_err() {
        2
    } else if p.capacity_rule == Rule::Switch && p.capacity_factor > 0.0 && p.top_k > 1 {
        4
    } else {
        0
    }
}

/// Ratios of a point; its capacity, and the shares dropped and padded.
fn values(p: &Point, memo: &Memo) -> ([f64; 6], (u64, f64, f64)) {
    let routing = if p.alpha > 0.0 {
        Routing::Dirichlet { alpha: p.alpha }
    } else {
        Routing::Uniform
    };
    let tokens = f64::from(p.tokens_per_rank);
    let total = tokens * f64::from(p.ranks);
    let maximum = |n: u32| {
        memo.maxima
            .get(&n)
            .copied()
            .unwrap_or_else(|| NormalMax::of(n))
    };
    let (ranks, experts) = (maximum(p.ranks), maximum(p.experts));
    let noise = symmetric(&Routing::Uniform, p.experts, p.top_k, tokens, &ranks);
    let skew = memo
        .balanced
        .get(&(p.experts, p.ranks, p.redundant, p.alpha.to_bits()));
    let whole = |n: u32| distinct_nodes(u64::from(p.experts), u64::from(p.top_k), u64::from(n));
    let ratios = [
        symmetric(
            &routing,
            p.experts,
            p.top_k,
            total / f64::from(p.experts),
            &experts,
        ),
        symmetric(&routing, p.experts, p.top_k, tokens, &ranks),
        noise * skew.copied().unwrap_or(1.0),
        whole(p.ranks),
        whole(p.nodes),
        active_experts(u64::from(p.experts), u64::from(p.top_k), total as u64),
    ];
    (ratios, capacity(p, &routing, &experts))
}

/// Rows that an expert accepts from one rank, and the shares of choices dropped and rows padded.
fn capacity(p: &Point, routing: &Routing, experts: &NormalMax) -> (u64, f64, f64) {
    let (t, k, e) = (
        u64::from(p.tokens_per_rank),
        u64::from(p.top_k),
        u64::from(p.experts),
    );
    let per_expert = f64::from(p.tokens_per_rank) / f64::from(p.experts);
    let largest = if p.capacity_rule == Rule::Tutel && p.capacity_factor <= 0.0 {
        let peak = symmetric(routing, p.experts, p.top_k, per_expert, experts);
        ((peak * per_expert * k as f64).ceil() as u64).min(t)
    } else {
        t
    };
    let Some(rows) = p.capacity_rule.rows(t, k, e, p.capacity_factor, largest) else {
        return (0, 0.0, 0.0);
    };
    let mut bin = rank_bin(routing, p.experts, p.top_k, per_expert, p.experts);
    // One expert's load has the variance of its own, not that of a free bin.
    bin.variance *= 1.0 - 1.0 / f64::from(p.experts);
    // A capacity that follows the largest load drops nothing, however it fluctuates.
    let follows = p.capacity_rule == Rule::Tutel && p.capacity_factor <= 0.0 && rows == largest;
    let dropped = if rows >= t || follows {
        0.0
    } else {
        excess(bin, rows as f64) / bin.mean.max(1e-300)
    };
    let kept = (t * k) as f64 * (1.0 - dropped);
    let padded = (1.0 - kept / (e * rows).max(1) as f64).max(0.0);
    (rows, dropped, padded)
}

mod columns;
#[cfg(test)]
mod tests;
