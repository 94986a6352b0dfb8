//! A trace through prefix caches of several capacities, in file order.

use serde::{Deserialize, Serialize};

use super::hybrid::Group;
use super::{Counted, Curve, HitCurve, Intern, Mark, base_tokens};
use crate::error::{Error, Result};
use crate::kv::trace::{Reader, Request};

mod direct;

use direct::{Direct, Shape};

/// Which block goes first when the pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Least recently used; a request frees its tail before its head (vLLM).
    Lru,
    /// First in, first out.
    Fifo,
    /// Least recently used, head freed before tail.
    Naive,
}

/// Which blocks of a prompt take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// Every id of the trace, the partial last block included.
    All,
    /// Whole blocks, and a hit leaves at least one token to compute (vLLM).
    Full,
}

/// What to replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Tokens in a block.
    pub block_tokens: u64,
    /// Pools, blocks; `None` is without bound.
    pub capacities: Vec<Option<u64>>,
    /// Eviction.
    pub policy: Policy,
    /// Blocks that take part.
    pub ids: Ids,
    /// Also the hits at every capacity (policy `lru` only).
    #[serde(default)]
    pub curve: bool,
    /// Share of blocks that a sampled curve looks at (SHARDS): 1 is exact.
    #[serde(default = "one")]
    pub sample: f64,
    /// Groups of layers that share the pool; none: one group that keeps every token.
    #[serde(default)]
    pub layers: Option<Layers>,
}

/// Groups of layers of a model under an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// Groups, in the engine's order.
    pub groups: Vec<Group>,
    /// Tokens of a prompt that are computed at once.
    pub chunk_tokens: u64,
}

const fn one() -> f64 {
    1.0
}

/// Hits of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Blocks of the pool; none: without bound.
    pub capacity_blocks: Option<u64>,
    /// Prompt blocks found.
    pub hit_blocks: u64,
    /// Over all prompt blocks.
    pub hit_ratio: f64,
    /// Prompt tokens found.
    pub hit_tokens: u64,
    /// Over all prompt tokens.
    pub token_hit_ratio: f64,
    /// Requests that found at least one block.
    pub requests_with_hit: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Requests with more blocks than the pool: an engine would reject them.
    pub oversized_requests: u64,
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// Requests read.
    pub requests: u64,
    /// Their prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt blocks.
    pub total_blocks: u64,
    /// Distinct ones.
    pub unique_blocks: u64,
    /// Blocks of the largest prompt.
    pub max_request_blocks: u64,
    /// Arrival of the last request after the first, s.
    pub span_s: f64,
    /// Allocated slots of the prompts that hold no token, over all slots.
    pub prompt_waste_ratio: f64,
    /// Bad lines skipped.
    pub skipped_lines: u64,
    /// The first of them.
    pub first_skipped: Option<String>,
    /// Requests whose ids are not one per block.
    pub odd_ids: u64,
    /// One per capacity.
    pub points: Vec<Point>,
    /// Hits at each capacity from 1 up, if asked for.
    pub curve: Option<Vec<u64>>,
}

/// Replays a whole trace. `stop` is polled every thousand requests.
///
/// # Errors
/// A bad line, options that make no sense, or an interrupt.
pub fn replay(reader: &mut Reader, options: &Options, stop: &dyn Fn() -> bool) -> Result<Replay> {
    check(options)?;
    let mut run = Run::new(options)?;
    let mut request = Request::default();
    while reader.next(&mut request)? {
        run.request(&request)?;
        if reader.requests().is_multiple_of(1024) && stop() {
            return Err(Error::Interrupted);
        }
    }
    Ok(run.finish(reader))
}

fn check(options: &Options) -> Result<()> {
    if options.curve && options.policy != Policy::Lru {
        let rule = "only lru has a curve over all capacities; give capacities for the others";
        return Err(Error::field(
            "policy",
            format!("{:?}", options.policy).to_lowercase(),
            rule,
        ));
    }
    if !(options.sample > 0.0 && options.sample <= 1.0) {
        return Err(Error::field(
            "sample",
            options.sample,
            "a share above 0 and up to 1",
        ));
    }
    if options.sample < 1.0 && options.policy != Policy::Lru {
        return Err(Error::field(
            "sample",
            options.sample,
            "sampling needs policy lru",
        ));
    }
    match &options.layers {
        Some(layers) => check_layers(options, layers),
        None => Ok(()),
    }
}

fn check_layers(options: &Options, layers: &Layers) -> Result<()> {
    let rule = "with several groups of layers what a request touches depends on what it found";
    if options.curve || options.sample < 1.0 {
        let rule = format!("there is no curve, give capacities: {rule}");
        return Err(Error::field("curve", options.curve, rule));
    }
    if options.policy != Policy::Lru || options.ids != Ids::Full {
        let policy = format!("{:?}, {:?} ids", options.policy, options.ids).to_lowercase();
        let rule = "for groups of layers only lru with whole blocks (ids full) is known";
        return Err(Error::field("policy", policy, rule));
    }
    let base = base_tokens(&layers.groups);
    if options.block_tokens != base {
        let rule = format!("the shortest block of the groups is {base} tokens");
        return Err(Error::field("block_size", options.block_tokens, rule));
    }
    Ok(())
}

struct Run<'a> {
    options: &'a Options,
    intern: Intern,
    ids: Vec<u32>,
    pools: Vec<Direct>,
    curve: Option<Curve>,
    /// Keys below this are sampled.
    threshold: u64,
    lengths_only_blocks: u64,
    out: Replay,
    sizes: Vec<u64>,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options) -> Result<Self> {
        let exact = |c: &Option<u64>| Direct::new(c.unwrap_or(u64::MAX), options);
        // Every LRU capacity comes out of the curve; the others are replayed one by one.
        let lru = options.policy == Policy::Lru && options.layers.is_none();
        let bound = |c: &Option<u64>| c.unwrap_or(u64::MAX);
        let bounds: Vec<u64> = options.capacities.iter().map(bound).collect();
        Ok(Self {
            options,
            intern: Intern::default(),
            ids: Vec::new(),
            pools: if lru {
                Vec::new()
            } else {
                options
                    .capacities
                    .iter()
                    .map(exact)
                    .collect::<Result<_>>()?
            },
            curve: lru.then(|| Curve::new(&bounds)),
            threshold: (options.sample * u64::MAX as f64) as u64,
            lengths_only_blocks: 0,
            out: Replay {
                requests: 0,
                prompt_tokens: 0,
                total_blocks: 0,
                unique_blocks: 0,
                max_request_blocks: 0,
                span_s: 0.0,
                prompt_waste_ratio: 0.0,
                skipped_lines: 0,
                first_skipped: None,
                odd_ids: 0,
                points: Vec::new(),
                curve: None,
            },
            sizes: vec![0; options.capacities.len()],
        })
    }

    fn request(&mut self, request: &Request) -> Result<()> {
        let block = self.options.block_tokens;
        let shape = Shape {
            input_tokens: request.input_tokens,
            block_tokens: block,
        };
        let mut blocks = match self.options.ids {
            Ids::All => request.input_tokens.div_ceil(block),
            Ids::Full => request.input_tokens / block,
        };
        self.out.prompt_tokens += request.input_tokens;
        self.out.span_s = self.out.span_s.max(request.arrival_s);
        if request.keys.is_empty() {
            self.lengths_only_blocks += blocks;
        } else {
            let found = request.keys.len() as u64;
            blocks = if self.options.ids == Ids::All {
                found
            } else {
                blocks.min(found)
            };
            self.touch(&request.keys[..blocks as usize], shape)?;
        }
        self.out.total_blocks += blocks;
        self.out.max_request_blocks = self.out.max_request_blocks.max(blocks);
        for (i, capacity) in self.options.capacities.iter().enumerate() {
            let short = match self.pools.get(i) {
                Some(pool) => pool.is_short(shape, blocks),
                None => capacity.is_some_and(|c| blocks > c),
            };
            self.sizes[i] += u64::from(short);
        }
        Ok(())
    }

    fn touch(&mut self, keys: &[u64], shape: Shape) -> Result<()> {
        let max_hits = match self.options.ids {
            Ids::All => keys.len(),
            Ids::Full => (shape.input_tokens.saturating_sub(1) / shape.block_tokens) as usize,
        };
        let sampled = self.options.sample < 1.0;
        self.ids.clear();
        let mut kept_hits = 0;
        for (i, key) in keys.iter().enumerate() {
            if !sampled || scramble(*key) < self.threshold {
                self.ids.push(self.intern.id(*key));
                kept_hits += usize::from(i < max_hits);
            }
        }
        if let Some(layers) = &self.options.layers {
            let names = u64::from(self.intern.len()) * layers.groups.len() as u64;
            if names > u64::from(u32::MAX) {
                let rule = "at most 2^32 distinct blocks over all groups";
                return Err(Error::field("blocks", names, rule));
            }
        }
        for pool in &mut self.pools {
            pool.request(&self.ids, kept_hits, shape);
        }
        if let Some(curve) = &mut self.curve {
            let whole = if sampled {
                usize::MAX
            } else {
                (shape.input_tokens / shape.block_tokens) as usize
            };
            let counted = Counted {
                max_hits: kept_hits,
                whole,
                empty_slots: shape.block_tokens - shape.input_tokens % shape.block_tokens,
                block_tokens: shape.block_tokens,
            };
            curve.request(&self.ids, counted);
        }
        Ok(())
    }

    fn finish(mut self, reader: &Reader) -> Replay {
        self.out.requests = reader.requests();
        self.out.odd_ids = reader.odd_ids();
        let (skipped, first) = reader.skipped();
        self.out.skipped_lines = skipped;
        self.out.first_skipped = first.map(Into::into);
        let sampled_unique = u64::from(self.intern.len());
        self.out.unique_blocks =
            scale(sampled_unique, self.options.sample) + self.lengths_only_blocks;
        let slots = self.out.total_blocks * self.options.block_tokens;
        if self.options.ids == Ids::All && slots > 0 {
            self.out.prompt_waste_ratio = 1.0 - self.out.prompt_tokens as f64 / slots as f64;
        }
        let curve = self.curve.take().map(Curve::into_hits);
        for (i, capacity) in self.options.capacities.iter().enumerate() {
            let point = match &curve {
                Some(curve) => self.point_of(curve, curve.marks[i], *capacity),
                None => self.point(&self.pools[i], *capacity),
            };
            self.out.points.push(Point {
                oversized_requests: self.sizes[i],
                ..point
            });
        }
        if let (true, Some(curve)) = (self.options.curve, &curve) {
            let all = 1..=self.out.unique_blocks;
            self.out.curve = Some(all.map(|c| self.hits_at(&curve.hit_blocks, c)).collect());
        }
        self.out
    }

    /// A value of the (perhaps sampled) curve at a true capacity, scaled to the whole trace.
    fn hits_at(&self, values: &[u64], capacity: u64) -> u64 {
        if self.options.sample >= 1.0 {
            return HitCurve::at(values, capacity);
        }
        let sampled = (capacity as f64 * self.options.sample).floor() as u64;
        scale(HitCurve::at(values, sampled), self.options.sample).min(self.out.total_blocks)
    }

    fn point_of(&self, curve: &HitCurve, mark: Mark, capacity: Option<u64>) -> Point {
        let c = capacity.unwrap_or(u64::MAX);
        let hit_blocks = self.hits_at(&curve.hit_blocks, c);
        let sampled = self.options.sample < 1.0;
        let hit_tokens = hit_blocks * self.options.block_tokens - mark.empty_slots;
        let present = if sampled { 0 } else { mark.present_blocks };
        let entered = self.out.total_blocks - hit_blocks - present;
        Point {
            capacity_blocks: capacity,
            hit_blocks,
            hit_ratio: ratio(hit_blocks, self.out.total_blocks),
            hit_tokens,
            token_hit_ratio: ratio(hit_tokens, self.out.prompt_tokens),
            requests_with_hit: mark.requests_with_hit,
            // The cache is closed under prefixes: what was not found came in, and left or stays.
            evictions: entered - entered.min(c.min(self.out.unique_blocks)),
            oversized_requests: 0,
        }
    }

    fn point(&self, direct: &Direct, capacity: Option<u64>) -> Point {
        let lengths_only = self.lengths_only_blocks - self.lengths_only_blocks.min(direct.capacity);
        Point {
            capacity_blocks: capacity,
            hit_blocks: direct.hit_blocks,
            hit_ratio: ratio(direct.hit_blocks, self.out.total_blocks),
            hit_tokens: direct.hit_tokens,
            token_hit_ratio: ratio(direct.hit_tokens, self.out.prompt_tokens),
            requests_with_hit: direct.with_hit,
            evictions: direct.evictions() + lengths_only,
            oversized_requests: 0,
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn scale(count: u64, sample: f64) -> u64 {
    if sample >= 1.0 {
        count
    } else {
        (count as f64 / sample).round() as u64
    }
}

/// Spreads keys evenly over 64 bits (splitmix64).
fn scramble(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
