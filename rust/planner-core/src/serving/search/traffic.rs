//! Requests as engines see them: mean lengths, and the share of each engine.

use crate::serving::closed;
use crate::serving::load::{Arrivals, Load, Request};
use crate::serving::recorded::Recorded;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Demand {
    /// The search chooses the clients of each engine.
    Chosen,
    /// So many clients of the whole deployment.
    Clients(u32),
    /// Requests a second over the whole deployment, and the variation of their gaps.
    Rate(f64, f64),
}

/// Capacities at which a cache is tried, tokens: hits are interpolated between.
const CACHES: [f64; 9] = [
    1e5, 4e5, 1.6e6, 6.4e6, 2.56e7, 1.024e8, 4.096e8, 1.6384e9, 1e15,
];

/// Mean requests.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// Prompt, tokens.
    pub input: f64,
    /// Answer, tokens.
    pub output: f64,
    /// How they come.
    pub demand: Demand,
    hit_ratio: f64,
    /// Share of prompt tokens that a cache of each of `CACHES` holds; empty: not known.
    hits: Vec<f64>,
    recorded: Recorded,
}

impl Traffic {
    pub fn new(load: &Load, recorded: Recorded, chosen: bool) -> Self {
        let (input, output) = match &load.arrivals {
            Arrivals::Trace { requests } => {
                let mean = |f: fn(&Request) -> u32| {
                    requests.iter().map(|r| f64::from(f(r))).sum::<f64>()
                        / requests.len().max(1) as f64
                };
                (mean(|r| r.input), mean(|r| r.output))
            }
            _ => (load.input.mean(), load.output.mean()),
        };
        let demand = match &load.arrivals {
            _ if chosen => Demand::Chosen,
            Arrivals::Closed { concurrency } => Demand::Clients(*concurrency),
            Arrivals::Open { rate_per_s, cv } => Demand::Rate(*rate_per_s, *cv),
            Arrivals::Trace { .. } => Demand::Rate(recorded.rate_per_s(), 1.0),
        };
        let hits = if recorded.shares() {
            CACHES
                .map(|tokens| hit_share(&recorded.cached(tokens)))
                .to_vec()
        } else {
            Vec::new()
        };
        Self {
            input,
            output,
            demand,
            hit_ratio: load.prefix_hit_ratio,
            hits,
            recorded,
        }
    }

    /// Tokens of a mean request, prompt and answer.
    pub fn tokens(&self) -> f64 {
        self.input + self.output
    }

    /// Mean requests at one engine, where all engines together keep `cache` tokens.
    pub fn mean(&self, arrivals: closed::Arrivals, cache: f64) -> closed::Mean {
        closed::Mean {
            input: self.input,
            hit: self.input * self.hit_ratio_at(cache),
            output: self.output,
            arrivals,
        }
    }

    /// Share of prompt tokens that a cache holds: as stated, or as the trace says, linear in the
    /// logarithm of its size.
    fn hit_ratio_at(&self, cache: f64) -> f64 {
        let Some(&last) = self.hits.last() else {
            return self.hit_ratio;
        };
        let above = CACHES.partition_point(|&tokens| tokens <= cache);
        match above {
            0 => self.hits[0] * cache / CACHES[0],
            n if n == CACHES.len() => last,
            n => {
                let (low, high) = (CACHES[n - 1].ln(), CACHES[n].ln());
                let share = (cache.ln() - low) / (high - low);
                self.hits[n - 1] + (self.hits[n] - self.hits[n - 1]) * share
            }
        }
    }

    /// Requests as recorded, with the prompt tokens that a cache holds.
    pub fn played(&self, cache: f64) -> Vec<Request> {
        self.recorded.cached(cache)
    }
}

fn hit_share(requests: &[Request]) -> f64 {
    let sum = |f: fn(&Request) -> u32| requests.iter().map(|r| f64::from(f(r))).sum::<f64>();
    sum(|r| r.hit) / sum(|r| r.input).max(1.0)
}
