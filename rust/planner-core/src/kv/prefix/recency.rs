//! Times of last use: which blocks were used later than which, without a list or a log.
//!
//! Every use takes the next time. `last[id]` is a block's last use and a bit of `live` says whether a
//! time is still somebody's last one. A request's blocks get consecutive times, so those that a later
//! request finds again are *runs*: bits are cleared and set by whole words, not one by one. When the
//! bitmap is full, live times are renumbered from 1; it is eight times as long as the blocks then
//! seen, so that this is rare and memory grows with blocks, not with uses.

/// Which way times run along a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// The last block is used first: times fall along the request.
    Falling,
    /// The first block is used first.
    Rising,
}

/// Last uses of blocks.
pub(super) struct Recency {
    last: Vec<u32>,
    live: Vec<u64>,
    now: usize,
    floor: usize,
    along: Along,
}

/// Blocks of consecutive times; `low..=high` in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub low: usize,
    pub high: usize,
}

const MIN_WORDS: usize = 1 << 10;
/// Bits of the bitmap over blocks seen.
const ROOM: usize = 8;
/// Times are kept in 32 bits.
const MAX_BITS: usize = 1 << 32;

impl Recency {
    pub(super) fn new(along: Along) -> Self {
        Self {
            last: Vec::new(),
            live: vec![0; MIN_WORDS],
            now: 1,
            floor: 1,
            along,
        }
    }

    /// Forgets all uses and keeps the memory.
    pub(super) fn clear(&mut self) {
        let end = (self.now / 64 + 1).min(self.live.len());
        self.live[self.floor / 64..end].fill(0);
        self.floor = self.now;
    }

    /// Bitmap of live times.
    #[inline]
    pub(super) fn words(&self) -> &[u64] {
        &self.live
    }

    /// Whether a block's last use is live.
    #[inline]
    pub(super) fn is_live(&self, id: u32) -> bool {
        let last = self.last.get(id as usize);
        last.is_some_and(|t| *t as usize >= self.floor)
    }

    /// Makes room for a request; whether times were renumbered.
    #[inline]
    pub(super) fn make_room(&mut self, ids: &[u32]) -> bool {
        let top = ids.iter().copied().max().map_or(0, |m| m as usize + 1);
        if top > self.last.len() {
            self.last.resize(top, 0);
        }
        let full = self.now + ids.len() > self.live.len() * 64;
        if full {
            self.compact(ids.len());
        }
        full
    }

    /// Calls `found` with each run of known blocks and the index of its first one, in the order of
    /// the request.
    #[inline]
    pub(super) fn runs(&self, ids: &[u32], mut found: impl FnMut(usize, Run)) {
        let step = match self.along {
            Along::Falling => usize::MAX,
            Along::Rising => 1,
        };
        let mut i = 0;
        while i < ids.len() {
            let start = self.last[ids[i] as usize] as usize;
            if start < self.floor {
                i += 1;
                continue;
            }
            let (from, mut time) = (i, start);
            i += 1;
            while i < ids.len() && self.last[ids[i] as usize] as usize == time.wrapping_add(step) {
                time = time.wrapping_add(step);
                i += 1;
            }
            // A run that falls below the floor is cut: those times are nobody's.
            let low = start.min(time).max(self.floor);
            found(
                from,
                Run {
                    low,
                    high: start.max(time),
                },
            );
        }
    }

    /// Clears the times of a run; calls `word` with each word and the bits that it lost.
    #[inline]
    pub(super) fn clear_run(&mut self, run: Run, mut word: impl FnMut(usize, u32)) {
        for w in run.low / 64..=run.high / 64 {
            let gone = self.live[w] & mask(w, run.low, run.high);
            self.live[w] ^= gone;
            word(w, gone.count_ones());
        }
    }

    /// Gives a request's blocks the next times; calls `word` with each word and the bits that it
    /// gained, less those of blocks that come twice. Returns how many blocks are live by it.
    #[inline]
    pub(super) fn push(&mut self, ids: &[u32], mut word: impl FnMut(usize, u32)) -> usize {
        if ids.is_empty() {
            return 0;
        }
        let (low, high) = (self.now, self.now + ids.len() - 1);
        for w in low / 64..=high / 64 {
            let new = mask(w, low, high);
            self.live[w] |= new;
            word(w, new.count_ones());
        }
        let mut twice = 0;
        let mut give = |time: usize, id: u32, live: &mut [u64]| {
            let last = &mut self.last[id as usize];
            let before = *last as usize;
            *last = time as u32;
            if before >= low {
                live[before / 64] &= !(1 << (before % 64));
                word(before / 64, u32::MAX);
                twice += 1;
            }
        };
        match self.along {
            Along::Falling => (low..)
                .zip(ids.iter().rev())
                .for_each(|(t, id)| give(t, *id, &mut self.live)),
            Along::Rising => (low..)
                .zip(ids)
                .for_each(|(t, id)| give(t, *id, &mut self.live)),
        }
        self.now = high + 1;
        ids.len() - twice
    }

    /// Drops the `count` oldest live times.
    pub(super) fn drop_oldest(&mut self, mut count: usize) {
        let mut w = self.floor / 64;
        while count > 0 && w < self.live.len() {
            let held = self.live[w].count_ones() as usize;
            if held > count {
                break;
            }
            self.live[w] = 0;
            count -= held;
            w += 1;
            self.floor = w * 64;
        }
        for _ in 0..count {
            self.floor = w * 64 + self.live[w].trailing_zeros() as usize + 1;
            self.live[w] &= self.live[w] - 1;
        }
        // A word beyond the last use would let unused times pass for live.
        self.floor = self.floor.min(self.now);
    }

    /// Renumbers live times from 1.
    #[cold]
    fn compact(&mut self, extra: usize) {
        let mut rank = Vec::with_capacity(self.live.len());
        let mut total = 0u32;
        for word in &self.live {
            rank.push(total);
            total += word.count_ones();
        }
        for last in &mut self.last {
            let time = *last as usize;
            *last = if time < self.floor {
                0
            } else {
                let upto = u64::MAX >> (63 - time % 64);
                rank[time / 64] + (self.live[time / 64] & upto).count_ones()
            };
        }
        let (total, seen) = (total as usize, self.last.len());
        let words = ((total + extra).max(seen) * ROOM)
            .min(MAX_BITS)
            .div_ceil(64)
            .next_power_of_two()
            .max(self.live.len());
        assert!(total + extra < words * 64, "more than 2^32 live blocks");
        self.live.clear();
        self.live.resize(words, 0);
        (self.floor, self.now) = (1, total + 1);
        for w in 0..=total / 64 {
            self.live[w] = if total == 0 { 0 } else { mask(w, 1, total) };
        }
    }
}

/// Bits of word `w` whose times are in `low..=high`; the word overlaps them.
#[inline]
fn mask(w: usize, low: usize, high: usize) -> u64 {
    let from = if w == low / 64 { low % 64 } else { 0 };
    let to = if w == high / 64 { high % 64 } else { 63 };
    (u64::MAX << from) & (u64::MAX >> (63 - to))
}
