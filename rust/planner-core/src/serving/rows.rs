//! Estimates as columns.

use super::estimate::Estimate;
use crate::table::rows;

rows! {
    /// One deployment, estimated.
    #[derive(Clone, Copy, Debug, PartialEq)]
    fits: bool, "", "Weights fit and the pool holds a mean request; otherwise the latencies are 0";
    rejected: u32, "1", "Requests that fit no pool; they are in no mean";
    saturated: bool, "", "More is asked than the deployment gives";
    ttft_mean_s: f64, "s", "First token - send, mean over requests";
    ttft_p50_s: f64, "s", "The same, median";
    ttft_p90_s: f64, "s", "The same, ninth decile";
    ttft_p99_s: f64, "s", "The same, 99th percentile";
    tpot_mean_s: f64, "s", "(Last token - first token) / (tokens - 1), mean over requests";
    tpot_p50_s: f64, "s", "The same, median";
    tpot_p90_s: f64, "s", "The same, ninth decile";
    tpot_p99_s: f64, "s", "The same, 99th percentile";
    queue_s: f64, "s", "From send to admission, mean";
    requests_per_s: f64, "1/s", "Requests answered";
    output_tokens_per_s: f64, "tokens/s", "Tokens of answers";
    mean_running: f64, "1", "Requests that run, mean over time and engines";
    peak_kv_ratio: f64, "1", "Highest share of a KV pool that was held";
    blocked_ratio: f64, "1", "Share of time in which a request found no slot or no room";
    prefill_busy_ratio: f64, "1", "Share of time that engines which only prefill compute; 0 where there are none";
    kv_tokens: f64, "tokens", "Tokens that an engine which decodes keeps";
}

impl Row {
    /// The row of an estimate.
    #[must_use]
    pub fn of(estimate: &Estimate) -> Self {
        let o = &estimate.outcome;
        Self {
            fits: estimate.fits,
            rejected: o.rejected,
            saturated: o.saturated,
            ttft_mean_s: o.ttft_s.mean,
            ttft_p50_s: o.ttft_s.p50,
            ttft_p90_s: o.ttft_s.p90,
            ttft_p99_s: o.ttft_s.p99,
            tpot_mean_s: o.tpot_s.mean,
            tpot_p50_s: o.tpot_s.p50,
            tpot_p90_s: o.tpot_s.p90,
            tpot_p99_s: o.tpot_s.p99,
            queue_s: o.queue_s,
            requests_per_s: o.requests_per_s,
            output_tokens_per_s: o.output_tokens_per_s,
            mean_running: o.mean_running,
            peak_kv_ratio: o.peak_kv_ratio,
            blocked_ratio: o.blocked_ratio,
            prefill_busy_ratio: estimate.prefill_busy_ratio.unwrap_or(0.0),
            kv_tokens: estimate.memory.kv_tokens,
        }
    }
}
