//! Attention kernels: prefill (compute) and decode (keys and values from memory).
//!
//! ```text
//! prefill  t = t0 + √(tc² + tl² + tt² + tm²)
//!          tc = 2(dq + dv)·b·h·(P + s·c/2) / R        all pairs, c extra keys a query
//!          tl = tail·SMs·256(dq + dv)·(keys + c) / R  the longest tile of 128 queries
//!          tt = b·h·⌈queries/128⌉·τt/SMs              tiles that take turns on the SMs
//!          R  = eff·peak·(dq + dv)/(dq + dv + 2·d0), × fp8 ratio with fp8 operands
//!          tm = (queries and outputs in 16 bits, keys and values read and written) / (fb·HBM)
//! decode   t = t0 + (√r + √w)²,  w = √(wm² + wc² + wh² + ws²)
//!          wm = KV bytes / (fb·HBM),  wc = FLOP / (ec·peak)
//!          wh = b·(n·τ + h·τq) / SMs              heads that take turns on the SMs
//!          ws = serial·SMs·(KV bytes of one sequence and head)/HBM   one that is not split
//! ```
//!
//! b sequences, h query heads, n KV heads, P query–key pairs of a head, dq and dv widths of keys and
//! values. Latent attention (MLA) in prefill has expanded heads (192 + 128 wide); in decode it is
//! absorbed: one latent vector a token, read once for all heads. Fitted by
//! `meshplan.calibrate.attention` to published kernel tables.

use super::{Rates, ceil};
use crate::cluster::{DecodeCurve, PrefillCurve};

/// Queries in one tile of a prefill kernel.
const TILE_QUERIES: f64 = 128.0;

/// Query–key pairs of one head and sequence under a causal mask and a sliding window.
///
/// `queries` new tokens are the last of `keys`; each sees itself and what is before it, at most
/// `window` keys.
///
/// ```
/// use planner_core::kernels::attention::causal_pairs;
/// assert_eq!(causal_pairs(4, 4, None), 10.0);        // 1 + 2 + 3 + 4
/// assert_eq!(causal_pairs(2, 4, None), 7.0);         // 3 + 4
/// assert_eq!(causal_pairs(4, 4, Some(2)), 7.0);      // 1 + 2 + 2 + 2
/// ```
#[must_use]
pub fn causal_pairs(queries: u64, keys: u64, window: Option<u64>) -> f64 {
    let (q, k) = (queries as f64, keys.max(queries) as f64);
    let all = q * (k - q) + q * (q + 1.0) / 2.0;
    let Some(window) = window else { return all };
    let w = (window as f64).max(1.0);
    // Queries that see more than the window lose the excess: 1 + 2 + … for the last ones.
    let excess = (k - w).max(0.0);
    let beyond = excess.min(q);
    all - beyond * (excess - (beyond - 1.0) / 2.0)
}

/// Prefill attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefill {
    /// Sequences b.
    pub batch: f64,
    /// New tokens of a sequence s.
    pub queries: f64,
    /// Keys that the last of them may see.
    pub keys: f64,
    /// Query–key pairs of one head and sequence P ([`causal_pairs`]).
    pub pairs: f64,
    /// Query heads h.
    pub heads: f64,
    /// Width of queries and keys dq.
    pub key_dim: f64,
    /// Width of values dv.
    pub value_dim: f64,
    /// Bytes per token of keys and values, read and written in the cache.
    pub kv_bytes_per_token: f64,
    /// Operands in fp8.
    pub fp8: bool,
}

impl Prefill {
    /// FLOP of scores and outputs: 2(dq + dv)·b·h·P.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * (self.key_dim + self.value_dim) * self.batch * self.heads * self.pairs
    }
}

/// Time of prefill attention, s; `rates.peak_flops` is the bf16 peak. The equation heads this module.
///
/// ```
/// use planner_core::cluster::PrefillCurve;
/// use planner_core::kernels::{Rates, attention::{Prefill, causal_pairs, prefill_s}};
/// let h100 = Rates { peak_flops: 989.4e12, memory_bytes_per_s: 3.35e12, sms: 132.0 };
/// let curve = PrefillCurve { efficiency: 0.6, seq_half: 0.0, dim_half: 0.0, tail: 0.0,
///     tile_s: 0.0, fp8_ratio: 1.5, memory_efficiency: 1e9, base_s: 0.0 };
/// let a = Prefill { batch: 1.0, queries: 8192.0, keys: 8192.0,
///     pairs: causal_pairs(8192, 8192, None), heads: 32.0, key_dim: 128.0, value_dim: 128.0,
///     kv_bytes_per_token: 4096.0, fp8: false };
/// // 512·32·33.56e6 = 0.55 TFLOP at 594 TFLOP/s.
/// assert!((prefill_s(&a, &curve, &h100) - 0.926e-3).abs() < 1e-6);
/// ```
#[must_use]
pub fn prefill_s(a: &Prefill, curve: &PrefillCurve, rates: &Rates) -> f64 {
    if a.batch * a.queries * a.heads <= 0.0 {
        return 0.0;
    }
    let width = a.key_dim + a.value_dim;
    let operands = if a.fp8 { curve.fp8_ratio } else { 1.0 };
    let rate =
        curve.efficiency * operands * rates.peak_flops * width / (width + 2.0 * curve.dim_half);
    let extra = a.queries * curve.seq_half / 2.0;
    let all = 2.0 * width * a.batch * a.heads * (a.pairs + extra) / rate;
    let longest = 2.0 * width * TILE_QUERIES * (a.keys + curve.seq_half) * rates.sms / rate;
    let tail = curve.tail * longest;
    let turns = a.batch * a.heads * ceil(a.queries / TILE_QUERIES) * curve.tile_s / rates.sms;
    let bytes =
        a.batch * a.queries * a.heads * width * 2.0 + a.batch * a.keys * a.kv_bytes_per_token;
    let memory = bytes / (curve.memory_efficiency * rates.memory_bytes_per_s);
    curve.base_s + (all * all + tail * tail + turns * turns + memory * memory).sqrt()
}

/// Decode attention of a layer: one new token a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Sequences b.
    pub batch: f64,
    /// Cached tokens of a sequence, mean.
    pub keys: f64,
    /// Query heads h.
    pub heads: f64,
    /// KV heads n (1 for latent attention).
    pub kv_heads: f64,
    /// Bytes of keys and values per cached token.
    pub kv_bytes_per_token: f64,
    /// FLOP per query head and cached token: 4d, or 2(576 + 512) for absorbed latent attention.
    pub flops_per_pair: f64,
}

/// Time of decode attention, s; `rates.peak_flops` is the bf16 peak. The equation heads this module.
///
/// ```
/// use planner_core::cluster::DecodeCurve;
/// use planner_core::kernels::{Rates, attention::{Decode, decode_s}};
/// let h100 = Rates { peak_flops: 989.4e12, memory_bytes_per_s: 3.35e12, sms: 132.0 };
/// let curve = DecodeCurve { memory_efficiency: 1.0, compute_efficiency: 1e9, head_s: 0.0,
///     query_head_s: 0.0, serial: 0.0, ramp_s: 0.0, base_s: 0.0 };
/// // 64 sequences of 4,096 tokens at 4 KiB: 1.07 GB at 3.35 TB/s.
/// let a = Decode { batch: 64.0, keys: 4096.0, heads: 32.0, kv_heads: 8.0,
///     kv_bytes_per_token: 4096.0, flops_per_pair: 512.0 };
/// assert!((decode_s(&a, &curve, &h100) - 320.5e-6).abs() < 1e-7);
/// ```
#[must_use]
pub fn decode_s(a: &Decode, curve: &DecodeCurve, rates: &Rates) -> f64 {
    if a.batch * a.heads <= 0.0 {
        return 0.0;
    }
    let memory = a.batch * a.keys * a.kv_bytes_per_token
        / (curve.memory_efficiency * rates.memory_bytes_per_s);
    let compute = a.batch * a.heads * a.keys * a.flops_per_pair
        / (curve.compute_efficiency * rates.peak_flops);
    let turns = a.batch * (a.kv_heads * curve.head_s + a.heads * curve.query_head_s) / rates.sms;
    let alone = a.keys * a.kv_bytes_per_token / a.kv_heads;
    let serial = curve.serial * alone * rates.sms / rates.memory_bytes_per_s;
    let core = (memory * memory + compute * compute + turns * turns + serial * serial).sqrt();
    let root = curve.ramp_s.sqrt() + core.sqrt();
    curve.base_s + root * root
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H100: Rates = Rates {
        peak_flops: 989.4e12,
        memory_bytes_per_s: 3.35e12,
        sms: 132.0,
    };
    const PREFILL: PrefillCurve = PrefillCurve {
        efficiency: 0.69,
        seq_half: 229.0,
        dim_half: 27.0,
        tail: 0.43,
        tile_s: 1e-7,
        fp8_ratio: 1.6,
        memory_efficiency: 0.59,
        base_s: 9.2e-6,
    };
    const DECODE: DecodeCurve = DecodeCurve {
        memory_efficiency: 0.95,
        compute_efficiency: 0.3,
        head_s: 2.9e-6,
        query_head_s: 1e-8,
        serial: 0.02,
        ramp_s: 1e-7,
        base_s: 1.1e-5,
    };

    fn full(s: u64, heads: f64) -> Prefill {
        Prefill {
            batch: 1.0,
            queries: s as f64,
            keys: s as f64,
            pairs: causal_pairs(s, s, None),
            heads,
            key_dim: 128.0,
            value_dim: 128.0,
            kv_bytes_per_token: 4096.0,
            fp8: false,
        }
    }

    #[test]
    fn limits() {
        let one = prefill_s(&full(1, 1.0), &PREFILL, &H100);
        assert!(one > 9.2e-6 && one < 14e-6, "{one}");
        // Long sequences: twice the length, four times the time.
        let ratio = prefill_s(&full(131_072, 32.0), &PREFILL, &H100)
            / prefill_s(&full(65_536, 32.0), &PREFILL, &H100);
        assert!((ratio - 4.0).abs() < 0.05, "{ratio}");
        let long = full(131_072, 32.0);
        assert!(long.flops() / prefill_s(&long, &PREFILL, &H100) < 989.4e12);
        let empty = Decode {
            batch: 8.0,
            keys: 0.0,
            heads: 32.0,
            kv_heads: 8.0,
            kv_bytes_per_token: 4096.0,
            flops_per_pair: 512.0,
        };
        // Nothing cached: the heads take turns.
        let turns = (64.0 * DECODE.head_s + 256.0 * DECODE.query_head_s) / 132.0;
        let floor = DECODE.base_s + (DECODE.ramp_s.sqrt() + turns.sqrt()).powi(2);
        assert!((decode_s(&empty, &DECODE, &H100) - floor).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn a_window_never_adds_pairs(q in 1_u64..60, past in 0_u64..60, w in 1_u64..130) {
            let k = q + past;
            let brute: u64 = (0..q).map(|i| (past + i + 1).min(w)).sum();
            prop_assert_eq!(causal_pairs(q, k, Some(w)), brute as f64);
            prop_assert!(causal_pairs(q, k, Some(w)) <= causal_pairs(q, k, None));
        }

        #[test]
        fn decode_grows_with_batch_and_keys(b in 1.0..512.0_f64, k in 1.0..100_000.0_f64) {
            let a = Decode { batch: b, keys: k, heads: 32.0, kv_heads: 8.0,
                kv_bytes_per_token: 4096.0, flops_per_pair: 512.0 };
            let t = decode_s(&a, &DECODE, &H100);
            let more = decode_s(&Decode { batch: 2.0 * b, ..a }, &DECODE, &H100);
            let longer = decode_s(&Decode { keys: 2.0 * k, ..a }, &DECODE, &H100);
            prop_assert!(more > t && longer > t && more < 2.0 * t);
        }
    }
}
