//! A trace as a load: its requests, and what of their prompts a cache of some size holds.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::load::Request;
use crate::error::{Error, Result};
use crate::kv::prefix::{Intern, Lru, Order};
use crate::kv::trace::{self, Reader};

/// Most requests that are played.
pub const MOST_REQUESTS: usize = 2_000_000;

/// A trace file, as it is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The file.
    pub path: String,
    /// How to read it.
    pub options: trace::Options,
    /// Requests a second at which it is played; none: as recorded.
    pub rate_per_s: Option<f64>,
}

/// Requests of a trace with the blocks of their prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    requests: Vec<Request>,
    /// Blocks of all prompts, one request after the other.
    blocks: Vec<u32>,
    /// Where the blocks of each request begin in `blocks`, and the end of the last.
    starts: Vec<usize>,
    block_tokens: u64,
}

impl Source {
    /// Reads the file.
    ///
    /// # Errors
    /// A line that is not what its format says, no request, or too many.
    pub fn read(&self) -> Result<Recorded> {
        let mut reader = Reader::open(Path::new(&self.path), self.options)?;
        let mut out = Recorded {
            block_tokens: self.options.block_tokens,
            starts: vec![0],
            ..Recorded::default()
        };
        let (mut ids, mut next) = (Intern::default(), trace::Request::default());
        while reader.next(&mut next)? {
            if next.input_tokens == 0 {
                continue;
            }
            if out.requests.len() == MOST_REQUESTS {
                let rule = format!("holds more than {MOST_REQUESTS} requests");
                return Err(Error::field("trace", &self.path, rule));
            }
            let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            out.requests.push(Request {
                arrival_s: next.arrival_s,
                input: count(next.input_tokens),
                output: count(next.output_tokens).max(1),
                hit: 0,
            });
            out.blocks.extend(next.keys.iter().map(|&key| ids.id(key)));
            out.starts.push(out.blocks.len());
        }
        if out.requests.is_empty() {
            return Err(Error::field("trace", &self.path, "holds no request"));
        }
        if let Some(rate) = self.rate_per_s {
            out.play_at(rate);
        }
        Ok(out)
    }
}

impl Recorded {
    /// Requests, nothing cached.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Whether the trace says which blocks prompts share.
    #[must_use]
    pub fn shares(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Mean rate of arrivals, 1/s.
    #[must_use]
    pub fn rate_per_s(&self) -> f64 {
        let span_s = self.requests.last().map_or(0.0, |r| r.arrival_s);
        (self.requests.len() - 1) as f64 / span_s.max(1e-9)
    }

    /// Stretches or squeezes the gaps so that requests come at a rate.
    fn play_at(&mut self, rate_per_s: f64) {
        let wanted_s = (self.requests.len() - 1) as f64 / rate_per_s;
        let span_s = self.requests.last().map_or(0.0, |r| r.arrival_s);
        for (i, request) in self.requests.iter_mut().enumerate() {
            request.arrival_s = if span_s > 0.0 {
                request.arrival_s * wanted_s / span_s
            } else {
                i as f64 / rate_per_s
            };
        }
    }

    /// Requests with the prompt tokens that a cache of `tokens` holds when they come: whole blocks,
    /// and one token at least is computed.
    #[must_use]
    pub fn cached(&self, tokens: f64) -> Vec<Request> {
        let mut requests = self.requests.clone();
        let capacity = (tokens / self.block_tokens as f64).clamp(0.0, 1e15) as u64;
        if !self.shares() || capacity == 0 {
            return requests;
        }
        let mut pool = Lru::new(capacity, Order::TailFirst);
        for (i, request) in requests.iter_mut().enumerate() {
            let own = &self.blocks[self.starts[i]..self.starts[i + 1]];
            let whole = (u64::from(request.input) - 1) / self.block_tokens;
            let hits = pool.request(own, whole as usize) as u64 * self.block_tokens;
            request.hit = u32::try_from(hits).unwrap_or(0);
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(prompts: &[&[u32]]) -> Recorded {
        let mut out = Recorded {
            block_tokens: 100,
            starts: vec![0],
            ..Recorded::default()
        };
        for (i, blocks) in (0_u32..).zip(prompts) {
            out.requests.push(Request {
                arrival_s: f64::from(i),
                input: blocks.len() as u32 * 100,
                output: 10,
                hit: 0,
            });
            out.blocks.extend_from_slice(blocks);
            out.starts.push(out.blocks.len());
        }
        out
    }

    #[test]
    fn a_larger_cache_holds_more() {
        let trace = recorded(&[&[0, 1, 2], &[3, 4, 5], &[0, 1, 6], &[3, 4, 5]]);
        let hits = |tokens| {
            let played = trace.cached(tokens);
            played.iter().map(|r| r.hit).collect::<Vec<_>>()
        };
        assert_eq!(hits(0.0), [0, 0, 0, 0]);
        assert_eq!(
            hits(1e9),
            [0, 0, 200, 200],
            "one token of a known prompt is computed"
        );
        assert!(hits(400.0).iter().sum::<u32>() < 400);
    }

    #[test]
    fn a_trace_is_played_at_another_rate() {
        let mut trace = recorded(&[&[0], &[1], &[2]]);
        assert_eq!(trace.rate_per_s(), 1.0);
        trace.play_at(4.0);
        assert_eq!(trace.requests[2].arrival_s, 0.5);
        assert_eq!(trace.rate_per_s(), 4.0);
    }
}
