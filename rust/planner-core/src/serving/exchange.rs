//! What GPUs of an engine say to each other in a layer.
//!
//! ```text
//! all-reduce            a·(1 + g·log₂ t) + 2(t − 1)/t · n·H·2 B / bw
//! dispatch and combine  2·r·a·(1 + g·log₂ t) + n·(E[ranks] − own)·H·(1 + 2) B / bw
//! context ranks         3·a·(1 + g·log₂ c) + n·(c − 1)·W·2 B / bw
//! keys of a prompt      n·(c − 1)·(keys and values in 16 bits) / bw      c prefill context ranks
//! ```
//!
//! a latency of an all-reduce of two GPUs, t ranks, n tokens of a GPU, g its growth, H width, c context
//! ranks, W elements of the queries and attended values of a GPU's heads, r what a dispatch takes over an all-reduce. Under attention parallelism by data, tokens travel to their experts and
//! back (dispatch in 8 bits, combine in 16): a GPU sends its own tokens, not the batch of the engine.
//! Context ranks gather each other's queries, attend to their own share of the keys, gather the sums of
//! the softmax and reduce-scatter what they attended to.

use super::costs::Context;
use super::operators::Layer;
use crate::cluster::Cluster;
use crate::collectives::expert_parallel::distinct_nodes;

/// Bytes of an element on the way to its expert and back.
pub const ROUND_TRIP_BYTES: f64 = 3.0;

/// Latency of a small collective of t ranks, s: a·(1 + g·log₂ t); none for one rank.
///
/// ```
/// use planner_core::serving::exchange::latency_s;
/// assert!((latency_s(10e-6, 0.15, 8.0) - 14.5e-6).abs() < 1e-12);
/// assert_eq!(latency_s(10e-6, 0.15, 1.0), 0.0);
/// ```
#[must_use]
pub fn latency_s(base_s: f64, growth: f64, ranks: f64) -> f64 {
    if ranks <= 1.0 {
        0.0
    } else {
        base_s * (1.0 + growth * ranks.log2())
    }
}

/// Bytes that a GPU sends in an all-reduce of `bytes`: 2(t − 1)/t of them.
///
/// ```
/// use planner_core::serving::exchange::all_reduce_bytes;
/// assert_eq!(all_reduce_bytes(1000.0, 4.0), 1500.0);
/// assert_eq!(all_reduce_bytes(1000.0, 1.0), 0.0);
/// ```
#[must_use]
pub fn all_reduce_bytes(bytes: f64, ranks: f64) -> f64 {
    2.0 * (ranks - 1.0) / ranks * bytes
}

/// Copies of a token that leave its GPU: E[distinct expert ranks] × slices of an expert, less the
/// one that stays.
///
/// ```
/// use planner_core::serving::exchange::copies;
/// // 256 experts on 8 GPUs, 8 a token: 5.29 GPUs, of which an eighth is the own.
/// assert!((copies(256, 8, 8, 1) - 4.633).abs() < 1e-3);
/// assert_eq!(copies(256, 8, 1, 8), 7.0); // experts cut over 8 GPUs: all others
/// assert_eq!(copies(256, 8, 1, 1), 0.0);
/// ```
#[must_use]
pub fn copies(experts: u64, top_k: u64, ep: u64, moe_tp: u64) -> f64 {
    let gpus = (ep * moe_tp) as f64;
    distinct_nodes(experts, top_k, ep) * moe_tp as f64 * (1.0 - 1.0 / gpus)
}

/// Bytes that a GPU sends to context ranks for a token: its queries to all others, and what it has
/// attended to for their heads, in 16 bits. The sums of the softmax, a number a head, are left out.
///
/// ```
/// use planner_core::serving::exchange::context_bytes;
/// // 16 heads of latent attention, 576 elements of a query and 512 attended, over 8 ranks.
/// assert_eq!(context_bytes(16.0 * (576.0 + 512.0), 8.0), 243_712.0);
/// assert_eq!(context_bytes(17_408.0, 1.0), 0.0);
/// ```
#[must_use]
pub fn context_bytes(elements: f64, ranks: f64) -> f64 {
    (ranks - 1.0) * elements * 2.0
}

/// Links that a group of GPUs of one engine spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bandwidth of a GPU, bytes/s.
    pub bytes_per_s: f64,
    /// Latency that leaving the domain adds, s.
    pub extra_s: f64,
}

impl Link {
    /// The links of `ranks` GPUs: those of the domain, or the NICs where the group is larger.
    #[must_use]
    pub fn of(cluster: &Cluster, ranks: u32, share: f64) -> Self {
        if u64::from(ranks) <= cluster.scale_up.domain_gpus {
            return Self {
                bytes_per_s: share * cluster.scale_up.bytes_per_s,
                extra_s: 0.0,
            };
        }
        let out = &cluster.scale_out;
        let nics = out.nics_per_node as f64 / cluster.gpus_per_node.max(1) as f64;
        Self {
            bytes_per_s: share.max(out.fabric.p2p_efficiency) * nics * out.nic_bytes_per_s,
            extra_s: out.fabric.base_s,
        }
    }
}

/// Seconds of a layer's exchanges: latency, and for each token of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchange {
    /// Latency.
    pub fixed_s: f64,
    /// Time of the bytes of a token.
    pub per_token_s: f64,
}

/// What a layer exchanges in a decode step. Prefill context ranks decode the same tokens, and reduce
/// the experts of all of them.
#[must_use]
pub fn of_step(context: &Context, found: &Layer) -> Exchange {
    layer(context, found, context.engine.attention_dp > 1)
}

/// What a layer exchanges in a prefill pass, s a token of a GPU: also the keys and values that
/// prefill context ranks gather of each other.
#[must_use]
pub fn of_pass(context: &Context, found: &Layer) -> f64 {
    let engine = context.engine;
    let apart = engine.attention_dp > 1 || engine.pcp > 1;
    let link = Link::of(context.cluster, engine.tp, context.hardware.link_rate);
    let gathered = gathered_bytes(found.key_bytes, f64::from(engine.pcp));
    layer(context, found, apart).per_token_s + gathered / link.bytes_per_s
}

/// Bytes that a GPU receives for each of its own tokens when c ranks gather each other's keys:
/// (c − 1) times those of a token.
///
/// ```
/// use planner_core::serving::exchange::gathered_bytes;
/// assert_eq!(gathered_bytes(1152.0, 4.0), 3456.0);
/// assert_eq!(gathered_bytes(1152.0, 1.0), 0.0);
/// ```
#[must_use]
pub fn gathered_bytes(token_bytes: f64, ranks: f64) -> f64 {
    (ranks - 1.0) * token_bytes
}

/// What a layer of an engine exchanges.
///
/// Attention is followed by an all-reduce over the attention's ranks. The feed-forward is followed by
/// another; or, where ranks hold tokens of their own (`apart`), tokens travel to the experts and back.
fn layer(context: &Context, layer: &Layer, apart: bool) -> Exchange {
    let engine = context.engine;
    let latency = context.hardware.all_reduce_s * context.software.all_reduce_ratio;
    let width = context.model.hidden as f64;
    let attention = all_reduce(engine.attention_tp(), width, latency, context);
    let mut found = Exchange::default();
    let mut add = |e: Exchange| {
        found.fixed_s += e.fixed_s;
        found.per_token_s += e.per_token_s;
    };
    if layer.mixer {
        add(attention);
    }
    match &layer.experts {
        Some(e) if apart => {
            let link = Link::of(context.cluster, engine.tp, context.hardware.link_rate);
            let t = f64::from(engine.tp);
            let round = 2.0
                * (latency_s(
                    latency * context.software.all_to_all_ratio,
                    context.hardware.latency_per_doubling,
                    t,
                ) + link.extra_s);
            let sent = copies(
                e.all as u64,
                e.top_k as u64,
                engine.ep.into(),
                engine.moe_tp.into(),
            );
            add(Exchange {
                fixed_s: round,
                per_token_s: sent * e.width * ROUND_TRIP_BYTES / link.bytes_per_s,
            });
        }
        Some(_) if engine.pcp > 1 => add(all_reduce(engine.tp, width, latency, context)),
        _ if layer.feed_forward => add(attention),
        _ => {}
    }
    found
}

/// What the context ranks of a decode step exchange in a layer: queries, sums, attended values.
#[must_use]
pub fn context_ranks(context: &Context, layer: &Layer) -> Exchange {
    let ranks = context.engine.dcp;
    if ranks <= 1 || layer.core.context_elements <= 0.0 {
        return Exchange::default();
    }
    let link = Link::of(context.cluster, ranks, context.hardware.link_rate);
    let c = f64::from(ranks);
    let latency = context.hardware.all_reduce_s * context.software.all_reduce_ratio;
    let one_s = latency_s(latency, context.hardware.latency_per_doubling, c) + link.extra_s;
    Exchange {
        fixed_s: 3.0 * one_s,
        per_token_s: context_bytes(layer.core.context_elements, c) / link.bytes_per_s,
    }
}

/// One all-reduce of `width` 16-bit elements a token over `ranks` GPUs.
fn all_reduce(ranks: u32, width: f64, latency: f64, context: &Context) -> Exchange {
    if ranks <= 1 {
        return Exchange::default();
    }
    let link = Link::of(context.cluster, ranks, context.hardware.link_rate);
    let t = f64::from(ranks);
    Exchange {
        fixed_s: latency_s(latency, context.hardware.latency_per_doubling, t) + link.extra_s,
        per_token_s: all_reduce_bytes(width * 2.0, t) / link.bytes_per_s,
    }
}

/// Latency of the sends between pipeline stages that a token passes, s.
#[must_use]
pub fn pipeline_s(context: &Context) -> f64 {
    let engine = context.engine;
    if engine.pp <= 1 {
        return 0.0;
    }
    let link = Link::of(context.cluster, engine.gpus(), context.hardware.link_rate);
    let latency = context.hardware.all_reduce_s * context.software.all_reduce_ratio;
    f64::from(engine.pp - 1) * (latency + link.extra_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn more_ranks_cost_more(t in 2.0..64.0_f64, bytes in 1.0..1e9_f64) {
            prop_assert!(latency_s(1e-5, 0.1, 2.0 * t) > latency_s(1e-5, 0.1, t));
            prop_assert!(all_reduce_bytes(bytes, 2.0 * t) > all_reduce_bytes(bytes, t));
            prop_assert!(all_reduce_bytes(bytes, t) < 2.0 * bytes);
        }

        #[test]
        fn a_token_goes_to_at_most_k_other_gpus(ep in 1_u64..33, k in 1_u64..9) {
            let sent = copies(ep * 8, k, ep, 1);
            prop_assert!(sent >= 0.0 && sent <= k.min(ep) as f64);
        }
    }
}
