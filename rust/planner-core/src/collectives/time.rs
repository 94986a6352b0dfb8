//! Time of a collective over the links that its group spans.
//!
//! ```text
//! t = base + L + (√r + √w)²        best of ring, tree and in-switch reduction
//! ```
//!
//! * L: hops × time per hop of the algorithm.
//! * w: bytes over the link / (peak · efficiency).
//! * r: time to fill the chunk pipeline. A message is cut into chunks; more chunks fill the
//!   pipeline sooner but pay more overheads, and the best number of chunks gives (√r + √w)².
//!
//! Inside one domain of n ranks, message S, peak B, efficiency e and own-share ratio c:
//!
//! | operation | w | L |
//! |---|---|---|
//! | all-reduce, ring | 2(n − 1 + c)/n · S/(e·B) | 2(n−1) hops |
//! | all-reduce, in the switch | S/(e·B) | in-switch time |
//! | all-gather, reduce-scatter | (n − 1 + c)/n · S/(e·B) | n−1 hops |
//! | all-to-all | (n − 1 + c)/n · S/(e·B) | 1 hop |
//! | broadcast, reduce, send | S/(e·B) | n−1 hops (pipelined) |
//!
//! Across N domains with l ranks each, the data crosses hierarchically: the links inside carry the
//! reduce-scatter and all-gather above over l ranks, a GPU's NIC share carries 1/l of what leaves
//! the domain, and both run at once on different chunks, `w = (w_in⁸ + w_out⁸)^⅛`. What leaves:
//! all-reduce 2(n−1)/n·S by ring, S (N = 2) or 2S by double binary tree; all-gather and
//! reduce-scatter (n−1)/n·S; all-to-all (1 − 1/N)·S per rank. Oversubscribed tiers slow what
//! crosses them: a ring crosses once per switch below, an all-to-all with all its remote share.
//!
//! Structure after NCCL's tuner (`src/graph/tuning.cc`); numbers fitted to measured tables, see
//! `presets/clusters.toml`.

use serde::{Deserialize, Serialize};

use super::group::{Group, nic_share_of};
use super::volume::{Operation, remote_share};
use crate::cluster::{Cluster, Fabric};
use crate::error::{Error, Result};

/// Messages that one peer-to-peer launch carries at once.
const PEERS_AT_ONCE: f64 = 8.0;

/// Time of one collective, s; the equation heads this module.
///
/// `bytes` is the size as nccl-tests counts it: the full tensor of an all-reduce, the gathered
/// tensor of an all-gather, the tensor before a reduce-scatter, what a rank holds before an
/// all-to-all, the message of a send or broadcast. One rank takes no time.
#[must_use]
pub fn collective_s(op: Operation, bytes: f64, group: &Group, cluster: &Cluster) -> f64 {
    if group.ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let inside = Inside {
        fabric: &cluster.scale_up.fabric,
        peak: cluster.scale_up.bytes_per_s,
        switch: cluster.scale_up.in_switch_reduction,
    };
    if group.domains == 1 {
        return inside.collective_s(op, bytes, group.ranks as f64);
    }
    across_s(op, bytes, group, cluster, &inside)
}

/// A collective over evenly spaced ranks, as a caller outside the core asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// Bytes as nccl-tests counts them.
    pub bytes: f64,
    /// Ranks.
    pub ranks: u64,
    /// GPUs from one rank to the next.
    pub stride: u64,
}

impl Request {
    /// Time on a cluster, s.
    ///
    /// # Errors
    /// When bytes are negative or not finite, or a count is zero or absurd.
    pub fn time_s(&self, cluster: &Cluster) -> Result<f64> {
        const MOST: u64 = 1 << 32;
        if !self.bytes.is_finite() || self.bytes < 0.0 {
            return Err(Error::field(
                "bytes",
                self.bytes,
                "must be finite and at least 0",
            ));
        }
        for (name, count) in [("ranks", self.ranks), ("stride", self.stride)] {
            if count == 0 || count > MOST {
                return Err(Error::field(name, count, format!("must be 1 to {MOST}")));
            }
        }
        let group = Group::strided(self.ranks, self.stride, cluster.scale_up.domain_gpus);
        Ok(collective_s(self.operation, self.bytes, &group, cluster))
    }
}

/// Time of a pipelined transfer whose chunks fill in r and stream in w, s: (√r + √w)².
///
/// ```
/// use planner_core::collectives::time::pipelined_s;
/// assert_eq!(pipelined_s(4e-6, 0.0), 4e-6); // one chunk
/// assert!((pipelined_s(4e-6, 100e-6) - 144e-6).abs() < 1e-12);
/// ```
#[must_use]
pub fn pipelined_s(r: f64, w: f64) -> f64 {
    let root = r.sqrt() + w.sqrt();
    root * root
}

/// Time of two streams that run at once on different chunks, s: (a⁸ + b⁸)^⅛, the larger of the two
/// and a little more where they are close.
///
/// ```
/// use planner_core::collectives::time::overlapped_s;
/// assert_eq!(overlapped_s(3e-3, 0.0), 3e-3);
/// assert!((overlapped_s(1e-3, 1e-3) - 1.0905e-3).abs() < 1e-7);
/// ```
#[must_use]
pub fn overlapped_s(a: f64, b: f64) -> f64 {
    let (large, small) = (a.max(b), a.min(b));
    if large <= 0.0 {
        return 0.0;
    }
    let ratio2 = (small / large) * (small / large);
    let ratio8 = ratio2 * ratio2 * ratio2 * ratio2;
    large * (1.0 + ratio8).sqrt().sqrt().sqrt()
}

/// Efficiency and own-share ratio of an operation on a fabric.
fn efficiency(op: Operation, f: &Fabric) -> (f64, f64) {
    match op {
        Operation::AllReduce => (f.all_reduce_efficiency, f.all_reduce_copy_ratio),
        Operation::AllGather | Operation::ReduceScatter => {
            (f.gather_efficiency, f.gather_copy_ratio)
        }
        Operation::AllToAll => (f.all_to_all_efficiency, f.all_to_all_copy_ratio),
        Operation::Rooted | Operation::PointToPoint => (f.p2p_efficiency, 0.0),
    }
}

/// The links of one domain.
struct Inside<'a> {
    fabric: &'a Fabric,
    peak: f64,
    switch: bool,
}

impl Inside<'_> {
    /// Bandwidth that n ranks reach, bytes/s, before the operation's efficiency.
    fn bandwidth(&self, n: f64) -> f64 {
        if self.fabric.contention > 0.0 {
            self.peak * (2.0 / n).powf(self.fabric.contention)
        } else {
            self.peak
        }
    }

    /// Streaming time of an operation over n ranks of the domain, s.
    fn stream_s(&self, op: Operation, bytes: f64, n: f64) -> f64 {
        let (e, c) = efficiency(op, self.fabric);
        let share = (n - 1.0 + c) / n;
        let volume = match op {
            Operation::AllReduce => 2.0 * share * bytes,
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => share * bytes,
            Operation::Rooted | Operation::PointToPoint => bytes,
        };
        volume / (e * self.bandwidth(n))
    }

    /// Streaming time of an all-reduce in the switch, s; infinite where the switch cannot, or for
    /// two ranks, which exchange directly.
    fn switch_s(&self, bytes: f64, n: f64) -> f64 {
        if !self.switch || self.fabric.in_switch_efficiency <= 0.0 || n < 3.0 {
            return f64::INFINITY;
        }
        bytes / (self.fabric.in_switch_efficiency * self.peak)
    }

    fn collective_s(&self, op: Operation, bytes: f64, n: f64) -> f64 {
        let f = self.fabric;
        let hops = match op {
            Operation::AllReduce => 2.0 * (n - 1.0),
            Operation::AllToAll => 1.0,
            _ => n - 1.0,
        };
        let ring = hops * f.ring_hop_s + pipelined_s(f.ramp_s, self.stream_s(op, bytes, n));
        let best = if matches!(op, Operation::AllReduce) {
            ring.min(f.in_switch_s + pipelined_s(f.ramp_s, self.switch_s(bytes, n)))
        } else {
            ring
        };
        f.base_s + best
    }
}

/// What crossing the switch tiers adds: (slowdown of a ring, of an all-to-all, latency per hop, s).
fn tiers(group: &Group, cluster: &Cluster) -> (f64, f64, f64) {
    let (mut ring, mut all, mut latency) = (1.0_f64, 1.0_f64, 0.0);
    for tier in &cluster.scale_out.tiers {
        if group.span_gpus <= tier.gpus {
            continue;
        }
        let below = group.below(tier.gpus);
        let leaving = 1.0 - below / group.ranks as f64;
        ring = ring.max(tier.oversubscription / below);
        all = all.max(tier.oversubscription * leaving);
        latency += tier.latency_s;
    }
    (ring, all, latency)
}

fn across_s(
    op: Operation,
    bytes: f64,
    group: &Group,
    cluster: &Cluster,
    inside: &Inside<'_>,
) -> f64 {
    let out = &cluster.scale_out.fabric;
    let (n, domains, local) = (group.ranks as f64, group.domains as f64, group.per_domain());
    let (ring_slow, all_slow, tier_s) = tiers(group, cluster);
    let nic = nic_share_of(cluster) * efficiency(op, out).0;
    let hop = out.ring_hop_s + tier_s;
    let depth = domains.log2().ceil();
    let in_hops = (local - 1.0).max(0.0) * inside.fabric.ring_hop_s;
    let base = inside.fabric.base_s + out.base_s;
    let join = |w_in: f64, w_out: f64| base + pipelined_s(out.ramp_s, overlapped_s(w_in, w_out));
    let local_s = |op| {
        if local > 1.0 {
            inside.stream_s(op, bytes, local)
        } else {
            0.0
        }
    };
    match op {
        Operation::AllReduce => {
            let w_in = local_s(op).min(inside.switch_s(bytes, local));
            let per_gpu = ring_slow * bytes / (local * nic);
            let ring = join(w_in, 2.0 * remote_share(group.ranks) * per_gpu)
                + 2.0 * ((domains - 1.0) * hop + (n - domains) * inside.fabric.ring_hop_s);
            let tree_volume = if group.domains == 2 { 1.0 } else { 2.0 };
            let tree = join(w_in, tree_volume * per_gpu)
                + 2.0 * (depth * (out.tree_hop_s + tier_s) + in_hops);
            ring.min(tree)
        }
        Operation::AllGather | Operation::ReduceScatter => {
            let w_out = remote_share(group.ranks) * ring_slow * bytes / (local * nic);
            let ring = (domains - 1.0) * hop + (n - domains) * inside.fabric.ring_hop_s;
            let tree = depth * (out.tree_hop_s + tier_s);
            // One rank a domain: NCCL's parallel trees (PAT) replace the ring where shorter.
            let latency = if local > 1.0 { ring } else { ring.min(tree) };
            join(local_s(op), w_out) + latency
        }
        Operation::AllToAll => {
            let w_in = local_s(op) * local / n;
            let w_out = all_slow * (1.0 - 1.0 / domains) * bytes / nic;
            let rounds = ((n - local) / PEERS_AT_ONCE).ceil();
            join(w_in, w_out) + rounds * hop
        }
        Operation::Rooted => {
            let w_out = ring_slow * bytes / (local * nic);
            join(local_s(op), w_out) + depth * (out.tree_hop_s + tier_s) + in_hops
        }
        Operation::PointToPoint => join(0.0, ring_slow * bytes / nic) + hop,
    }
}

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;
