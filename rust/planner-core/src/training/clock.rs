//! Time of work on this device, fabric and software: where curves meet shapes.

use crate::cluster::AttentionKernel;
use crate::model::work::{Gemm, LayerWork};

use super::Estimator;
use super::layer::{LayerKey, Terms};

/// Times work for one table entry.
pub(super) struct Clock<'a> {
    est: &'a Estimator,
    key: LayerKey,
}

/// Attention-core time of both passes, s.
pub(super) struct Core {
    pub forward: f64,
    pub backward: f64,
}

impl<'a> Clock<'a> {
    pub(super) const fn new(est: &'a Estimator, key: LayerKey) -> Self {
        Self { est, key }
    }

    pub(super) const fn grouped_gemm_ratio(&self) -> f64 {
        self.est.software.grouped_gemm_ratio
    }

    pub(super) const fn selective_kept_ratio(&self) -> f64 {
        self.est.software.selective_kept_ratio
    }

    /// GEMM time in training: the device's curve times its training ratio.
    pub(super) fn gemm_s(&self, g: &Gemm) -> f64 {
        let rates = if g.quantized {
            &self.est.linear_rates
        } else {
            &self.est.plain_rates
        };
        rates.gemm_s(g)
    }

    /// Attention core: FLOPs over a share of the 16-bit peak. Backward of a fused kernel is 2.5 ×
    /// forward (scores are recomputed), of batched GEMMs 2 ×. Heads narrower than 96 run 1.35 ×
    /// longer. An unfused core also moves the score matrix: 13 B an element forward, 19 B backward.
    pub(super) fn core(&self, work: &LayerWork) -> Core {
        let est = self.est;
        let narrow = if work.core_head_dim < 96.0 { 1.35 } else { 1.0 };
        let forward = narrow * work.core_flops / est.core_flops_per_s;
        let per_byte = est.score_s_per_byte;
        if est.training.attention_kernel == AttentionKernel::Unfused {
            Core {
                forward: forward + 13.0 * work.score_elements * per_byte,
                backward: 2.0 * forward + 19.0 * work.score_elements * per_byte,
            }
        } else {
            Core {
                forward,
                backward: 2.5 * forward,
            }
        }
    }

    /// Terms of a pass: GPU and CPU time join as (gpu^n + cpu^n)^(1/n) per pass over a layer, so
    /// launches are felt only where the GPU runs out of work.
    pub(super) fn phase(&self, work: &LayerWork, gemm: f64, core: f64, backward: bool) -> Terms {
        let est = self.est;
        let (bytes, scan, kernels) = if backward {
            (
                work.backward_bytes,
                work.scan_backward_bytes,
                work.backward_kernels,
            )
        } else {
            (
                work.forward_bytes,
                work.scan_forward_bytes,
                work.forward_kernels,
            )
        };
        let memory_bound = bytes * est.memory_bound_s_per_byte
            + work.permute_bytes * est.permute_s_per_byte
            + kernels * est.software.kernel_gap_s;
        let attention = core + scan * est.scan_s_per_byte;
        let gpu = gemm + attention + memory_bound;
        let cpu = kernels * est.launch_s;
        let n = est.software.launch_exponent;
        let launch = join(gpu, cpu, n) - gpu;
        let direction = if backward { 2.0 } else { 1.0 };
        Terms {
            gemm,
            attention,
            memory_bound,
            launch,
            tp: self.tp_s(work, gpu, cpu),
            cp: self.cp_s(work, core, direction),
            ep: self.ep_s(work),
            imbalance: 0.0,
        }
    }

    /// Exposed tensor-parallel time of a pass: messages of T·H, a latency
    /// each, and the wait of CPU-bound ranks for one another.
    fn tp_s(&self, work: &LayerWork, gpu: f64, cpu: f64) -> f64 {
        if self.key.tp <= 1 || work.tp_messages == 0.0 {
            return 0.0;
        }
        let est = self.est;
        let t = f64::from(self.key.tp);
        let latency = est.software.tp_latency_s * (t / 4.0).sqrt();
        let message = est.links.tp_s(
            self.key.tp,
            work.tp_message_bytes,
            self.key.sequence_parallel,
        );
        let mut time = work.tp_messages * (message + latency);
        if work.etp_message_bytes > 0.0 {
            // Gathered before the experts, reduce-scattered after them.
            time += est
                .links
                .tp_s(self.key.etp, work.etp_message_bytes / 2.0, true)
                + latency;
        }
        let sync = if cpu > gpu {
            work.tp_messages * est.tp_sync_s(self.key.tp) * (1.0 - gpu / cpu)
        } else {
            0.0
        };
        est.tp_exposed * time + sync
    }

    /// Context-parallel exchange; backward moves keys, values and their gradients.
    fn cp_s(&self, work: &LayerWork, core: f64, direction: f64) -> f64 {
        if self.key.cp <= 1 || work.cp_bytes == 0.0 {
            return 0.0;
        }
        let est = self.est;
        let bytes = direction * work.cp_bytes;
        let time = est
            .links
            .cp_s(self.key.tp, self.key.cp, est.training.cp_comm, bytes)
            + f64::from(self.key.cp - 1) * est.software.tp_latency_s;
        if est.training.overlap.cp {
            est.software.cp_exposed_ratio * time.min(core) + (time - core).max(0.0)
        } else {
            time
        }
    }

    /// One dispatch and one combine over the expert-parallel group.
    fn ep_s(&self, work: &LayerWork) -> f64 {
        if self.key.ep <= 1 || work.dispatch_tokens == 0.0 {
            return 0.0;
        }
        let est = self.est;
        let bytes = work.dispatch_tokens * work.dispatch_width * 2.0;
        let (local, remote) = est.links.dispatch_s(
            bytes,
            work.dispatch_top_k,
            work.dispatch_experts,
            self.key.ep,
            self.key.etp,
        );
        let traffic = (est.software.dispatch_time_ratio * local)
            .max(est.software.dispatch_remote_ratio * remote);
        2.0 * (est.software.dispatch_s + traffic)
    }
}

/// (a^n + b^n)^(1/n): the larger of the two when they differ, 2^(1/n) times either when equal.
///
/// ```
/// use planner_core::training::join;
/// assert!((join(3.0, 4.0, 2.0) - 5.0).abs() < 1e-12);
/// assert!((join(1.0, 0.0, 3.4) - 1.0).abs() < 1e-12);
/// ```
#[must_use]
pub fn join(a: f64, b: f64, n: f64) -> f64 {
    let (big, small) = if a > b { (a, b) } else { (b, a) };
    if small <= 0.0 {
        return big;
    }
    big * (1.0 + (small / big).powf(n)).powf(1.0 / n)
}
