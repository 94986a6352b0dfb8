//! Least recently used, one capacity.
//!
//! The pool is what [`Recency`](super::recency) calls live: a block is cached if and only if its last
//! use is at or after the oldest that was kept. To evict is to drop the oldest times; that does not
//! touch the blocks.

use super::recency::{Along, Recency, Run};

/// In which order a finished request gives its blocks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Tail first, as vLLM frees: the head of a prompt is evicted last.
    TailFirst,
    /// Head first: the naive order.
    HeadFirst,
}

/// An LRU pool of one capacity.
///
/// ```
/// use planner_core::kv::prefix::{Lru, Order};
/// let mut pool = Lru::new(3, Order::TailFirst);
/// assert_eq!(pool.request(&[1, 2, 3], 3), 0);
/// assert_eq!(pool.request(&[9], 1), 0);          // evicts 3, the tail of the first request
/// assert_eq!(pool.request(&[1, 2, 3], 3), 2);
/// ```
pub struct Lru {
    capacity: u64,
    uses: Recency,
    runs: Vec<Run>,
    resident: u64,
    inserted: u64,
}

impl Lru {
    /// An empty pool of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: u64, order: Order) -> Self {
        let along = match order {
            Order::TailFirst => Along::Falling,
            Order::HeadFirst => Along::Rising,
        };
        Self {
            capacity,
            uses: Recency::new(along),
            runs: Vec::new(),
            resident: 0,
            inserted: 0,
        }
    }

    /// Empties the pool, gives it another capacity and keeps its memory.
    pub fn clear(&mut self, capacity: u64) {
        self.uses.clear();
        (self.capacity, self.resident, self.inserted) = (capacity, 0, 0);
    }

    /// Runs a request over its blocks (numbers from [`super::Intern`]): how many of the first
    /// `max_hits` are found before one is missing. All of them are then the most recent.
    ///
    /// LRU is a stack policy: whatever the order of evictions within a request, the most recent
    /// `capacity` blocks stay. They are therefore dropped at its end, together.
    pub fn request(&mut self, ids: &[u32], max_hits: usize) -> usize {
        self.uses.make_room(ids);
        let (mut found, mut kept) = (0, 0u64);
        self.runs.clear();
        self.uses.runs(ids, |first, run| {
            if first == found {
                found += run.high - run.low + 1;
            }
            self.runs.push(run);
        });
        for run in &self.runs {
            self.uses.clear_run(*run, |_, n| kept += u64::from(n));
        }
        let new = self.uses.push(ids, |_, _| {}) as u64 - kept;
        self.inserted += new;
        self.resident += new;
        if self.resident > self.capacity {
            self.uses
                .drop_oldest((self.resident - self.capacity) as usize);
            self.resident = self.capacity;
        }
        found.min(max_hits)
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Blocks evicted so far: those that came in and are not there.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.inserted - self.resident
    }
}
