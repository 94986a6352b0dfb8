//! How an engine schedules: whose rules, and the numbers in them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::serving::deployment::Backend;

/// What must be free in the KV pool before a request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reserve {
    /// Its prompt. Running requests grow; when the pool is full the one admitted last loses its
    /// blocks, goes back to the head of the queue and is computed anew (vLLM).
    Prompt,
    /// Its prompt and whole answer, so nothing is ever preempted (TensorRT-LLM, no-evict).
    Whole,
    /// Its prompt and answer beside what running requests are expected to add, a share of what
    /// remains of their answers; when the pool is full those with the shortest answers so far are
    /// retracted (SGLang `new_token_ratio`).
    Expected {
        /// The share at start and after a retraction at least this.
        first: f64,
        /// The share after `steps` decode steps without a retraction.
        least: f64,
        /// Decode steps from `first` to `least`.
        steps: f64,
    },
}

/// Scheduling rules and numbers of one engine, attention replicas included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Whose rules. vLLM: prompts fill the token budget of the step, the last is split, decoding
    /// goes on beside. TensorRT-LLM: whole prompts beside decoding. SGLang: passes of prompts
    /// alone, decoding stands still.
    pub backend: Backend,
    /// Tokens of a step: prompts and decoding requests; SGLang: of a pass of prompts.
    pub max_batched_tokens: u32,
    /// Requests that hold a slot at once.
    pub max_batch: u32,
    /// Tokens of the KV pool.
    pub kv_tokens: u64,
    /// Tokens in a KV block; half a block less one token is lost per request.
    pub block_tokens: u32,
    /// What must be free to admit.
    pub reserve: Reserve,
    /// Decode steps between two looks at new requests (SGLang; also right after a prefill and when
    /// idle). Others look every step.
    pub recv_interval: u32,
    /// Share of the decode step's time that a step with prompts takes beside the time of these.
    pub decode_share: f64,
    /// From send to queue, whatever the prompt: client, HTTP, tokeniser, first response. In TTFT.
    pub latency_s: f64,
    /// The same per prompt token.
    pub token_latency_s: f64,
    /// Host time of every step that nothing hides and that the step times do not hold.
    pub host_s: f64,
    /// Tokens that a decode step gives a request: 1, with speculation what is accepted on average
    /// and one.
    pub tokens_per_step: f64,
    /// Tokens of the budget that a decoding request takes: 1 + draft tokens.
    pub step_tokens: u32,
    /// Attention replicas that wait for each other before they prefill (TensorRT-LLM): a pass
    /// starts with that many waiting requests.
    pub attention_dp: u32,
    /// Decode steps after which a pass starts with fewer.
    pub dp_wait_steps: u32,
}

impl Policy {
    /// Engine defaults: a slot limit, a token budget and a pool; rules of the backend; no latency
    /// outside the steps, no speculation, one attention replica.
    #[must_use]
    pub const fn new(
        backend: Backend,
        max_batch: u32,
        max_batched_tokens: u32,
        kv_tokens: u64,
    ) -> Self {
        let (reserve, block_tokens) = match backend {
            Backend::Vllm => (Reserve::Prompt, 16),
            Backend::Trtllm => (Reserve::Whole, 32),
            Backend::Sglang => (Reserve::EXPECTED, 1),
        };
        Self {
            backend,
            max_batched_tokens,
            max_batch,
            kv_tokens,
            block_tokens,
            reserve,
            recv_interval: 1,
            decode_share: 1.0,
            latency_s: 0.0,
            token_latency_s: 0.0,
            host_s: 0.0,
            tokens_per_step: 1.0,
            step_tokens: 1,
            attention_dp: 1,
            dp_wait_steps: 0,
        }
    }

    /// Checks all numbers.
    ///
    /// # Errors
    /// The first field that makes no sense.
    pub fn check(&self) -> Result<()> {
        for (field, value) in [
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_batch", self.max_batch),
            ("block_tokens", self.block_tokens),
            ("recv_interval", self.recv_interval),
            ("step_tokens", self.step_tokens),
            ("attention_dp", self.attention_dp),
        ] {
            if value == 0 {
                return Err(Error::field(field, value, "must be at least 1"));
            }
        }
        for (field, value, least) in [
            ("decode_share", self.decode_share, 0.0),
            ("latency", self.latency_s, 0.0),
            ("token_latency", self.token_latency_s, 0.0),
            ("host", self.host_s, 0.0),
            ("tokens_per_step", self.tokens_per_step, 1.0),
        ] {
            if !(value >= least && value.is_finite()) {
                return Err(Error::field(field, value, format!("at least {least}")));
            }
        }
        if let Reserve::Expected {
            first,
            least,
            steps,
        } = self.reserve
        {
            let good =
                (0.0..=1.0).contains(&first) && (0.0..=first).contains(&least) && steps > 0.0;
            if !good {
                return Err(Error::field(
                    "reserve",
                    first,
                    "shares 0 ≤ least ≤ first ≤ 1, steps above 0",
                ));
            }
        }
        Ok(())
    }

    /// Tokens of the pool that a request loses to its last, partly filled block, on average.
    #[must_use]
    pub fn waste_tokens(&self) -> f64 {
        f64::from(self.block_tokens - 1) / 2.0
    }
}

impl Reserve {
    /// SGLang's own numbers: 0.7, falling to 0.14 of it over 600 decode steps.
    pub const EXPECTED: Self = Self::Expected {
        first: 0.7,
        least: 0.098,
        steps: 600.0,
    };
}
