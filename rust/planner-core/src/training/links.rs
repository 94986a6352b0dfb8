//! Bandwidth that a rank group really sees: which tier it spans, and who shares the NICs.

use crate::cluster::Cluster;
use crate::collectives::expert_parallel::distinct_nodes;
use crate::collectives::group::{Group, nic_share_of};
use crate::collectives::time::collective_s;
use crate::collectives::volume::Operation;

use super::workload::CpComm;

/// Ranks of a group, and how many of them share one scale-up domain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Ranks n.
    pub ranks: f64,
    /// Ranks of the group inside one domain.
    pub per_domain: f64,
    /// GPUs from the first rank to the last, both counted.
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
            extent: (ranks - 1.0) * stride + 1.0,
        }
    }

    /// The group as the collectives see it.
    #[must_use]
    pub fn group(&self) -> Group {
        Group {
            ranks: self.ranks as u64,
            domains: (self.ranks / self.per_domain).ceil() as u64,
            span_gpus: self.extent as u64,
        }
    }

    /// GPUs from one rank to the next (the mean, where they are not evenly spread).
    #[must_use]
    pub fn stride(&self) -> f64 {
        (self.extent - 1.0) / (self.ranks - 1.0).max(1.0)
    }

    /// Whether every rank sits in one domain.
    #[must_use]
    pub fn local(&self) -> bool {
        self.per_domain >= self.ranks
    }
}

/// Times of the collectives of a layout: the curves of [`crate::collectives::time`] on the group's
/// real span, times what a training job makes of the fabric that it crosses.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    cluster: Cluster,
    domain: f64,
}

impl Links {
    /// Links of `cluster`.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        Self {
            domain: cluster.scale_up.domain_gpus as f64,
            cluster: cluster.clone(),
        }
    }

    /// Ranks `stride` apart.
    #[must_use]
    pub fn span(&self, ranks: f64, stride: f64) -> Span {
        Span::strided(ranks, stride, self.domain)
    }

    /// Time of an operation over a span, s.
    fn time_s(&self, op: Operation, bytes: f64, span: &Span) -> f64 {
        if span.ranks <= 1.0 || bytes == 0.0 {
            return 0.0;
        }
        let fabric = if span.local() {
            &self.cluster.scale_up.fabric
        } else {
            &self.cluster.scale_out.fabric
        };
        fabric.training_ratio * collective_s(op, bytes, &span.group(), &self.cluster)
    }

    /// One tensor-parallel message of `bytes`: an all-reduce, or a reduce-scatter and an
    /// all-gather where the sequence is split.
    #[must_use]
    pub fn tp_s(&self, tp: u32, bytes: f64, scattered: bool) -> f64 {
        let span = self.span(f64::from(tp), 1.0);
        if scattered {
            2.0 * self.time_s(Operation::AllGather, bytes, &span)
        } else {
            self.time_s(Operation::AllReduce, bytes, &span)
        }
    }

    /// Context-parallel exchange of keys and values: `bytes` leave a rank in all.
    #[must_use]
    pub fn cp_s(&self, tp: u32, cp: u32, comm: CpComm, bytes: f64) -> f64 {
        let (n, stride) = (f64::from(cp), f64::from(tp));
        let span = self.span(n, stride);
        match comm {
            CpComm::P2p => {
                let step = self.time_s(
                    Operation::PointToPoint,
                    bytes / (n - 1.0),
                    &Span {
                        ranks: 2.0,
                        per_domain: span.per_domain.min(2.0),
                        extent: span.extent,
                    },
                );
                (n - 1.0) * step
            }
            CpComm::AllGather => self.time_s(Operation::AllGather, bytes * n / (n - 1.0), &span),
            CpComm::AllToAll => self.time_s(Operation::AllToAll, bytes * n / (n - 1.0), &span),
        }
    }

    /// Transfer of one pipeline message between stages `stride` apart, and what the fabric adds to
    /// it, s.
    #[must_use]
    pub fn pp_s(&self, stride: f64, bytes: f64) -> (f64, f64) {
        let span = self.span(2.0, stride);
        let fixed = if span.local() {
            self.cluster.scale_up.fabric.message_s
        } else {
            self.cluster.scale_out.fabric.message_s
        };
        (self.time_s(Operation::PointToPoint, bytes, &span), fixed)
    }

    /// Time of an all-reduce of `bytes`, s.
    #[must_use]
    pub fn all_reduce_s(&self, bytes: f64, span: &Span) -> f64 {
        self.time_s(Operation::AllReduce, bytes, span)
    }

    /// Time of an all-gather or a reduce-scatter of `bytes`, s.
    #[must_use]
    pub fn gather_s(&self, bytes: f64, span: &Span) -> f64 {
        self.time_s(Operation::AllGather, bytes, span)
    }

    /// Times of the traffic of one expert dispatch (or combine), s: k copies of each token over the
    /// links of the domain, and one copy per distinct remote domain over the NIC.
    #[must_use]
    pub fn dispatch_s(
        &self,
        bytes: f64,
        top_k: f64,
        experts: f64,
        ep: u32,
        etp: u32,
    ) -> (f64, f64) {
        let span = self.span(f64::from(ep), f64::from(etp));
        let n = span.ranks;
        let up = &self.cluster.scale_up;
        let links = up.bytes_per_s * up.fabric.all_to_all_efficiency / up.fabric.training_ratio;
        let local = top_k * bytes * (n - 1.0) / n / links;
        if span.local() {
            return (local, 0.0);
        }
        let out = &self.cluster.scale_out.fabric;
        let nic = nic_share_of(&self.cluster) * out.all_to_all_efficiency
            / (out.training_ratio * self.oversubscription(span.extent));
        let domains = (n / span.per_domain).ceil();
        let copies = distinct_nodes(experts as u64, top_k as u64, domains as u64);
        let remote = bytes * copies * (domains - 1.0) / domains;
        (local, remote / nic)
    }

    /// What the tiers that a group leaves divide its all-to-all bandwidth by.
    fn oversubscription(&self, extent: f64) -> f64 {
        let tiers = self.cluster.scale_out.tiers.iter();
        tiers
            .filter(|tier| extent > tier.gpus as f64)
            .map(|tier| tier.oversubscription)
            .fold(1.0, f64::max)
    }
}
