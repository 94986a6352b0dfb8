//! Numbers of a backend, over a range of its versions.

use serde::{Deserialize, Serialize};

/// What a backend adds to the hardware, and how its engine behaves.
///
/// A ratio multiplies the share of the same name in [`Hardware`](super::hardware::Hardware).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Ratio of the weight-reading bandwidth.
    pub weight_read: f64,
    /// Ratio of the expert-reading bandwidth.
    pub expert_read: f64,
    /// Ratio of the bandwidth of keys and values.
    pub kv_read: f64,
    /// Ratio of all prefill rates.
    pub prefill_rate: f64,
    /// Time of an operator of a decode step, s.
    pub operator_s: f64,
    /// All-reduce latency over that of the hardware (below 1: fused with its neighbours).
    pub all_reduce_ratio: f64,
    /// Latency of a dispatch or combine over that of an all-reduce.
    pub all_to_all_ratio: f64,
    /// Host time of a decode step, s.
    pub step_s: f64,
    /// Host time of a sequence in a decode step, s.
    pub sequence_s: f64,
    /// Launch time of an operator in a prefill pass, s.
    pub launch_s: f64,
    /// Host time of a prefill pass, s.
    pub pass_s: f64,
    /// Time of a first token outside the GPU: client, server, tokeniser, s.
    pub ttft_s: f64,
    /// The same for each prompt token, s.
    pub ttft_per_token_s: f64,
    /// What speculation adds to a first token, s.
    pub speculative_ttft_s: f64,
    /// Share of a decode step that a pass over prompts in the same step adds.
    pub mixed_decode_share: f64,
    /// Probability that a draft token is accepted, for loads that state none.
    pub acceptance: f64,
    /// Time of a draft token beyond its layer, s.
    pub draft_s: f64,
    /// Rate of a prefill-only engine over that of one that also decodes.
    pub disaggregated_prefill_rate: f64,
    /// Fixed time of moving a request from a prefill to a decode engine, s.
    pub transfer_s: f64,
    /// Bandwidth of that, bytes/s.
    pub transfer_bytes_per_s: f64,
    /// Time of a first token outside the GPU where prefill and decode are apart, s.
    pub disaggregated_ttft_s: f64,
}
