//! Least recently used, as a log: no list, no pointers.
//!
//! `last[id]` is the time of a block's last use and `log[time]` the block used then. A block is
//! cached if and only if `last[id] ≥ tail`; to evict is to move `tail` over entries that are no
//! longer the last use of their block, up to one that is.

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
    order: Order,
    last: Vec<u32>,
    log: Vec<u32>,
    tail: usize,
    resident: u64,
    inserted: u64,
}

const LOG_MIN: usize = 1 << 20;

impl Lru {
    /// An empty pool of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: u64, order: Order) -> Self {
        Self {
            capacity,
            order,
            last: Vec::new(),
            log: vec![0],
            tail: 1,
            resident: 0,
            inserted: 0,
        }
    }

    /// Runs a request over its blocks (numbers from [`super::Intern`]): how many of the first
    /// `max_hits` are found before one is missing. All of them are then the most recent.
    pub fn request(&mut self, ids: &[u32], max_hits: usize) -> usize {
        self.make_room(ids);
        let tail = self.tail as u32;
        let cached = |id: &&u32| self.last[**id as usize] >= tail;
        let hits = ids.iter().take(max_hits).take_while(cached).count();
        self.inserted += match self.order {
            // The cache is closed under prefixes: behind the first miss nothing is cached.
            Order::TailFirst => ids[hits..]
                .iter()
                .filter(|id| self.last[**id as usize] < tail)
                .count(),
            Order::HeadFirst => ids
                .iter()
                .filter(|id| self.last[**id as usize] < tail)
                .count(),
        } as u64;
        match self.order {
            Order::TailFirst => ids.iter().rev().for_each(|id| self.touch(*id)),
            Order::HeadFirst => ids.iter().for_each(|id| self.touch(*id)),
        }
        hits
    }

    #[inline]
    fn touch(&mut self, id: u32) {
        let now = self.log.len();
        let last = &mut self.last[id as usize];
        self.resident += u64::from((*last as usize) < self.tail);
        *last = now as u32;
        self.log.push(id);
        if self.resident > self.capacity {
            self.evict();
        }
    }

    #[inline]
    fn evict(&mut self) {
        while self.last[self.log[self.tail] as usize] as usize != self.tail {
            self.tail += 1;
        }
        self.tail += 1;
        self.resident -= 1;
    }

    fn make_room(&mut self, ids: &[u32]) {
        let limit = LOG_MIN.max(self.last.len() * 4);
        if self.log.len() + ids.len() > limit {
            self.compact();
        }
        let top = ids.iter().copied().max().map_or(0, |m| m as usize + 1);
        if top > self.last.len() {
            self.last.resize(top.max(self.last.len() * 2), 0);
        }
    }

    /// Renumbers the cached blocks from 1, so that the log does not grow with the trace.
    #[cold]
    fn compact(&mut self) {
        let live: Vec<u32> = (self.tail..self.log.len())
            .filter(|t| self.last[self.log[*t] as usize] as usize == *t)
            .map(|t| self.log[t])
            .collect();
        self.last.fill(0);
        self.log.truncate(1);
        self.tail = 1;
        for id in live {
            self.last[id as usize] = self.log.len() as u32;
            self.log.push(id);
        }
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Blocks evicted so far: those that came in and are not there.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.inserted - self.resident.min(self.inserted)
    }
}
