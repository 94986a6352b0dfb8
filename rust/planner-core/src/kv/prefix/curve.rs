//! Hits at every capacity in one pass: Mattson's stack distances for the engine's LRU order.
//!
//! After a request the pool of capacity C holds exactly the C most recent blocks, so block i of the
//! next request is found at C if and only if the largest stack position among blocks 0..=i *before
//! the request* is at most C. Positions are therefore taken for the whole request, and only then are
//! its blocks moved to the top, tail first.
//!
//! A block's position is one plus the number of blocks used after it. Times of last use are a
//! bitmap; a Fenwick tree counts its 64-bit words. Blocks of one old request have consecutive
//! times, so the position of the next is one more than that of the last: a query per run, not per
//! block. (Mattson, Gecsei, Slutz, Traiger 1970; Fenwick 1994.)

/// All-capacity replay.
///
/// ```
/// use planner_core::kv::prefix::Curve;
/// let mut curve = Curve::new();
/// curve.request(&[1, 2, 3], 3, |_| 16);
/// curve.request(&[9], 1, |_| 16);
/// curve.request(&[1, 2, 3], 3, |_| 16);
/// let hits = curve.finish();
/// // 9 is on top, then 1, 2, 3: capacity 2 finds 1, capacity 4 all three.
/// assert_eq!(hits.hit_blocks, [0, 1, 2, 3]);
/// ```
pub struct Curve {
    /// Time of last use by block, 0: never.
    last: Vec<u32>,
    /// Block by time.
    log: Vec<u32>,
    live: Vec<u64>,
    tree: Vec<u32>,
    unique: u32,
    blocks_at: Vec<u64>,
    tokens_at: Vec<u64>,
    requests_at: Vec<u64>,
    beyond_at: Vec<u64>,
}

/// The hit curve; entry `c − 1` belongs to a capacity of `c` blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitCurve {
    /// Hit blocks.
    pub hit_blocks: Vec<u64>,
    /// Hit tokens.
    pub hit_tokens: Vec<u64>,
    /// Requests with at least one hit block.
    pub requests_with_hit: Vec<u64>,
    /// Blocks that were in the pool but beyond the hits that a request may count.
    pub present_blocks: Vec<u64>,
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

const MIN_WORDS: usize = 1 << 10;

impl Default for Curve {
    fn default() -> Self {
        Self::new()
    }
}

impl Curve {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            last: Vec::new(),
            log: vec![0],
            live: vec![0; MIN_WORDS],
            tree: vec![0; MIN_WORDS + 1],
            unique: 0,
            blocks_at: vec![0],
            tokens_at: vec![0],
            requests_at: vec![0],
            beyond_at: vec![0],
        }
    }

    /// Runs a request; at most the first `max_hits` blocks count as hits, `tokens(i)` is what block
    /// `i` holds.
    pub fn request(&mut self, ids: &[u32], max_hits: usize, tokens: impl Fn(usize) -> u64) {
        self.make_room(ids);
        self.count(ids, max_hits, tokens);
        self.remove(ids);
        self.push(ids);
    }

    /// Adds the request's hits to the histograms over stack positions.
    fn count(&mut self, ids: &[u32], max_hits: usize, tokens: impl Fn(usize) -> u64) {
        let (mut before, mut position, mut deepest) = (0, 0, 0);
        for (i, id) in ids.iter().enumerate() {
            let time = self.last[*id as usize];
            if time == 0 {
                return;
            }
            position = if i > 0 && time + 1 == before {
                position + 1
            } else {
                self.position(time)
            };
            before = time;
            deepest = position.max(deepest);
            if i >= max_hits {
                self.beyond_at[deepest] += 1;
                continue;
            }
            self.blocks_at[deepest] += 1;
            self.tokens_at[deepest] += tokens(i);
            if i == 0 {
                self.requests_at[deepest] += 1;
            }
        }
    }

    /// One plus the number of live times after `time`.
    #[inline]
    fn position(&self, time: u32) -> usize {
        let (word, bit) = (time as usize / 64, time % 64);
        let mut upto = (self.live[word] & (u64::MAX >> (63 - bit))).count_ones();
        let mut node = word;
        while node > 0 {
            upto += self.tree[node];
            node &= node - 1;
        }
        (self.unique - upto) as usize + 1
    }

    /// Takes the request's earlier uses out, one tree update per word.
    fn remove(&mut self, ids: &[u32]) {
        let (mut word, mut taken) = (0, 0u32);
        for id in ids {
            let time = std::mem::take(&mut self.last[*id as usize]) as usize;
            if time == 0 {
                continue;
            }
            if time / 64 != word {
                self.add(word, taken.wrapping_neg());
                (word, taken) = (time / 64, 0);
            }
            self.live[word] &= !(1 << (time % 64));
            self.unique -= 1;
            taken += 1;
        }
        self.add(word, taken.wrapping_neg());
    }

    /// Puts the request on top, tail first.
    fn push(&mut self, ids: &[u32]) {
        let (mut word, mut put) = (self.log.len() / 64, 0);
        for id in ids.iter().rev() {
            let time = self.log.len();
            let last = &mut self.last[*id as usize];
            if *last != 0 {
                continue;
            }
            *last = time as u32;
            self.log.push(*id);
            if time / 64 != word {
                self.add(word, put);
                (word, put) = (time / 64, 0);
            }
            self.live[word] |= 1 << (time % 64);
            put += 1;
            self.unique += 1;
        }
        self.add(word, put);
    }

    /// Adds to the count of a word, modulo 2³².
    #[inline]
    fn add(&mut self, word: usize, count: u32) {
        if count == 0 {
            return;
        }
        let mut node = word + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(count);
            node += node & node.wrapping_neg();
        }
    }

    fn make_room(&mut self, ids: &[u32]) {
        if self.log.len() + ids.len() > self.live.len() * 64 {
            self.compact(ids.len());
        }
        let top = ids.iter().copied().max().map_or(0, |m| m as usize + 1);
        if top > self.last.len() {
            self.last.resize(top.max(self.last.len() * 2), 0);
        }
        let positions = self.unique as usize + ids.len() + 1;
        if positions > self.blocks_at.len() {
            let size = positions.max(self.blocks_at.len() * 2);
            self.blocks_at.resize(size, 0);
            self.tokens_at.resize(size, 0);
            self.requests_at.resize(size, 0);
            self.beyond_at.resize(size, 0);
        }
    }

    /// Renumbers live times from 1 and doubles the bitmap if more than half of it is live.
    #[cold]
    fn compact(&mut self, extra: usize) {
        let mut old = std::mem::replace(&mut self.log, vec![0]);
        old.retain({
            let mut time = 0usize;
            let live = &self.live;
            move |_| {
                let keep = live[time / 64] >> (time % 64) & 1 == 1;
                time += 1;
                keep
            }
        });
        let words = ((old.len() + extra) * 2)
            .div_ceil(64)
            .max(MIN_WORDS)
            .next_power_of_two();
        self.live = vec![0; words];
        self.tree = vec![0; words + 1];
        for id in old {
            let time = self.log.len();
            self.last[id as usize] = time as u32;
            self.log.push(id);
            self.live[time / 64] |= 1 << (time % 64);
        }
        for word in 0..words {
            self.tree[word + 1] = self.live[word].count_ones();
        }
        for node in 1..=words {
            let parent = node + (node & node.wrapping_neg());
            if parent <= words {
                self.tree[parent] += self.tree[node];
            }
        }
    }

    /// Distinct blocks seen.
    #[must_use]
    pub fn unique(&self) -> u32 {
        self.unique
    }

    /// Hits at every capacity from 1 to the number of distinct blocks.
    #[must_use]
    pub fn finish(&self) -> HitCurve {
        let cumulative = |at: &[u64]| {
            let mut sum = 0;
            let capacities = 1..=self.unique as usize;
            capacities
                .map(|c| {
                    sum += at.get(c).copied().unwrap_or(0);
                    sum
                })
                .collect()
        };
        HitCurve {
            hit_blocks: cumulative(&self.blocks_at),
            hit_tokens: cumulative(&self.tokens_at),
            requests_with_hit: cumulative(&self.requests_at),
            present_blocks: cumulative(&self.beyond_at),
        }
    }
}

#[cfg(test)]
mod tests;
