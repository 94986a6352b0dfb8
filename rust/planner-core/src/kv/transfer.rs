//! Moving a request's cache from a prefill to a decode instance.
//!
//! Bytes: what the decode side has not cached, times bytes per token of the whole model (a latent
//! once), plus recurrent states. Heads are moved once each even where several decode ranks hold
//! them: `min(decode tp, KV heads)` unique slices. Time: the busiest link. Moved layer by layer
//! behind the prefill, only what cannot hide is exposed:
//! `max(t − t_prefill·(1 − 1/G), t/G)` for G groups of layers (this tool's own model).

use serde::{Deserialize, Serialize};

use super::format::KvFormat;
use super::layer::{Class, Cut, caches};
use crate::error::{Error, Result};
use crate::model::{Mixer, Model};

/// A question about one kind of request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// The model.
    pub model: Model,
    /// Format of the cache.
    pub kv_format: KvFormat,
    /// Prompt, tokens.
    pub prompt_tokens: u64,
    /// Of it cached on the decode side.
    pub cached_tokens: u64,
    /// Tensor-parallel ranks of the two sides.
    pub prefill_tp: u64,
    /// Tensor-parallel ranks of the decode side.
    pub decode_tp: u64,
    /// NICs (or links) that the ranks of each side use.
    pub prefill_links: u64,
    /// Links of the decode side.
    pub decode_links: u64,
    /// One link, bytes/s.
    pub link_bytes_per_s: f64,
    /// Time until the first byte moves, s.
    pub latency_s: f64,
    /// Prefill time of the request, s.
    pub prefill_s: f64,
    /// Groups of layers that are moved as they are done (1: all at the end).
    pub layer_groups: u64,
    /// Requests pulled at once over the same links.
    pub pulls: u64,
    /// Each decode rank pulls its own copy, also of heads that others pull.
    pub duplicate: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transfer {
    /// Bytes of the request's cache that the decode side lacks.
    pub bytes: f64,
    /// Of them states, whatever the prompt's length.
    pub state_bytes: f64,
    /// Bytes that cross the links: more where decode ranks pull copies.
    pub wire_bytes: f64,
    /// Different parts that decode ranks need.
    pub unique_slices: u64,
    /// Bytes over the busiest link.
    pub busiest_link_bytes: f64,
    /// The whole cache at once, s.
    pub whole_s: f64,
    /// What the transfer adds to the time to first token if layers are moved as they are done, s.
    pub exposed_s: f64,
    /// Largest rate of requests that the links carry, 1/s.
    pub max_requests_per_s: f64,
}

/// Unique slices over the decode ranks: heads are replicated beyond their number, a latent always.
///
/// ```
/// use planner_core::kv::transfer::unique_slices;
/// assert_eq!(unique_slices(2, 4), 2); // two KV heads on four ranks (sglang#31968)
/// assert_eq!(unique_slices(8, 4), 4);
/// ```
#[must_use]
pub const fn unique_slices(kv_heads: u64, decode_tp: u64) -> u64 {
    if kv_heads < decode_tp {
        kv_heads
    } else {
        decode_tp
    }
}

/// What a transfer exposes, `max(t − p·(1 − 1/G), t/G)`.
///
/// ```
/// use planner_core::kv::transfer::exposed_s;
/// assert_eq!(exposed_s(1.0, 8.0, 10.0), 0.1); // hidden but for the last group
/// assert_eq!(exposed_s(1.0, 8.0, 1.0), 1.0);  // all at the end
/// ```
#[must_use]
pub fn exposed_s(transfer_s: f64, prefill_s: f64, groups: f64) -> f64 {
    (transfer_s - prefill_s * (1.0 - 1.0 / groups)).max(transfer_s / groups)
}

/// Answers a question.
///
/// # Errors
/// A field that makes no sense.
pub fn transfer(query: &Query) -> Result<Transfer> {
    check(query)?;
    let missing = query.prompt_tokens - query.cached_tokens;
    let (bytes, state_bytes) = cache_bytes(&query.model, query.kv_format, missing);
    let heads = query
        .model
        .kinds
        .iter()
        .filter_map(|k| kv_heads(k.mixer.as_ref()))
        .max()
        .unwrap_or(1);
    let unique = unique_slices(heads, query.decode_tp);
    let copies = if query.duplicate {
        query.decode_tp as f64 / unique as f64
    } else {
        1.0
    };
    let wire_bytes = bytes * copies;
    let sources = query.prefill_links.min(query.prefill_tp);
    let reach = if query.duplicate {
        query.decode_tp
    } else {
        unique
    };
    let sinks = query.decode_links.min(reach);
    let busiest = wire_bytes / sources.min(sinks).max(1) as f64;
    let pulls = query.pulls as f64;
    let whole_s = query.latency_s + busiest * pulls / query.link_bytes_per_s;
    Ok(Transfer {
        bytes,
        state_bytes,
        wire_bytes,
        unique_slices: unique,
        busiest_link_bytes: busiest,
        whole_s,
        exposed_s: exposed_s(whole_s, query.prefill_s, query.layer_groups as f64),
        max_requests_per_s: query.link_bytes_per_s / busiest.max(1.0),
    })
}

fn check(query: &Query) -> Result<()> {
    for (field, value) in [
        ("prompt", query.prompt_tokens),
        ("prefill_tp", query.prefill_tp),
        ("decode_tp", query.decode_tp),
        ("prefill_links", query.prefill_links),
        ("decode_links", query.decode_links),
        ("layer_groups", query.layer_groups),
        ("pulls", query.pulls),
    ] {
        if value == 0 || value > 1 << 40 {
            return Err(Error::field(
                field,
                value,
                "must be at least 1 and at most 2^40",
            ));
        }
    }
    if query.cached_tokens > query.prompt_tokens {
        return Err(Error::field(
            "cached",
            query.cached_tokens,
            "cannot exceed the prompt",
        ));
    }
    for (field, value, least) in [
        ("link", query.link_bytes_per_s, f64::MIN_POSITIVE),
        ("latency", query.latency_s, 0.0),
        ("prefill_time", query.prefill_s, 0.0),
    ] {
        if !(value >= least && value.is_finite()) {
            return Err(Error::field(
                field,
                value,
                "must be a finite number, not negative",
            ));
        }
    }
    Ok(())
}

fn kv_heads(mixer: Option<&Mixer>) -> Option<u64> {
    match mixer {
        Some(Mixer::Attention(a)) => Some(a.kv_heads),
        Some(Mixer::Mla(_)) => Some(1),
        Some(Mixer::Linear(l)) => Some(l.v_heads),
        Some(Mixer::Mamba2(m)) => Some(m.heads),
        None => None,
    }
}

/// Bytes of a cache of `tokens` over the whole model, a latent once, and the states among them.
#[must_use]
pub fn cache_bytes(model: &Model, format: KvFormat, tokens: u64) -> (f64, f64) {
    let cut = Cut {
        tp: 1,
        format,
        activation_bytes: 2,
        draft_tokens: 0,
        windows: true,
    };
    let (mut held, mut states) = (0.0, 0.0);
    for layer in &model.layers {
        for cache in caches(&model.kinds[*layer], &cut) {
            match cache.class {
                Class::State => states += cache.entry_bytes as f64,
                Class::Full | Class::Latent => held += cache.bytes_per_token() * tokens as f64,
                Class::Window(w) | Class::Chunk(w) => {
                    held += cache.bytes_per_token() * tokens.min(w) as f64;
                }
            }
        }
    }
    (held + states, states)
}

#[cfg(test)]
mod tests {
    use super::{Query, transfer};
    use crate::kv::format::KvFormat;
    use crate::kv::size::tests::dense;

    fn query() -> Query {
        Query {
            model: dense(32, 8, 128, r#"{"kind": "full"}"#),
            kv_format: KvFormat::Bf16,
            prompt_tokens: 10_000,
            cached_tokens: 0,
            prefill_tp: 8,
            decode_tp: 8,
            prefill_links: 8,
            decode_links: 8,
            link_bytes_per_s: 50e9,
            latency_s: 0.0,
            prefill_s: 1.0,
            layer_groups: 32,
            pulls: 1,
            duplicate: false,
        }
    }

    #[test]
    fn eight_links_in_parallel() {
        let t = transfer(&query()).unwrap();
        assert_eq!(t.bytes, 10_000.0 * 131_072.0);
        assert!((t.whole_s - t.bytes / 8.0 / 50e9).abs() < 1e-12);
        assert!((t.exposed_s - t.whole_s / 32.0).abs() < 1e-12);
    }

    #[test]
    fn slices_are_moved_once() {
        let mut q = query();
        q.model = dense(32, 2, 128, r#"{"kind": "full"}"#);
        (q.prefill_tp, q.decode_tp) = (1, 4);
        let once = transfer(&q).unwrap();
        assert_eq!((once.unique_slices, once.wire_bytes), (2, once.bytes));
        q.duplicate = true;
        assert_eq!(transfer(&q).unwrap().wire_bytes, 2.0 * once.bytes);
    }

    #[test]
    fn pulls_share_the_links_and_a_cached_prefix_stays() {
        let mut q = query();
        let one = transfer(&q).unwrap();
        q.pulls = 4;
        assert!((transfer(&q).unwrap().whole_s / one.whole_s - 4.0).abs() < 1e-9);
        q.cached_tokens = 10_000;
        assert_eq!(transfer(&q).unwrap().bytes, 0.0);
        q.cached_tokens = 10_001;
        assert!(transfer(&q).is_err());
    }
}
