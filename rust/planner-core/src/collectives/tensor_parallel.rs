//! Bytes that tensor and sequence parallelism move, and what crosses a pipeline boundary.
//!
//! Symbols: B sequences of a micro-batch, s sequence length, H hidden size, b bytes per element,
//! t tensor-parallel degree.
//!
//! Sources: Shoeybi et al. 2019 (Megatron); Korthikanti et al. 2022 (sequence parallelism, §4).

use super::volume::{all_reduce_bytes, remote_share};

/// All-reduces of one Megatron layer in the forward pass, and as many in the backward pass: one
/// after attention, one after the feed-forward.
pub const ALL_REDUCES_PER_PASS: u64 = 2;

/// Message of one tensor-parallel all-reduce, bytes: B·s·H·b.
///
/// ```
/// use planner_core::collectives::tensor_parallel::message_bytes;
/// assert_eq!(message_bytes(1, 4096, 8192, 2.0), 67_108_864.0); // 64 MiB
/// ```
#[must_use]
pub const fn message_bytes(b: u64, s: u64, h: u64, element_bytes: f64) -> f64 {
    b as f64 * s as f64 * h as f64 * element_bytes
}

/// What a layer's tensor parallelism does in one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTraffic {
    /// Collectives in the forward pass.
    pub forward_collectives: u64,
    /// Collectives in the backward pass, recomputed forward ones included.
    pub backward_collectives: u64,
    /// Bytes that a rank sends in the forward pass.
    pub forward_bytes: f64,
    /// Bytes that a rank sends in the backward pass.
    pub backward_bytes: f64,
}

/// Tensor parallelism of one transformer layer.
///
/// Two all-reduces forward and two backward, each 2(t−1)/t · message. With sequence parallelism each
/// becomes a reduce-scatter and an all-gather: 4 + 4 collectives of half the volume, the same bytes.
/// Full recomputation repeats the forward ones in the backward pass. Inference keeps the forward
/// half only.
///
/// ```
/// use planner_core::collectives::tensor_parallel::{layer_traffic, message_bytes};
/// let message = message_bytes(1, 4096, 8192, 2.0);
/// let plain = layer_traffic(8, message, false, false);
/// let sp = layer_traffic(8, message, true, false);
/// assert_eq!((plain.forward_collectives, plain.backward_collectives), (2, 2));
/// assert_eq!((sp.forward_collectives, sp.backward_collectives), (4, 4));
/// assert_eq!(plain.forward_bytes, 234_881_024.0); // 2 · 2·7/8 · 64 MiB
/// assert_eq!(plain.forward_bytes, sp.forward_bytes);
/// ```
#[must_use]
pub fn layer_traffic(
    t: u64,
    message_bytes: f64,
    sequence_parallel: bool,
    full_recompute: bool,
) -> LayerTraffic {
    if t <= 1 {
        return LayerTraffic::default();
    }
    let parts = if sequence_parallel { 2 } else { 1 };
    let passes = if full_recompute { 2 } else { 1 };
    let forward_bytes = ALL_REDUCES_PER_PASS as f64 * all_reduce_bytes(t, message_bytes);
    LayerTraffic {
        forward_collectives: parts * ALL_REDUCES_PER_PASS,
        backward_collectives: passes * parts * ALL_REDUCES_PER_PASS,
        forward_bytes,
        backward_bytes: passes as f64 * forward_bytes,
    }
}

/// What one rank sends over a pipeline boundary per micro-batch, one way, bytes: B·s·H·b, divided by
/// t with sequence parallelism. An interleaved schedule sends it v times.
///
/// ```
/// use planner_core::collectives::tensor_parallel::boundary_bytes;
/// assert_eq!(boundary_bytes(67_108_864.0, 8, true, 1), 8_388_608.0);
/// assert_eq!(boundary_bytes(67_108_864.0, 8, false, 4), 4.0 * 67_108_864.0);
/// ```
#[must_use]
pub const fn boundary_bytes(message_bytes: f64, t: u64, sequence_parallel: bool, v: u64) -> f64 {
    let split = if sequence_parallel { t as f64 } else { 1.0 };
    message_bytes / split * v as f64
}

/// Conjugate of a tensor-parallel operator: what its backward pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Pass on unchanged (f forward, in Megatron's letters).
    Identity,
    /// Sum over ranks.
    AllReduce,
    /// Collect the parts.
    AllGather,
    /// Sum and split.
    ReduceScatter,
}

impl Operator {
    /// The operator of the backward pass: identity ↔ all-reduce, all-gather ↔ reduce-scatter.
    ///
    /// ```
    /// use planner_core::collectives::tensor_parallel::Operator;
    /// assert_eq!(Operator::AllReduce.conjugate(), Operator::Identity);
    /// assert_eq!(Operator::AllGather.conjugate(), Operator::ReduceScatter);
    /// ```
    #[must_use]
    pub const fn conjugate(self) -> Self {
        match self {
            Self::Identity => Self::AllReduce,
            Self::AllReduce => Self::Identity,
            Self::AllGather => Self::ReduceScatter,
            Self::ReduceScatter => Self::AllGather,
        }
    }

    /// Bytes that a rank sends, for a full message.
    #[must_use]
    pub const fn bytes(self, t: u64, message_bytes: f64) -> f64 {
        match self {
            Self::Identity => 0.0,
            Self::AllReduce => all_reduce_bytes(t, message_bytes),
            Self::AllGather | Self::ReduceScatter => remote_share(t) * message_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_parallelism_moves_the_same_bytes_in_twice_the_collectives() {
        for t in [2, 4, 8, 16] {
            for recompute in [false, true] {
                let plain = layer_traffic(t, 1e6, false, recompute);
                let sp = layer_traffic(t, 1e6, true, recompute);
                assert_eq!(2 * plain.forward_collectives, sp.forward_collectives);
                assert_eq!(2 * plain.backward_collectives, sp.backward_collectives);
                assert_eq!(plain.backward_bytes, sp.backward_bytes);
            }
        }
        assert_eq!(layer_traffic(1, 1e6, true, true), LayerTraffic::default());
    }

    #[test]
    fn a_conjugate_pair_moves_the_same_bytes_either_way() {
        let ops = [
            Operator::Identity,
            Operator::AllReduce,
            Operator::AllGather,
            Operator::ReduceScatter,
        ];
        for op in ops {
            assert_eq!(op.conjugate().conjugate(), op);
        }
        // Identity/all-reduce against all-gather/reduce-scatter: one pass and back, equal volume.
        let pair = |op: Operator| op.bytes(8, 1e6) + op.conjugate().bytes(8, 1e6);
        assert_eq!(pair(Operator::Identity), pair(Operator::AllGather));
    }
}
