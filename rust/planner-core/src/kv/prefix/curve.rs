//! Hits at every capacity in one pass: Mattson's stack distances for the engine's LRU order.
//!
//! After a request the pool of capacity C holds exactly the C most recent blocks, so block i of the
//! next request is found at C if and only if the largest stack position among blocks 0..=i *before
//! the request* is at most C. Positions are therefore taken for the whole request, and only then are
//! its blocks moved to the top, tail first.
//!
//! A block's position is one plus the number of blocks used after it. Times of last use are a
//! bitmap ([`Recency`](super::recency)); a Fenwick tree counts its 64-bit words. Blocks of one old
//! request have consecutive times, so their positions follow each other: a query, and two entries of
//! the differences of the histogram, per run and not per block. (Mattson, Gecsei, Slutz, Traiger
//! 1970; Fenwick 1994.)
//!
//! Only hit blocks are counted at every capacity. Tokens, requests and evictions are counted at the
//! capacities that were asked for.

use super::recency::{Along, Recency, Run};

/// All-capacity replay.
///
/// ```
/// use planner_core::kv::prefix::{Counted, Curve};
/// let mut curve = Curve::new(&[2]);
/// curve.request(&[1, 2, 3], Counted::ALL);
/// curve.request(&[9], Counted::ALL);
/// curve.request(&[1, 2, 3], Counted { whole: 2, ..Counted::ALL });
/// let hits = curve.finish();
/// // 9 is on top, then 1, 2, 3: capacity 2 finds 1, capacity 4 all three.
/// assert_eq!(hits.hit_blocks, [0, 1, 2, 3]);
/// assert_eq!(hits.marks[0].requests_with_hit, 1);
/// ```
pub struct Curve {
    uses: Recency,
    tree: Vec<u32>,
    /// Blocks seen: all of them are live.
    unique: usize,
    /// Differences of the histogram of hits over stack positions.
    steps: Vec<u64>,
    capacities: Vec<u64>,
    marks: Vec<Mark>,
    runs: Vec<Run>,
}

/// Which blocks of a request count, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Hits that the request may count: at most the first so many blocks.
    pub max_hits: usize,
    /// Blocks at its start that are full of its tokens.
    pub whole: usize,
    /// Slots of block `whole` that hold no token of the request; blocks behind it hold none at all.
    pub empty_slots: u64,
    /// Tokens in a block.
    pub block_tokens: u64,
}

impl Counted {
    /// Every block counts and is full.
    pub const ALL: Self = Self {
        max_hits: usize::MAX,
        whole: usize::MAX,
        empty_slots: 0,
        block_tokens: 1,
    };
}

/// What is counted at one capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Slots of hit blocks that hold no token of the request that hit them.
    pub empty_slots: u64,
    /// Requests with at least one hit block.
    pub requests_with_hit: u64,
    /// Blocks that were in the pool but beyond the hits that a request may count.
    pub present_blocks: u64,
}

/// The hit curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitCurve {
    /// Hit blocks; entry `c − 1` belongs to a capacity of `c` blocks, up to the deepest hit.
    pub hit_blocks: Vec<u64>,
    /// Counts at the capacities that were asked for, in their order.
    pub marks: Vec<Mark>,
}

impl HitCurve {
    /// Value at a capacity; beyond the last entry more blocks change nothing.
    #[must_use]
    pub fn at(values: &[u64], capacity: u64) -> u64 {
        match usize::try_from(capacity)
            .unwrap_or(usize::MAX)
            .min(values.len())
        {
            0 => 0,
            n => values[n - 1],
        }
    }
}

impl Curve {
    /// Nothing seen yet; tokens, requests and evictions are counted at `capacities`.
    #[must_use]
    pub fn new(capacities: &[u64]) -> Self {
        let uses = Recency::new(Along::Falling);
        Self {
            tree: vec![0; uses.words().len() + 1],
            uses,
            unique: 0,
            steps: Vec::new(),
            capacities: capacities.to_vec(),
            marks: vec![Mark::default(); capacities.len()],
            runs: Vec::new(),
        }
    }

    /// Forgets everything but the capacities, and keeps the memory.
    pub fn clear(&mut self) {
        self.uses.clear();
        self.tree.fill(0);
        self.steps.clear();
        self.marks.fill(Mark::default());
        self.unique = 0;
    }

    /// Runs a request over its blocks (numbers from [`super::Intern`]).
    pub fn request(&mut self, ids: &[u32], counted: Counted) {
        if self.uses.make_room(ids) {
            self.rebuild();
        }
        self.count(ids, counted);
        let (tree, mut kept) = (&mut self.tree, 0);
        for run in &self.runs {
            self.uses.clear_run(*run, |word, n| {
                kept += n as usize;
                add(tree, word, n.wrapping_neg());
            });
        }
        let pushed = self.uses.push(ids, |word, n| add(tree, word, n));
        self.unique += pushed - kept;
    }

    /// Adds the request's hits to the histogram and keeps its runs.
    fn count(&mut self, ids: &[u32], counted: Counted) {
        let plain = counted.max_hits.min(counted.whole);
        let (mut found, mut deepest) = (0, 0);
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        self.uses.runs(ids, |first, run| {
            runs.push(run);
            if first != found {
                return;
            }
            found += run.high - run.low + 1;
            // Positions of the run: top, top + 1, …
            let top = position(self.uses.words(), &self.tree, self.unique, run.high);
            let mut whole = first;
            if first < plain {
                whole = found.min(plain);
                let n = whole - first;
                // Those above the deepest so far are found with it.
                let held = (deepest + 1usize).saturating_sub(top).min(n);
                steps(&mut self.steps, deepest..deepest + 1, held as u64);
                steps(&mut self.steps, top + held..top + n, 1);
            }
            if first == 0 && counted.max_hits > 0 {
                mark(&self.capacities, &mut self.marks, top, |m| {
                    m.requests_with_hit += 1;
                });
            }
            for i in whole..found {
                let depth = deepest.max(top + i - first);
                if i >= counted.max_hits {
                    mark(&self.capacities, &mut self.marks, depth, |m| {
                        m.present_blocks += 1;
                    });
                    continue;
                }
                steps(&mut self.steps, depth..depth + 1, 1);
                let empty = if i == counted.whole {
                    counted.empty_slots
                } else {
                    counted.block_tokens
                };
                mark(&self.capacities, &mut self.marks, depth, |m| {
                    m.empty_slots += empty;
                });
            }
            deepest = deepest.max(top + (found - first) - 1);
        });
        self.runs = runs;
    }

    /// Counts the words of a renumbered bitmap.
    #[cold]
    fn rebuild(&mut self) {
        let words = self.uses.words();
        self.tree.clear();
        self.tree.push(0);
        self.tree.extend(words.iter().map(|w| w.count_ones()));
        for node in 1..self.tree.len() {
            let parent = node + (node & node.wrapping_neg());
            if parent < self.tree.len() {
                self.tree[parent] += self.tree[node];
            }
        }
    }

    /// Distinct blocks seen.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.unique as u64
    }

    /// Hits at every capacity from 1 to the deepest hit.
    #[must_use]
    pub fn finish(&self) -> HitCurve {
        hits(self.steps.clone(), self.marks.clone())
    }

    /// The same at the end, in the memory of the histogram.
    #[must_use]
    pub fn into_hits(self) -> HitCurve {
        hits(self.steps, self.marks)
    }
}

/// Sums differences to a histogram, and the histogram to hits at each capacity.
fn hits(mut steps: Vec<u64>, marks: Vec<Mark>) -> HitCurve {
    steps.pop();
    let (mut level, mut sum) = (0u64, 0u64);
    for step in &mut steps {
        level = level.wrapping_add(*step);
        sum += level;
        *step = sum;
    }
    HitCurve {
        hit_blocks: steps,
        marks,
    }
}

/// One plus the number of live times after `time`.
#[inline]
fn position(words: &[u64], tree: &[u32], live: usize, time: usize) -> usize {
    let mut node = time / 64;
    let mut upto = (words[node] & (u64::MAX >> (63 - time % 64))).count_ones();
    while node > 0 {
        upto = upto.wrapping_add(tree[node]);
        node &= node - 1;
    }
    live - upto as usize + 1
}

/// Adds to the count of a word, modulo 2³².
#[inline]
fn add(tree: &mut [u32], word: usize, count: u32) {
    let mut node = word + 1;
    while node < tree.len() {
        tree[node] = tree[node].wrapping_add(count);
        node += node & node.wrapping_neg();
    }
}

/// Adds `count` to each depth of a range, as differences modulo 2⁶⁴.
#[inline]
fn steps(differences: &mut Vec<u64>, depths: std::ops::Range<usize>, count: u64) {
    if depths.is_empty() || count == 0 {
        return;
    }
    // Entry 0 belongs to a depth of one.
    let (start, end) = (depths.start - 1, depths.end - 1);
    if end >= differences.len() {
        differences.resize(end + 1, 0);
    }
    differences[start] = differences[start].wrapping_add(count);
    differences[end] = differences[end].wrapping_sub(count);
}

/// Counts something at every asked capacity of at least `depth` blocks.
#[inline]
fn mark(capacities: &[u64], marks: &mut [Mark], depth: usize, mut count: impl FnMut(&mut Mark)) {
    for (_, m) in capacities
        .iter()
        .zip(marks)
        .filter(|(c, _)| **c >= depth as u64)
    {
        count(m);
    }
}

#[cfg(test)]
mod tests;
