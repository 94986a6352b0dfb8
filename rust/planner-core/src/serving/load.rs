//! What is asked of a deployment: requests, their lengths and their arrivals.

use serde::{Deserialize, Serialize};

/// Lengths, uniform on [low, 1] × nominal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Longest, tokens.
    pub tokens: u32,
    /// Shortest over longest (1: all equal).
    pub low: f64,
}

impl Lengths {
    /// Mean length, tokens: (1 + low)/2 · tokens.
    ///
    /// ```
    /// use planner_core::serving::load::Lengths;
    /// assert_eq!(Lengths { tokens: 1000, low: 0.8 }.mean(), 900.0);
    /// ```
    #[must_use]
    pub fn mean(&self) -> f64 {
        f64::from(self.tokens) * (1.0 + self.low) / 2.0
    }
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Arrival, s after the first.
    pub arrival_s: f64,
    /// Prompt tokens.
    pub input: u32,
    /// Output tokens.
    pub output: u32,
    /// Prompt tokens found in the prefix cache.
    #[serde(default)]
    pub hit: u32,
}

/// When requests come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Clients that send the next request when the last is answered; all start at once.
    Closed {
        /// Clients of the whole deployment.
        concurrency: u32,
    },
    /// Independent arrivals: gaps are gamma distributed with the given coefficient of variation
    /// (1: Poisson).
    Open {
        /// Requests a second over the whole deployment.
        rate_per_s: f64,
        /// Standard deviation of the gaps over their mean.
        cv: f64,
    },
    /// As recorded; `input` and `output` of the load are not used.
    Trace {
        /// In order of arrival.
        requests: Vec<Request>,
    },
}

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// When requests come.
    pub arrivals: Arrivals,
    /// Prompt lengths.
    pub input: Lengths,
    /// Output lengths.
    pub output: Lengths,
    /// Requests to play; none: ten per client, or enough for steady quantiles.
    pub requests: Option<u32>,
    /// Share of prompt tokens that the prefix cache holds.
    pub prefix_hit_ratio: f64,
    /// Probability that a draft token is accepted; none: what was measured of the backend.
    #[serde(default)]
    pub acceptance: Option<f64>,
    /// Seed of lengths and arrivals.
    pub seed: u64,
}
