//! A rank group and the links that it really spans.

use crate::cluster::Cluster;

/// Ranks of one collective, as the links see them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Ranks n.
    pub ranks: u64,
    /// Scale-up domains N that the ranks lie in.
    pub domains: u64,
    /// GPUs from the first rank to the last, both counted: decides which switch tiers are crossed.
    pub span_gpus: u64,
}

impl Group {
    /// Ranks `stride` GPUs apart, the first at GPU 0 of a domain.
    ///
    /// Rank groups of a Megatron-style placement have this form: the tensor-parallel group has
    /// stride 1, the next axis a stride of tp, and so on.
    ///
    /// ```
    /// use planner_core::collectives::group::Group;
    /// // 64 ranks, one in every 8 GPUs, domains of 8: one rank a domain.
    /// let g = Group::strided(64, 8, 8);
    /// assert_eq!((g.domains, g.per_domain()), (64, 1.0));
    /// // 16 neighbours over domains of 8: two domains of 8 ranks.
    /// let g = Group::strided(16, 1, 8);
    /// assert_eq!((g.domains, g.per_domain()), (2, 8.0));
    /// ```
    #[must_use]
    pub const fn strided(ranks: u64, stride: u64, domain_gpus: u64) -> Self {
        let ranks = if ranks == 0 { 1 } else { ranks };
        let stride = if stride == 0 { 1 } else { stride };
        let span_gpus = (ranks - 1) * stride + 1;
        let domains = if stride >= domain_gpus {
            ranks
        } else {
            span_gpus.div_ceil(domain_gpus)
        };
        Self {
            ranks,
            domains,
            span_gpus,
        }
    }

    /// Two ranks that are neighbours across a pipeline boundary, `stride` GPUs apart.
    #[must_use]
    pub const fn pair(stride: u64, domain_gpus: u64) -> Self {
        Self::strided(2, stride, domain_gpus)
    }

    /// Ranks in a domain n/N, mean where they do not divide.
    #[must_use]
    pub const fn per_domain(&self) -> f64 {
        self.ranks as f64 / self.domains as f64
    }

    /// Ranks of the group below one switch of a tier that joins `gpus` GPUs, at least one.
    #[must_use]
    pub fn below(&self, gpus: u64) -> f64 {
        let ranks = self.ranks as f64;
        if self.span_gpus <= gpus {
            return ranks;
        }
        let stride = (self.span_gpus as f64 - 1.0) / (ranks - 1.0);
        (gpus as f64 / stride).clamp(1.0, ranks)
    }
}

/// Scale-out bandwidth of one GPU, bytes/s each way: its share of the node's NICs.
///
/// Two GPUs that share a NIC halve it; every GPU of the node is taken to communicate at once, as
/// the sibling groups of a layout do.
///
/// ```
/// use planner_core::collectives::group::nic_share;
/// assert_eq!(nic_share(4, 25e9, 8), 12.5e9);
/// ```
#[must_use]
pub const fn nic_share(nics_per_node: u64, nic_bytes_per_s: f64, gpus_per_node: u64) -> f64 {
    nics_per_node as f64 * nic_bytes_per_s / gpus_per_node as f64
}

/// [`nic_share`] of a cluster.
#[must_use]
pub const fn nic_share_of(cluster: &Cluster) -> f64 {
    let out = &cluster.scale_out;
    nic_share(
        out.nics_per_node,
        out.nic_bytes_per_s,
        cluster.gpus_per_node,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_inside_and_across() {
        assert_eq!(Group::strided(8, 1, 8).domains, 1);
        assert_eq!(Group::strided(2, 4, 8).domains, 1);
        assert_eq!(Group::strided(4, 4, 8).domains, 2);
        assert_eq!(Group::strided(16, 4, 72).domains, 1);
        assert_eq!(Group::strided(1, 1, 8), Group::strided(0, 0, 8));
        assert_eq!(Group::pair(8, 8).domains, 2);
        assert_eq!(Group::strided(64, 8, 8).below(256), 32.0);
        assert_eq!(Group::strided(64, 8, 8).below(4), 1.0);
        assert_eq!(Group::strided(64, 8, 8).below(1024), 64.0);
    }

    proptest! {
        #[test]
        fn counts_agree(ranks in 1_u64..3000, stride in 1_u64..3000, domain in 1_u64..100) {
            let g = Group::strided(ranks, stride, domain);
            prop_assert!(g.domains >= 1 && g.domains <= ranks);
            prop_assert!(g.per_domain() <= domain as f64);
        }
    }
}
