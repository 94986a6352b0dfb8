//! What blocks, shared prefixes and chunks do to prompts, for all their combinations at once.
//!
//! A prompt of p tokens finds `h = ⌊min(prefix, p − 1) / B⌋·B` of them in the cache and needs
//! `⌈(p − h) / c⌉` chunks for the rest. Prompts longer than the prefix all find the same
//! `H = ⌊prefix / B⌋·B`, for which `⌈(p − H)/c⌉ = 1 + ⌊q/c⌋ − ⌊H/c⌋ − [q mod c < H mod c]` with
//! `q = p − 1`. So sums over prompts are differences of running sums, and counts of small remainders
//! among the longest prompts, which one pass with a Fenwick tree gives for all questions.

use std::collections::BTreeMap;

use crate::kv::fragment::Lengths;

/// Distinct prompts, ascending, and how often each occurs.
pub(super) struct Prompts {
    tokens: Vec<u64>,
    counts: Vec<u64>,
    /// Requests with a prompt before this one.
    before: Vec<u64>,
    sum_tokens: u128,
}

/// A block's part of a sweep.
pub(super) struct Found {
    /// By prefix: prompt tokens in the cache, summed over requests that find the prefix.
    pub hit_tokens: Vec<u128>,
    /// By prefix, then chunk: chunks, summed over requests.
    pub chunks: Vec<u64>,
}

impl Prompts {
    pub(super) fn new(lengths: &Lengths) -> Self {
        let mut by_tokens = BTreeMap::new();
        for (prompt, _, n) in &lengths.rows {
            *by_tokens.entry(*prompt).or_insert(0) += n;
        }
        let (tokens, counts): (Vec<u64>, Vec<u64>) = by_tokens.into_iter().unzip();
        Self {
            before: running(counts.iter().copied()),
            sum_tokens: tokens
                .iter()
                .zip(&counts)
                .map(|(p, n)| u128::from(*p) * u128::from(*n))
                .sum(),
            tokens,
            counts,
        }
    }

    /// Tokens of all prompts.
    pub(super) fn sum_tokens(&self) -> u128 {
        self.sum_tokens
    }

    /// Requests.
    fn requests(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    /// Hits and chunks of every block, prefix and chunk.
    pub(super) fn found(&self, blocks: &[u64], prefixes: &[u64], chunks: &[u64]) -> Vec<Found> {
        // Index of the first prompt that is longer than the prefix.
        let longer = |prefix: &u64| self.tokens.partition_point(|p| p <= prefix);
        let starts: Vec<usize> = prefixes.iter().map(longer).collect();
        let mut all: Vec<Found> = blocks
            .iter()
            .map(|b| self.hits(*b, prefixes, &starts, chunks.len()))
            .collect();
        for (at, chunk) in chunks.iter().enumerate() {
            let steps = running(self.weighted(|p| (p - 1) / chunk));
            let least = |(b, f): (usize, usize)| Question {
                start: starts[f],
                remainder: prefixes[f] / blocks[b] * blocks[b] % chunk,
            };
            let each = || (0..blocks.len()).flat_map(|b| (0..prefixes.len()).map(move |f| (b, f)));
            let small = self.small_remainders(*chunk, each().map(least).collect());
            for ((b, f), small) in each().zip(small) {
                let (start, count) = (starts[f], self.requests() - self.before[starts[f]]);
                let skipped = prefixes[f] / blocks[b] * blocks[b] / chunk;
                let long = count + steps[self.tokens.len()] - steps[start] - small;
                all[b].chunks[f * chunks.len() + at] = long - count * skipped;
            }
            for (block, found) in blocks.iter().zip(&mut all) {
                let rest = |p: u64| ((p - 1) % block + 1).div_ceil(*chunk);
                let short = running(self.weighted(rest));
                for (f, start) in starts.iter().enumerate() {
                    found.chunks[f * chunks.len() + at] += short[*start];
                }
            }
        }
        all
    }

    fn weighted(&self, value: impl Fn(u64) -> u64) -> impl Iterator<Item = u64> {
        self.tokens
            .iter()
            .zip(&self.counts)
            .map(move |(p, n)| value(*p) * n)
    }

    fn hits(&self, block: u64, prefixes: &[u64], starts: &[usize], chunks: usize) -> Found {
        let mut sum = 0u128;
        let mut short = vec![0u128];
        for (p, n) in self.tokens.iter().zip(&self.counts) {
            sum += u128::from((p - 1) / block * block) * u128::from(*n);
            short.push(sum);
        }
        let hit = |(prefix, start): (&u64, &usize)| {
            let count = self.requests() - self.before[*start];
            short[*start] + u128::from(prefix / block * block) * u128::from(count)
        };
        Found {
            hit_tokens: prefixes.iter().zip(starts).map(hit).collect(),
            chunks: vec![0; prefixes.len() * chunks],
        }
    }

    /// For each question, requests from prompt `start` on whose `(p − 1) mod c` is below `remainder`.
    fn small_remainders(&self, chunk: u64, questions: Vec<Question>) -> Vec<u64> {
        let remainder = |p: &u64| (p - 1) % chunk;
        let mut sorted: Vec<u64> = self.tokens.iter().map(remainder).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut order: Vec<usize> = (0..questions.len()).collect();
        order.sort_unstable_by_key(|q| std::cmp::Reverse(questions[*q].start));
        let mut tree = vec![0u64; sorted.len() + 1];
        let (mut next, mut answers) = (self.tokens.len(), vec![0; questions.len()]);
        for q in order {
            while next > questions[q].start {
                next -= 1;
                let mut node = sorted.partition_point(|r| *r < remainder(&self.tokens[next])) + 1;
                while node < tree.len() {
                    tree[node] += self.counts[next];
                    node += node & node.wrapping_neg();
                }
            }
            let mut node = sorted.partition_point(|r| *r < questions[q].remainder);
            while node > 0 {
                answers[q] += tree[node];
                node &= node - 1;
            }
        }
        answers
    }
}

struct Question {
    start: usize,
    remainder: u64,
}

/// Sums of the first 0, 1, 2, … values.
fn running(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0;
    let sums = values.map(|v| {
        sum += v;
        sum
    });
    std::iter::once(0).chain(sums).collect()
}

#[cfg(test)]
mod tests {
    use super::Prompts;
    use crate::kv::fragment::Lengths;

    proptest::proptest! {
        #[test]
        fn equals_the_sums_prompt_by_prompt(
            rows in proptest::collection::vec((1u64..300, 0u64..9, 1u64..5), 1..40),
            blocks in proptest::collection::vec(1u64..40, 1..4),
            prefixes in proptest::collection::vec(0u64..350, 1..5),
            chunks in proptest::collection::vec(1u64..70, 1..4),
        ) {
            let found = Prompts::new(&Lengths { rows: rows.clone() }).found(&blocks, &prefixes, &chunks);
            for (block, found) in blocks.iter().zip(found) {
                for (f, prefix) in prefixes.iter().enumerate() {
                    let hit = |p: u64| (*prefix).min(p - 1) / block * block;
                    let tokens: u64 = rows.iter().map(|(p, _, n)| hit(*p) * n).sum();
                    proptest::prop_assert_eq!(found.hit_tokens[f], u128::from(tokens));
                    for (c, chunk) in chunks.iter().enumerate() {
                        let chunked = rows.iter().map(|(p, _, n)| (p - hit(*p)).div_ceil(*chunk) * n);
                        proptest::prop_assert_eq!(found.chunks[f * chunks.len() + c], chunked.sum::<u64>());
                    }
                }
            }
        }
    }
}
