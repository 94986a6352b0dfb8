//! What one layer of a model keeps on one GPU.

use serde::{Deserialize, Serialize};

use super::format::KvFormat;
use crate::model::{Attention, LayerKind, Linear, Mamba2, Mixer, Mla, Span};

/// Which tokens a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Every token.
    Full,
    /// Every token, as one latent vector for all heads.
    Latent,
    /// The last `W` tokens.
    Window(u64),
    /// Tokens of the current chunk of `C`.
    Chunk(u64),
    /// A state of fixed size.
    State,
}

/// A cache of one layer: `entry_bytes` for every `ratio` tokens, or a state of `entry_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cache {
    /// Tokens that it keeps.
    pub class: Class,
    /// Bytes of an entry on one GPU.
    pub entry_bytes: u64,
    /// Tokens for one entry (1 unless keys are pooled).
    pub ratio: u64,
}

impl Cache {
    const fn tokens(class: Class, entry_bytes: u64) -> Self {
        Self {
            class,
            entry_bytes,
            ratio: 1,
        }
    }

    /// Bytes of a block of `block` tokens; of the state, if it is one.
    #[must_use]
    pub const fn page_bytes(&self, block: u64) -> u64 {
        match self.class {
            Class::State => self.entry_bytes,
            _ => self.entry_bytes * block.div_ceil(self.ratio),
        }
    }

    /// Bytes that a token adds.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        match self.class {
            Class::State => 0.0,
            _ => self.entry_bytes as f64 / self.ratio as f64,
        }
    }
}

/// How layers are cut and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Format of the cache.
    pub format: KvFormat,
    /// Bytes of an activation element, in which convolution histories are kept.
    pub activation_bytes: u64,
    /// Draft tokens of speculative decoding: states keep a step for each.
    pub draft_tokens: u64,
    /// Windows are honoured; otherwise each windowed layer keeps every token.
    pub windows: bool,
}

/// KV heads that one of `tp` ranks holds: ⌊h / t⌋, at least one, since beyond h ranks heads are
/// replicated.
///
/// ```
/// use planner_core::kv::layer::heads_per_rank;
/// assert_eq!(heads_per_rank(8, 4), 2);
/// assert_eq!(heads_per_rank(8, 32), 1);
/// ```
#[must_use]
pub const fn heads_per_rank(kv_heads: u64, tp: u64) -> u64 {
    let whole = kv_heads / tp;
    if whole == 0 && kv_heads > 0 { 1 } else { whole }
}

/// Caches of a layer kind on one GPU: none, one, or several where an indexer or a window has its
/// own.
#[must_use]
pub fn caches(kind: &LayerKind, cut: &Cut) -> Vec<Cache> {
    match &kind.mixer {
        None => Vec::new(),
        Some(Mixer::Attention(a)) => attention(a, cut),
        Some(Mixer::Mla(m)) => latent(m, cut),
        Some(Mixer::Linear(l)) => vec![linear(l, cut)],
        Some(Mixer::Mamba2(m)) => vec![mamba2(m, cut)],
    }
}

/// Keys and values: `max(1, ⌊h/t⌋)·(d_k + d_v)` elements; d_k alone where values are the keys.
fn attention(a: &Attention, cut: &Cut) -> Vec<Cache> {
    if a.shares_kv {
        return Vec::new();
    }
    let heads = heads_per_rank(a.kv_heads, cut.tp);
    let class = match a.span {
        Span::Window(w) if cut.windows => Class::Window(w),
        Span::Chunk(c) if cut.windows => Class::Chunk(c),
        _ => Class::Full,
    };
    let bytes = if a.shares_k_and_v {
        heads * cut.format.pooled_bytes(a.head_dim)
    } else {
        cut.format.row_bytes(heads, a.head_dim) + cut.format.row_bytes(heads, a.v_head_dim)
    };
    let mut caches = vec![Cache::tokens(class, bytes)];
    let ratio = a.compress.as_ref().map_or(1, |c| c.ratio.max(1));
    if a.compress.is_some() {
        caches.push(Cache {
            class: Class::Full,
            entry_bytes: bytes,
            ratio,
        });
    }
    if let Some(i) = &a.indexer {
        let entry_bytes = KvFormat::indexer_bytes(i.head_dim);
        caches.push(Cache {
            class: Class::Full,
            entry_bytes,
            ratio,
        });
    }
    caches
}

/// One latent vector, the same on every tensor-parallel rank, and perhaps an indexer key.
fn latent(m: &Mla, cut: &Cut) -> Vec<Cache> {
    let bytes = cut.format.latent_bytes(m.kv_lora_rank, m.qk_rope_head_dim);
    let mut caches = vec![Cache::tokens(Class::Latent, bytes)];
    if let Some(i) = &m.indexer {
        caches.push(Cache::tokens(
            Class::Latent,
            KvFormat::indexer_bytes(i.head_dim),
        ));
    }
    caches
}

/// `v·d_k·d_v` state elements and `kernel − 1 + drafts` steps of `2·k·d_k + v·d_v` channels, both
/// cut over the ranks.
fn linear(l: &Linear, cut: &Cut) -> Cache {
    let state = real_bytes(
        l.v_heads * l.k_head_dim * l.v_head_dim / cut.tp,
        l.state_bytes,
    );
    let channels = (2 * l.k_heads * l.k_head_dim + l.v_heads * l.v_head_dim) / cut.tp;
    Cache::tokens(
        Class::State,
        state + history_bytes(channels, l.conv_kernel, cut),
    )
}

/// `heads·head_dim·N` state elements and `kernel − 1 + drafts` steps of `d_inner + 2·G·N` channels.
fn mamba2(m: &Mamba2, cut: &Cut) -> Cache {
    let state = real_bytes(m.heads * m.head_dim * m.state / cut.tp, m.state_bytes);
    // Groups are repeated where there are fewer of them than ranks.
    let groups = m.groups.next_multiple_of(cut.tp);
    let channels = (m.heads * m.head_dim + 2 * groups * m.state) / cut.tp;
    Cache::tokens(
        Class::State,
        state + history_bytes(channels, m.conv_kernel, cut),
    )
}

fn history_bytes(channels: u64, kernel: u64, cut: &Cut) -> u64 {
    match kernel {
        0 => 0,
        k => channels * (k - 1 + cut.draft_tokens) * cut.activation_bytes,
    }
}

fn real_bytes(elements: u64, bytes: f64) -> u64 {
    (elements as f64 * bytes) as u64
}

#[cfg(test)]
mod tests {
    use super::{Class, Cut, caches};
    use crate::kv::format::KvFormat;
    use crate::model::{LayerKind, Linear, Mixer};

    fn gdn(k_heads: u64, v_heads: u64, state_bytes: f64) -> LayerKind {
        LayerKind {
            name: "gdn".into(),
            mixer: Some(Mixer::Linear(Linear {
                k_heads,
                v_heads,
                k_head_dim: 128,
                v_head_dim: 128,
                conv_kernel: 4,
                in_params: 0,
                out_params: 0,
                other_params: 0,
                state_bytes,
            })),
            feed_forward: None,
            norms: 0,
            norm_params: 0,
            extra_params: 0,
        }
    }

    #[test]
    fn states_as_logged() {
        let page = |kind: &LayerKind, tp, draft_tokens| {
            let cut = Cut {
                tp,
                format: KvFormat::Bf16,
                activation_bytes: 2,
                draft_tokens,
                windows: true,
            };
            let all = caches(kind, &cut);
            assert_eq!(all[0].class, Class::State);
            all[0].page_bytes(16)
        };
        let (next, dense) = (gdn(16, 32, 2.0), gdn(16, 48, 4.0));
        assert_eq!(page(&next, 1, 0), 1_097_728);
        assert_eq!(page(&dense, 1, 0), 3_207_168);
        assert_eq!(page(&dense, 1, 2), 3_248_128);
        assert_eq!(page(&dense, 2, 0), 1_603_584);
        assert_eq!(page(&dense, 2, 5), 1_654_784);
        assert_eq!(page(&gdn(16, 32, 4.0), 1, 0), 2_146_304);
    }
}
