//! Bytes that a sequence keeps between steps: keys and values, latents, recurrent states.
//!
//! These are the logical bytes of one copy of the model: no paging, no replication over ranks, no
//! scales. What an engine allocates is in the `kv` room.

use super::{Attention, LayerKind, Linear, Mamba2, Mixer, Model, Span};

/// What one layer keeps for one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerKv {
    /// Elements of the cache format kept for every token of the sequence.
    pub elements_per_token: f64,
    /// Elements of the cache format kept for each of the last `window` tokens.
    pub window_elements_per_token: f64,
    /// Tokens of the window or chunk (0: none).
    pub window: u64,
    /// Elements of an indexer's keys for every token (its format is the engine's choice).
    pub indexer_elements_per_token: f64,
    /// Bytes of a recurrent state, whatever the length.
    pub state_bytes: f64,
    /// Elements of a convolution's history, whatever the length.
    pub conv_elements: f64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "head counts and widths are far below 2^53"
)]
const fn real(n: u64) -> f64 {
    n as f64
}

/// What a layer kind keeps.
///
/// * GQA, MHA, MQA: `g·(d_k + d_v)` elements a token; values that are the keys count once; a layer
///   that borrows another's keys keeps nothing.
/// * MLA: `kv_lora_rank + qk_rope_head_dim` elements, one vector for all heads.
/// * Linear attention: `v_heads·d_k·d_v` state elements and `kernel − 1` steps of its channels.
/// * Mamba-2: `heads·head_dim·N` state elements and `kernel − 1` steps of its channels.
/// * Pooled keys: one entry for every `ratio` tokens, and a window of entries.
#[must_use]
pub fn layer(kind: &LayerKind) -> LayerKv {
    match &kind.mixer {
        None => LayerKv::default(),
        Some(Mixer::Linear(l)) => linear(l),
        Some(Mixer::Mamba2(m)) => mamba2(m),
        Some(Mixer::Mla(m)) => LayerKv {
            elements_per_token: real(m.kv_lora_rank) + real(m.qk_rope_head_dim),
            indexer_elements_per_token: m.indexer.as_ref().map_or(0.0, |i| real(i.head_dim)),
            ..LayerKv::default()
        },
        Some(Mixer::Attention(a)) => attention(a),
    }
}

fn attention(a: &Attention) -> LayerKv {
    let value = if a.shares_k_and_v {
        0.0
    } else {
        real(a.v_head_dim)
    };
    let owned = if a.shares_kv { 0.0 } else { real(a.kv_heads) };
    let each = owned * (real(a.head_dim) + value);
    let window = match a.span {
        Span::Window(tokens) | Span::Chunk(tokens) => tokens,
        Span::Full | Span::TopK(_) => 0,
    };
    let (all, last) = if window > 0 { (0.0, each) } else { (each, 0.0) };
    let index = a.indexer.as_ref().map_or(0.0, |i| real(i.head_dim));
    let pooled = a.compress.as_ref().map(|c| real(c.ratio));
    LayerKv {
        elements_per_token: pooled.map_or(all, |ratio| each / ratio),
        window_elements_per_token: last,
        window,
        indexer_elements_per_token: pooled.map_or(index, |ratio| index / ratio),
        ..LayerKv::default()
    }
}

fn linear(l: &Linear) -> LayerKv {
    let values = real(l.v_heads) * real(l.v_head_dim);
    let channels = 2.0 * real(l.k_heads) * real(l.k_head_dim) + values;
    LayerKv {
        state_bytes: values * real(l.k_head_dim) * l.state_bytes,
        conv_elements: channels * real(l.conv_kernel.saturating_sub(1)),
        ..LayerKv::default()
    }
}

fn mamba2(m: &Mamba2) -> LayerKv {
    let inner = real(m.heads) * real(m.head_dim);
    let channels = inner + 2.0 * real(m.groups) * real(m.state);
    LayerKv {
        state_bytes: inner * real(m.state) * m.state_bytes,
        conv_elements: channels * real(m.conv_kernel.saturating_sub(1)),
        ..LayerKv::default()
    }
}

/// KV bytes that each further token adds to a sequence if every layer keeps every token.
///
/// b·Σ (elements + window elements): the number that model cards and `2·L·g·d·b` state. A pooled
/// layer counts its pooled entries only, since its window is a part of the mechanism. Indexer keys
/// and recurrent states are apart.
#[must_use]
pub fn bytes_per_token(model: &Model, element_bytes: f64) -> f64 {
    sum(model, |kv| {
        let pooled = kv.elements_per_token > 0.0 && kv.window > 0;
        let last = if pooled {
            0.0
        } else {
            kv.window_elements_per_token
        };
        (kv.elements_per_token + last) * element_bytes
    })
}

/// KV bytes that each further token adds once all windows are full.
#[must_use]
pub fn growth_bytes_per_token(model: &Model, element_bytes: f64) -> f64 {
    sum(model, |kv| kv.elements_per_token * element_bytes)
}

/// Bytes of indexer keys that each further token adds.
#[must_use]
pub fn indexer_bytes_per_token(model: &Model, element_bytes: f64) -> f64 {
    sum(model, |kv| kv.indexer_elements_per_token * element_bytes)
}

/// Bytes of recurrent states and convolution histories of a sequence, whatever its length.
#[must_use]
pub fn state_bytes_per_sequence(model: &Model, element_bytes: f64) -> f64 {
    sum(model, |kv| {
        kv.state_bytes + kv.conv_elements * element_bytes
    })
}

/// Bytes that a sequence of `tokens` keeps: Σ b·(elements·S + window elements·min(S, W)) + states,
/// indexer keys apart.
#[must_use]
pub fn sequence_bytes(model: &Model, tokens: u64, element_bytes: f64) -> f64 {
    sum(model, |kv| {
        let last = kv.window_elements_per_token * real(tokens.min(kv.window));
        (kv.elements_per_token * real(tokens) + last + kv.conv_elements) * element_bytes
            + kv.state_bytes
    })
}

/// Sum over the decoder layers, each kind computed once.
fn sum(model: &Model, term: impl Fn(&LayerKv) -> f64) -> f64 {
    let mut counts = vec![0_u64; model.kinds.len()];
    for &kind in &model.layers {
        counts[kind] += 1;
    }
    model
        .kinds
        .iter()
        .zip(counts)
        .map(|(kind, n)| real(n) * term(&layer(kind)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{attention, gated_delta_net, model, only};

    #[test]
    fn llama_8b_keeps_128_kib_a_token() {
        let m = model(vec![only(attention(32, 8, 128))], 32);
        assert_eq!(bytes_per_token(&m, 2.0), 131_072.0);
        assert_eq!(bytes_per_token(&m, 1.0), 65_536.0);
        assert_eq!(growth_bytes_per_token(&m, 2.0), 131_072.0);
        assert_eq!(state_bytes_per_sequence(&m, 2.0), 0.0);
    }

    #[test]
    fn windows_stop_growing() {
        // gpt-oss-20b: 12 full layers and 12 of window 128, 8 key/value heads of 64.
        let mut local = attention(64, 8, 64);
        local.span = Span::Window(128);
        let mut m = model(vec![only(attention(64, 8, 64)), only(local)], 24);
        m.layers = (0..24).map(|i| i % 2).collect();
        let s = 32_768;
        let kept = 24_576.0 * 32_768.0 + 12.0 * 2_048.0 * 128.0;
        assert_eq!(bytes_per_token(&m, 2.0), 49_152.0);
        assert_eq!(sequence_bytes(&m, s, 2.0), kept);
        // Below the window both kinds grow alike.
        assert_eq!(sequence_bytes(&m, 100, 2.0), 49_152.0 * 100.0);
    }

    #[test]
    fn borrowed_keys_cost_nothing_and_equal_values_half() {
        let mut borrowed = attention(8, 4, 64);
        borrowed.shares_kv = true;
        let mut equal = attention(8, 4, 64);
        equal.shares_k_and_v = true;
        assert_eq!(bytes_per_token(&model(vec![only(borrowed)], 3), 2.0), 0.0);
        assert_eq!(
            bytes_per_token(&model(vec![only(equal)], 1), 2.0),
            2.0 * 4.0 * 64.0
        );
    }

    #[test]
    fn recurrent_states_do_not_grow() {
        // Qwen3.5-27B: 48 value heads, 16 key heads of 128, kernel 4, fp32 state.
        let m = model(vec![gated_delta_net(16, 48, 128, 4)], 1);
        let channels = 2.0 * 16.0 * 128.0 + 48.0 * 128.0;
        let state = 48.0 * 128.0 * 128.0 * 4.0 + channels * 3.0 * 2.0;
        assert_eq!(state_bytes_per_sequence(&m, 2.0), state);
        assert_eq!(
            sequence_bytes(&m, 1, 2.0),
            sequence_bytes(&m, 1_000_000, 2.0)
        );
    }

    #[test]
    fn pooled_layers_keep_a_window_and_pooled_entries() {
        let mut pooled = attention(64, 1, 512);
        pooled.shares_k_and_v = true;
        pooled.span = Span::Window(128);
        pooled.compress = Some(crate::model::Compress {
            ratio: 4,
            top_k: 512,
            params: 0,
        });
        let m = model(vec![only(pooled)], 1);
        assert_eq!(growth_bytes_per_token(&m, 2.0), 256.0);
        assert_eq!(
            sequence_bytes(&m, 4096, 2.0),
            256.0 * 4096.0 + 1024.0 * 128.0
        );
    }
}
