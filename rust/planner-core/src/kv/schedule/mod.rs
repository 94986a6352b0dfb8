//! Continuous batching on a trace: who runs when, how full the pool is, who is preempted.
//!
//! Every engine step is played: its tokens, its blocks, its time by [`StepTime`]. Two policies:
//! [`Policy::Vllm`] (token budget, chunked prefill, preemption by recomputation) and
//! [`Policy::Sglang`] (prefill first, admission by expected output, retraction).

mod engine;
mod outcome;
mod pool;
mod sglang;
mod vllm;

use serde::{Deserialize, Serialize};

pub use crate::stats::Quantiles;
pub use engine::run;
pub use outcome::{COLUMNS, Outcome, Rejected, Summary, TIMELINE};

use crate::error::{Error, Result};

/// Whose scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// vLLM v1: running requests first, then waiting ones, one token budget.
    Vllm,
    /// SGLang: a prefill step whenever requests can be admitted, otherwise a decode step.
    Sglang,
}

/// Time of a step, s: `base + prefill·p + decode·d + context·c` for p prompt tokens, d decoding
/// requests and c tokens in their contexts. Constant and linear-in-tokens are its special cases.
///
/// ```
/// use planner_core::kv::schedule::StepTime;
/// let t = StepTime { base_s: 0.01, prefill_token_s: 1e-5, decode_s: 1e-5, context_token_s: 0.0 };
/// assert!((t.of(1000, 50, 0) - 0.0205).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTime {
    /// Of any step.
    pub base_s: f64,
    /// Of a prompt token.
    pub prefill_token_s: f64,
    /// Of a decoding request.
    pub decode_s: f64,
    /// Of a token in the context of a decoding request.
    pub context_token_s: f64,
}

impl StepTime {
    /// Time of one step, s.
    #[must_use]
    pub fn of(&self, prefill_tokens: u64, decodes: u64, context_tokens: u64) -> f64 {
        self.base_s
            + self.prefill_token_s * prefill_tokens as f64
            + self.decode_s * decodes as f64
            + self.context_token_s * context_tokens as f64
    }
}

/// Limits and rules of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Whose scheduler.
    pub policy: Policy,
    /// Blocks that requests can use.
    pub blocks: u64,
    /// Tokens in a block.
    pub block_tokens: u64,
    /// Requests that run at once.
    pub max_seqs: u64,
    /// Tokens of a step (vLLM), of a prefill chunk (SGLang).
    pub max_batched_tokens: u64,
    /// Most tokens of one prompt in a step (0: no such limit).
    pub long_prefill_tokens: u64,
    /// Blocks of equal prefixes are shared and kept.
    pub prefix_caching: bool,
    /// A request is admitted only if its whole prompt fits (vLLM `scheduler_reserve_full_isl`).
    pub reserve_prompt: bool,
    /// Share of the pool that admission leaves free once something runs (vLLM `watermark`).
    pub watermark: f64,
    /// Unhashed blocks are reused first (vLLM 0.33).
    pub unhashed_first: bool,
    /// SGLang's `schedule_conservativeness`.
    pub conservativeness: f64,
    /// Time of a step.
    pub step: StepTime,
}

impl Options {
    fn check(&self) -> Result<()> {
        let positive = [
            ("block_size", self.block_tokens),
            ("max_num_seqs", self.max_seqs),
            ("max_num_batched_tokens", self.max_batched_tokens),
        ];
        for (field, value) in positive {
            if value == 0 || value > 1 << 31 {
                return Err(Error::field(field, value, "must be between 1 and 2^31"));
            }
        }
        if self.blocks >= 1 << 31 {
            return Err(Error::field("blocks", self.blocks, "must be below 2^31"));
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(Error::field(
                "watermark",
                self.watermark,
                "a share from 0 to below 1",
            ));
        }
        if !(self.conservativeness > 0.0 && self.conservativeness <= 10.0) {
            return Err(Error::field(
                "conservativeness",
                self.conservativeness,
                "above 0 and up to 10",
            ));
        }
        let s = &self.step;
        for (field, value) in [
            ("base_s", s.base_s),
            ("prefill_token_s", s.prefill_token_s),
            ("decode_s", s.decode_s),
            ("context_token_s", s.context_token_s),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::field(field, value, "a time of at least 0 s"));
            }
        }
        if s.of(1, 1, 1) <= 0.0 {
            return Err(Error::field(
                "base_s",
                s.base_s,
                "a step must take some time",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
