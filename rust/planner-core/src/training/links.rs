//! Bandwidth that a rank group really sees: which tier it spans, and who shares the NICs.

use crate::cluster::Cluster;

/// Ranks of a group, and how many of them share one scale-up domain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Ranks n.
    pub ranks: f64,
    /// Ranks of the group inside one domain.
    pub per_domain: f64,
    /// Consecutive GPUs that the group stretches over.
    pub extent: f64,
}

impl Span {
    /// `ranks` ranks, `stride` apart, on domains of `domain` GPUs.
    ///
    /// ```
    /// use planner_core::training::links::Span;
    /// assert_eq!(Span::strided(16.0, 8.0, 8.0).per_domain, 1.0); // data parallel over TP 8
    /// assert_eq!(Span::strided(16.0, 2.0, 8.0).per_domain, 4.0);
    /// assert_eq!(Span::strided(2.0, 1.0, 8.0).per_domain, 2.0);
    /// ```
    #[must_use]
    pub fn strided(ranks: f64, stride: f64, domain: f64) -> Self {
        Self {
            ranks,
            per_domain: (domain / stride).floor().clamp(1.0, ranks),
            extent: ranks * stride,
        }
    }

    /// Whether every rank sits in one domain.
    #[must_use]
    pub fn local(&self) -> bool {
        self.per_domain >= self.ranks
    }
}

/// Bandwidths of a cluster, ready to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    domain: f64,
    up_reduce: f64,
    up_gather: f64,
    up_all_to_all: f64,
    up_p2p: f64,
    nic_reduce: f64,
    nic_gather: f64,
    nic_all_to_all: f64,
    nic_p2p: f64,
    tiers: Vec<(f64, f64)>,
    latency: f64,
}

impl Links {
    /// Bandwidths of `cluster`: peak × efficiency, per GPU and direction.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        let up = &cluster.scale_up;
        let out = &cluster.scale_out;
        let nic = out.nics_per_node as f64 * out.nic_bytes_per_s / cluster.gpus_per_node as f64;
        Self {
            domain: up.domain_gpus as f64,
            up_reduce: up.bytes_per_s * up.fabric.all_reduce_efficiency,
            up_gather: up.bytes_per_s * up.fabric.gather_efficiency,
            up_all_to_all: up.bytes_per_s * up.fabric.all_to_all_efficiency,
            up_p2p: up.bytes_per_s * up.fabric.p2p_efficiency,
            nic_reduce: nic * out.fabric.all_reduce_efficiency,
            nic_gather: nic * out.fabric.gather_efficiency,
            nic_all_to_all: nic * out.fabric.all_to_all_efficiency,
            nic_p2p: nic * out.fabric.p2p_efficiency,
            tiers: out
                .tiers
                .iter()
                .map(|t| (t.gpus as f64, t.oversubscription))
                .collect(),
            latency: out.fabric.base_s,
        }
    }

    /// Ranks `stride` apart.
    #[must_use]
    pub fn span(&self, ranks: f64, stride: f64) -> Span {
        Span::strided(ranks, stride, self.domain)
    }

    /// What the tiers that a group leaves divide its bandwidth by.
    fn oversubscription(&self, extent: f64) -> f64 {
        self.tiers
            .iter()
            .filter(|(gpus, _)| extent > *gpus)
            .map(|(_, o)| o)
            .product()
    }

    /// Bus bandwidth of a group: links inside a domain; across domains the NICs of its ranks in one
    /// domain together, unless the links are slower.
    fn bus(&self, span: &Span, up: f64, nic: f64) -> f64 {
        if span.local() {
            up
        } else {
            up.min(span.per_domain * nic / self.oversubscription(span.extent))
        }
    }

    /// Bus bandwidth of tensor-parallel all-reduce, or reduce-scatter and all-gather.
    #[must_use]
    pub fn tp(&self, tp: u32, scattered: bool) -> f64 {
        let span = self.span(f64::from(tp), 1.0);
        if scattered {
            self.bus(&span, self.up_gather, self.nic_gather)
        } else {
            self.bus(&span, self.up_reduce, self.nic_reduce)
        }
    }

    /// Bandwidth of a step of the context-parallel exchange.
    #[must_use]
    pub fn cp(&self, tp: u32, cp: u32) -> f64 {
        let span = self.span(f64::from(cp), f64::from(tp));
        self.bus(&span, self.up_p2p, self.nic_p2p)
    }

    /// Bandwidth between neighbouring pipeline stages, `stride` apart.
    #[must_use]
    pub fn pp(&self, stride: f64) -> f64 {
        self.bus(&self.span(2.0, stride), self.up_p2p, self.nic_p2p)
    }

    /// Time of an all-reduce of `bytes`, 2(n−1)/n · bytes over the bus.
    #[must_use]
    pub fn all_reduce_s(&self, bytes: f64, span: &Span) -> f64 {
        if span.ranks <= 1.0 || bytes == 0.0 {
            return 0.0;
        }
        2.0 * (span.ranks - 1.0) / span.ranks * bytes
            / self.bus(span, self.up_reduce, self.nic_reduce)
            + self.latency
    }

    /// Time of an all-gather or a reduce-scatter of `bytes`, (n−1)/n · bytes over the bus.
    #[must_use]
    pub fn gather_s(&self, bytes: f64, span: &Span) -> f64 {
        if span.ranks <= 1.0 || bytes == 0.0 {
            return 0.0;
        }
        (span.ranks - 1.0) / span.ranks * bytes / self.bus(span, self.up_gather, self.nic_gather)
            + self.latency
    }

    /// Time of one expert dispatch (or combine): k copies of each token over the links of the
    /// domain, one copy per distinct remote domain over the NIC.
    #[must_use]
    pub fn dispatch_s(&self, bytes: f64, top_k: f64, experts: f64, ep: u32, etp: u32) -> f64 {
        let span = self.span(f64::from(ep), f64::from(etp));
        let n = span.ranks;
        let up = top_k * bytes * (n - 1.0) / n / self.up_all_to_all;
        if span.local() {
            return up;
        }
        let domains = (n / span.per_domain).ceil();
        let remote = bytes * distinct_groups(domains, experts, top_k) * (domains - 1.0) / domains;
        let nic = self.nic_all_to_all / self.oversubscription(span.extent);
        up.max(remote / nic)
    }
}

/// Expected number of distinct groups that k of E experts touch, R·(1 − C(E−m, k)/C(E, k)) with
/// m = E/R experts a group.
///
/// ```
/// use planner_core::training::links::distinct_groups;
/// assert!((distinct_groups(8.0, 256.0, 8.0) - 5.2947).abs() < 1e-4);
/// assert!((distinct_groups(1.0, 256.0, 8.0) - 1.0).abs() < 1e-12);
/// ```
#[must_use]
pub fn distinct_groups(groups: f64, experts: f64, k: f64) -> f64 {
    let m = experts / groups;
    let mut none = 1.0;
    let mut i = 0.0;
    while i < k {
        none *= ((experts - m - i) / (experts - i)).max(0.0);
        i += 1.0;
    }
    groups * (1.0 - none)
}
