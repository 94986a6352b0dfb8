//! One pool of any policy, and what it found.

use super::{Options, Policy};
use crate::error::Result;
use crate::kv::prefix::{Fifo, Layered, Lru, Order};

enum Pool {
    Lru(Lru),
    Fifo(Fifo),
    Layered(Box<Layered>),
}

/// Tallies of one direct pool.
pub(super) struct Direct {
    pub capacity: u64,
    pool: Pool,
    pub hit_blocks: u64,
    pub hit_tokens: u64,
    pub with_hit: u64,
}

impl Direct {
    pub(super) fn new(capacity: u64, options: &Options) -> Result<Self> {
        let pool = match (&options.layers, options.policy) {
            (Some(layers), _) => {
                let pool = Layered::new(capacity, &layers.groups, layers.chunk_tokens)?;
                Pool::Layered(Box::new(pool))
            }
            (None, Policy::Lru) => Pool::Lru(Lru::new(capacity, Order::TailFirst)),
            (None, Policy::Naive) => Pool::Lru(Lru::new(capacity, Order::HeadFirst)),
            (None, Policy::Fifo) => Pool::Fifo(Fifo::new(capacity)),
        };
        Ok(Self {
            capacity,
            pool,
            hit_blocks: 0,
            hit_tokens: 0,
            with_hit: 0,
        })
    }

    /// Whether a prompt needs more blocks at once than the pool has.
    pub(super) fn is_short(&self, shape: Shape, blocks: u64) -> bool {
        let need = match &self.pool {
            Pool::Layered(p) => p.blocks_at_once(shape.input_tokens),
            _ => blocks,
        };
        need > self.capacity
    }

    pub(super) fn request(&mut self, ids: &[u32], max_hits: usize, shape: Shape) {
        let hits = match &mut self.pool {
            Pool::Lru(p) => p.request(ids, max_hits),
            Pool::Fifo(p) => p.request(ids, max_hits),
            Pool::Layered(p) => (p.request(ids, shape.input_tokens) / shape.block_tokens) as usize,
        } as u64;
        self.hit_blocks += hits;
        self.hit_tokens += (hits * shape.block_tokens).min(shape.input_tokens);
        self.with_hit += u64::from(hits > 0);
    }

    pub(super) fn evictions(&self) -> u64 {
        match &self.pool {
            Pool::Lru(p) => p.evictions(),
            Pool::Fifo(p) => p.evictions(),
            Pool::Layered(p) => p.evictions(),
        }
    }
}

/// Prompt and block of a request, tokens.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub input_tokens: u64,
    pub block_tokens: u64,
}
