//! The block pool: a count where nothing is shared, and vLLM's free queue where prefixes are.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Spreads keys that are already hashes, or small numbers.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, key: u64) {
        let product = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 29);
    }
}

/// Blocks of one request, in order. Names are kept only where blocks are shared.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub count: u32,
    names: Vec<u32>,
}

/// Blocks of an engine.
pub(super) struct Pool {
    total: u32,
    free: u32,
    shared: Option<Shared>,
}

/// Doubly linked queue of free blocks, oldest first, and the blocks by key.
struct Shared {
    next: Vec<u32>,
    prev: Vec<u32>,
    references: Vec<u32>,
    key: Vec<Option<u64>>,
    by_key: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    unhashed_first: bool,
}

impl Pool {
    pub(super) fn new(total: u32, prefix_caching: bool, unhashed_first: bool) -> Self {
        Self {
            total,
            free: total,
            shared: prefix_caching.then(|| Shared::new(total, unhashed_first)),
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    pub(super) fn used(&self) -> u32 {
        self.total - self.free
    }

    pub(super) fn shares(&self) -> bool {
        self.shared.is_some()
    }

    /// How many of the first keys are cached, and how many of those blocks are free now.
    pub(super) fn lookup(&self, keys: impl Iterator<Item = u64>) -> (u32, u32) {
        let Some(shared) = &self.shared else {
            return (0, 0);
        };
        let found = keys.map_while(|key| shared.by_key.get(&key));
        found.fold((0, 0), |(hits, idle), block| {
            (
                hits + 1,
                idle + u32::from(shared.references[*block as usize] == 0),
            )
        })
    }

    /// Takes the cached blocks of these keys.
    pub(super) fn take_hits(&mut self, held: &mut Held, keys: impl Iterator<Item = u64>) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        for key in keys {
            let Some(&block) = shared.by_key.get(&key) else {
                return;
            };
            if shared.references[block as usize] == 0 {
                shared.unlink(block);
                self.free -= 1;
            }
            shared.references[block as usize] += 1;
            held.names.push(block);
            held.count += 1;
        }
    }

    /// Takes `n` of the free blocks; there must be as many.
    pub(super) fn take(&mut self, held: &mut Held, n: u32) {
        self.free -= n;
        held.count += n;
        if let Some(shared) = &mut self.shared {
            for _ in 0..n {
                held.names.push(shared.pop());
            }
        }
    }

    /// Gives block `index` of a request its key, once it is full.
    pub(super) fn name(&mut self, held: &Held, index: usize, key: u64) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        let block = held.names[index];
        let slot = &mut shared.key[block as usize];
        if slot.is_none() {
            *slot = Some(key);
            shared.by_key.entry(key).or_insert(block);
        }
    }

    /// Gives all blocks back, tail first.
    pub(super) fn release(&mut self, held: &mut Held) {
        let Some(shared) = &mut self.shared else {
            self.free += std::mem::take(&mut held.count);
            return;
        };
        held.count = 0;
        for block in held.names.drain(..).rev() {
            let references = &mut shared.references[block as usize];
            *references -= 1;
            if *references == 0 {
                self.free += 1;
                if shared.unhashed_first && shared.key[block as usize].is_none() {
                    shared.link(block, shared.next[shared.end()]);
                } else {
                    shared.link(block, shared.end() as u32);
                }
            }
        }
    }
}

impl Shared {
    fn new(total: u32, unhashed_first: bool) -> Self {
        let n = total + 1; // the last is the sentinel
        Self {
            next: (0..n).map(|i| (i + 1) % n).collect(),
            prev: (0..n).map(|i| (i + n - 1) % n).collect(),
            references: vec![0; n as usize],
            key: vec![None; n as usize],
            by_key: HashMap::default(),
            unhashed_first,
        }
    }

    const fn end(&self) -> usize {
        self.next.len() - 1
    }

    fn unlink(&mut self, block: u32) {
        let (p, n) = (self.prev[block as usize], self.next[block as usize]);
        self.next[p as usize] = n;
        self.prev[n as usize] = p;
    }

    /// Puts a block before another one.
    fn link(&mut self, block: u32, before: u32) {
        let p = self.prev[before as usize];
        self.next[p as usize] = block;
        self.prev[block as usize] = p;
        self.next[block as usize] = before;
        self.prev[before as usize] = block;
    }

    /// Oldest free block; its key is forgotten now, not when it was freed.
    fn pop(&mut self) -> u32 {
        let block = self.next[self.end()];
        self.unlink(block);
        if let Some(key) = self.key[block as usize].take()
            && self.by_key.get(&key) == Some(&block)
        {
            self.by_key.remove(&key);
        }
        self.references[block as usize] = 1;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, Pool};

    #[test]
    fn the_head_outlives_the_tail() {
        let mut pool = Pool::new(4, true, false);
        let mut held = Held::default();
        pool.take(&mut held, 3);
        for (i, key) in [10, 11, 12].into_iter().enumerate() {
            pool.name(&held, i, key);
        }
        pool.release(&mut held);
        assert_eq!(
            (pool.free(), pool.lookup([10, 11, 12].into_iter())),
            (4, (3, 3))
        );
        pool.take(&mut held, 2); // the unused block, then 12
        assert_eq!(pool.lookup([10, 11, 12].into_iter()), (2, 2));
        let mut other = Held::default();
        pool.take_hits(&mut other, [10, 11].into_iter());
        assert_eq!((pool.free(), pool.used(), other.count), (0, 4, 2));
        assert_eq!(pool.lookup([10].into_iter()), (1, 0));
    }

    #[test]
    fn unhashed_blocks_may_go_first() {
        for (first, left) in [(false, 0), (true, 1)] {
            let mut pool = Pool::new(2, true, first);
            let mut held = Held::default();
            pool.take(&mut held, 2);
            pool.name(&held, 1, 7); // block 0 holds no whole block
            pool.release(&mut held);
            pool.take(&mut held, 1);
            assert_eq!(pool.lookup([7].into_iter()).0, left);
        }
    }
}
