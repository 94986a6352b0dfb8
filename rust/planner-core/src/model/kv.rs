//! Bytes that a sequence keeps between steps: keys and values, latents, recurrent states.
//!
//! These are the logical bytes of one copy of the model: no paging, no replication over ranks, no
//! scales. What an engine allocates is in the `kv` room.

use super::{LayerKind, Linear, Mamba2, Mixer, Model, Span};

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
            elements_per_token: real(m.kv_lora_rank + m.qk_rope_head_dim),
            indexer_elements_per_token: m.indexer.as_ref().map_or(0.0, |i| real(i.head_dim)),
            ..LayerKv::default()
        },
        Some(Mixer::Attention(a)) => {
            let vectors = if a.shares_k_and_v {
                a.head_dim
            } else {
                a.head_dim + a.v_head_dim
            };
            let each = if a.shares_kv {
                0.0
            } else {
                real(a.kv_heads * vectors)
            };
            let window = match a.span {
                Span::Window(tokens) | Span::Chunk(tokens) => tokens,
                Span::Full | Span::TopK(_) => 0,
            };
            let pooled = a.compress.as_ref().map(|c| real(c.ratio));
            let (all, last) = if window > 0 { (0.0, each) } else { (each, 0.0) };
            let index = a.indexer.as_ref().map_or(0.0, |i| real(i.head_dim));
            LayerKv {
                elements_per_token: pooled.map_or(all, |ratio| each / ratio),
                window_elements_per_token: last,
                window,
                indexer_elements_per_token: pooled.map_or(index, |ratio| index / ratio),
                ..LayerKv::default()
            }
        }
    }
}

fn linear(l: &Linear) -> LayerKv {
    let channels = 2 * l.k_heads * l.k_head_dim + l.v_heads * l.v_head_dim;
    LayerKv {
        state_bytes: real(l.v_heads * l.k_head_dim * l.v_head_dim) * l.state_bytes,
        conv_elements: real(channels * l.conv_kernel.saturating_sub(1)),
        ..LayerKv::default()
    }
}

fn mamba2(m: &Mamba2) -> LayerKv {
    let channels = m.heads * m.head_dim + 2 * m.groups * m.state;
    LayerKv {
        state_bytes: real(m.heads * m.head_dim * m.state) * m.state_bytes,
        conv_elements: real(channels * m.conv_kernel.saturating_sub(1)),
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
