//! Simple calculators of the KV cache. An engine's exact pages, groups and pools are in [`crate::kv`].
//!
//! Symbols: L layers, n_kv key/value heads, d width of a head, b bytes per element, t
//! tensor-parallel degree, T tokens, B tokens of a block.
//!
//! Sources: Shazeer 2019 (MQA); Ainslie et al. 2023 (GQA); DeepSeek-AI 2024 (MLA); Kwon et al. 2023
//! (PagedAttention).

/// KV bytes per token and rank: 2·L·n·d·b, with n = max(1, n_kv/t) heads on a rank.
///
/// Heads replicate when t > n_kv: a rank never holds less than one head.
///
/// ```
/// use planner_core::memory::kv::per_token_bytes;
/// assert_eq!(per_token_bytes(80, 8, 128, 2.0, 1), 327_680.0); // Llama-3-70B, bf16
/// assert_eq!(per_token_bytes(80, 8, 128, 2.0, 8), 40_960.0);
/// assert_eq!(per_token_bytes(80, 8, 128, 2.0, 16), 40_960.0); // replicated
/// ```
#[must_use]
pub fn per_token_bytes(layers: u64, n_kv: u64, d: u64, element_bytes: f64, t: u64) -> f64 {
    let heads = (n_kv / t.max(1)).max(n_kv.min(1));
    2.0 * layers as f64 * heads as f64 * d as f64 * element_bytes
}

/// KV bytes per token of multi-head latent attention: L·(r + d_r)·b, whatever t.
///
/// r rank of the compressed vector, d_r width of the rotary part. One vector serves keys and values
/// of all heads, so every tensor-parallel rank holds it whole; decode-context parallelism divides it.
///
/// ```
/// use planner_core::memory::kv::mla_per_token_bytes;
/// assert_eq!(mla_per_token_bytes(61, 512, 64, 2.0), 70_272.0); // DeepSeek-V3, bf16
/// ```
#[must_use]
pub const fn mla_per_token_bytes(layers: u64, rank: u64, rope_dim: u64, element_bytes: f64) -> f64 {
    layers as f64 * (rank + rope_dim) as f64 * element_bytes
}

/// Tokens whose keys a layer keeps: min(T, W) for a window of W tokens (0: all of them).
///
/// ```
/// use planner_core::memory::kv::kept_tokens;
/// assert_eq!(kept_tokens(131_072, 1024), 1024);
/// assert_eq!(kept_tokens(131_072, 0), 131_072);
/// ```
#[must_use]
pub const fn kept_tokens(tokens: u64, window: u64) -> u64 {
    if window == 0 || tokens < window {
        tokens
    } else {
        window
    }
}

/// Blocks of a paged cache: ⌈T/B⌉.
///
/// ```
/// use planner_core::memory::kv::blocks;
/// assert_eq!(blocks(1000, 16), 63);
/// ```
#[must_use]
pub const fn blocks(tokens: u64, block: u64) -> u64 {
    tokens.div_ceil(block)
}

/// Slots of the last block that stay empty: ⌈T/B⌉·B − T, at worst B − 1 when T mod B = 1.
///
/// ```
/// use planner_core::memory::kv::wasted_slots;
/// assert_eq!(wasted_slots(1000, 16), 8);
/// assert_eq!(wasted_slots(1001, 16), 7);
/// assert_eq!(wasted_slots(1009, 16), 15);
/// ```
#[must_use]
pub const fn wasted_slots(tokens: u64, block: u64) -> u64 {
    blocks(tokens, block) * block - tokens
}

/// Chunks of a prefill: ⌈prompt/chunk⌉.
///
/// ```
/// use planner_core::memory::kv::prefill_chunks;
/// assert_eq!(prefill_chunks(10_000, 2048), 5);
/// ```
#[must_use]
pub const fn prefill_chunks(prompt: u64, chunk: u64) -> u64 {
    prompt.div_ceil(chunk)
}

/// Prefill tokens that N requests with a common prefix of P tokens save: (N−1)·⌊P/B⌋·B.
///
/// With B = 1 it is the quoted (N−1)·P; engines reuse whole blocks only.
///
/// ```
/// use planner_core::memory::kv::prefix_savings_tokens;
/// assert_eq!(prefix_savings_tokens(100, 1000, 1), 99_000);
/// assert_eq!(prefix_savings_tokens(100, 1000, 16), 99 * 992);
/// ```
#[must_use]
pub const fn prefix_savings_tokens(requests: u64, prefix: u64, block: u64) -> u64 {
    requests.saturating_sub(1) * (prefix / block * block)
}

/// Cached tokens that a prompt can use at most: ⌊(T−1)/B⌋·B.
///
/// At least one token is computed, so a prompt that is cached whole recomputes its last block.
///
/// ```
/// use planner_core::memory::kv::usable_hit_tokens;
/// assert_eq!(usable_hit_tokens(8015, 3584), 7168);
/// assert_eq!(usable_hit_tokens(32, 16), 16);
/// assert_eq!(usable_hit_tokens(2015, 3584), 0);
/// ```
#[must_use]
pub const fn usable_hit_tokens(prompt: u64, block: u64) -> u64 {
    prompt.saturating_sub(1) / block * block
}

/// Bytes from prefill to decode workers per request: KV per token × tokens not cached there.
///
/// ```
/// use planner_core::memory::kv::transfer_bytes;
/// assert_eq!(transfer_bytes(327_680.0, 4096, 1024), 1_006_632_960.0);
/// ```
#[must_use]
pub const fn transfer_bytes(per_token_bytes: f64, prompt: u64, cached: u64) -> f64 {
    per_token_bytes * prompt.saturating_sub(cached) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_hold_the_tokens_and_waste_less_than_one(t in 0_u64..1_000_000, b in 1_u64..5000) {
            prop_assert_eq!(blocks(t, b) * b, t + wasted_slots(t, b));
            prop_assert!(wasted_slots(t, b) < b);
            prop_assert!(usable_hit_tokens(t, b) <= t.saturating_sub(1));
        }

        #[test]
        fn tensor_parallelism_stops_helping_at_the_number_of_heads(
            heads_log in 0_u32..7, t_log in 0_u32..9,
        ) {
            let (n, t) = (1_u64 << heads_log, 1_u64 << t_log);
            let whole = per_token_bytes(80, n, 128, 2.0, 1);
            let rank = per_token_bytes(80, n, 128, 2.0, t);
            prop_assert_eq!(rank, whole / n.min(t) as f64);
        }
    }

    #[test]
    fn no_head_no_cache_and_fp8_is_half() {
        assert_eq!(per_token_bytes(80, 0, 128, 2.0, 8), 0.0);
        let half = per_token_bytes(80, 8, 128, 1.0, 1);
        assert_eq!(2.0 * half, per_token_bytes(80, 8, 128, 2.0, 1));
        assert_eq!(wasted_slots(16, 16), 0);
        assert_eq!(wasted_slots(17, 16), 15);
        assert_eq!(prefix_savings_tokens(1, 1000, 16), 0);
        assert_eq!(prefix_savings_tokens(0, 1000, 16), 0);
        assert_eq!(transfer_bytes(1.0, 10, 20), 0.0);
    }
}
