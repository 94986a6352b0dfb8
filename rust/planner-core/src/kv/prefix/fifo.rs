//! First in, first out: a hit does not refresh a block.

/// A FIFO pool of one capacity. A block is cached if and only if at most `capacity` blocks came in
/// since it did, itself included.
///
/// ```
/// use planner_core::kv::prefix::Fifo;
/// let mut pool = Fifo::new(2);
/// pool.request(&[1, 2], 2);
/// assert_eq!(pool.request(&[1], 1), 1);
/// pool.request(&[3], 1);                          // evicts 1, the first in
/// assert_eq!(pool.request(&[1], 1), 0);
/// ```
pub struct Fifo {
    capacity: u64,
    entered: Vec<u64>,
    count: u64,
}

impl Fifo {
    /// An empty pool of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            entered: Vec::new(),
            count: 0,
        }
    }

    /// As [`super::Lru::request`].
    pub fn request(&mut self, ids: &[u32], max_hits: usize) -> usize {
        let top = ids.iter().copied().max().map_or(0, |m| m as usize + 1);
        if top > self.entered.len() {
            self.entered.resize(top.max(self.entered.len() * 2), 0);
        }
        let hits = ids
            .iter()
            .take(max_hits)
            .take_while(|id| self.cached(**id))
            .count();
        for id in ids {
            if !self.cached(*id) {
                self.count += 1;
                self.entered[*id as usize] = self.count;
            }
        }
        hits
    }

    #[inline]
    fn cached(&self, id: u32) -> bool {
        let entered = self.entered[id as usize];
        entered > 0 && self.count - entered < self.capacity
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.count.min(self.capacity)
    }

    /// Blocks evicted so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.count - self.resident()
    }
}
