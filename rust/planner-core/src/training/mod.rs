//! The training estimate: context + layout → one row of named terms.
//!
//! Pure: no globals, no I/O. [`Estimator::layer_costs`] is the expensive table, everything else
//! combines its entries; [`Estimator::row`] goes the same way for one layout, so a row and the sweep
//! agree to the bit.

pub mod block;
pub mod bound;
mod clock;
pub mod compose;
pub mod explain;
pub mod group;
pub mod layer;
pub mod links;
pub mod question;
pub mod rates;
pub mod row;
pub mod software;
pub mod stage;
pub mod sums;
pub mod workload;

pub use clock::join;

use crate::cluster::{AttentionKernel, Cluster};
use crate::collectives::straggler::{expected_delay_s, expected_jitter_s};
use crate::error::{Error, Result};
use crate::model::flops::training_flops_per_token;
use crate::model::{FeedForward, LayerKind, Mixer, Model, params};
use crate::moe::imbalance;
use crate::units::Dtype;

use block::Block;
use links::Links;
use rates::Rates;
use software::Software;
use workload::Training;

/// Parameters of one layer kind, by what divides them: [`crate::model::params::LayerParams`] as the
/// estimate needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KindParams {
    /// Divided by tensor parallelism.
    pub sharded: f64,
    /// Key and value projections: divided by tensor parallelism up to `kv_heads`.
    pub key_value: f64,
    /// Key/value heads (1 without).
    pub kv_heads: f64,
    /// Held whole by every rank.
    pub replicated: f64,
    /// Routed experts: divided by ep · etp.
    pub expert: f64,
}

/// Experts and experts per token of the first MoE layer.
fn experts_of(model: &Model) -> Option<(u32, u32)> {
    model
        .kinds
        .iter()
        .find_map(|kind| match &kind.feed_forward {
            Some(FeedForward::Moe(m)) => Some((m.experts as u32, m.top_k as u32)),
            _ => None,
        })
}

impl KindParams {
    fn new(kind: &LayerKind, hidden: u64) -> Self {
        let p = params::layer(kind, hidden);
        let kv_heads = match &kind.mixer {
            Some(Mixer::Attention(a)) => a.kv_heads.max(1),
            _ => 1,
        };
        Self {
            sharded: p.tensor as f64,
            key_value: p.key_value as f64,
            kv_heads: kv_heads as f64,
            replicated: (p.replicated + p.router) as f64,
            expert: p.expert as f64,
        }
    }

    /// On one of `tp` tensor-parallel ranks, routed experts apart.
    #[must_use]
    pub fn dense(&self, tp: f64) -> f64 {
        self.sharded / tp + self.key_value / tp.min(self.kv_heads) + self.replicated
    }
}

/// A model on a cluster under a workload: all that a layout needs to be estimated.
#[derive(Clone, Debug)]
pub struct Estimator {
    pub(crate) model: Model,
    pub(crate) cluster: Cluster,
    pub(crate) training: Training,
    pub(crate) software: Software,
    pub(crate) gpus: u64,
    pub(crate) kind_params: Vec<KindParams>,
    pub(crate) links: Links,
    hidden: f64,
    streams: f64,
    unfused: bool,
    quantized: bool,
    linear_rates: Rates,
    plain_rates: Rates,
    core_flops_per_s: f64,
    score_s_per_byte: f64,
    memory_bound_s_per_byte: f64,
    permute_s_per_byte: f64,
    scan_s_per_byte: f64,
    launch_s: f64,
    tp_exposed: f64,
    barrier_s: f64,
    model_flops_per_token: f64,
}

impl Estimator {
    /// Prepares an estimate.
    ///
    /// # Errors
    /// When the device has no peak or curve for a format that the workload needs.
    pub fn new(
        model: Model,
        cluster: Cluster,
        training: Training,
        software: Software,
        gpus: u64,
    ) -> Result<Self> {
        if let (Some(routing), Some((experts, top_k))) = (&training.routing, experts_of(&model)) {
            routing.check(experts, top_k)?;
        }
        let device = &cluster.device;
        let linear_rates = Rates::new(device, training.compute_dtype)?;
        let plain_rates = Rates::new(device, training.param_dtype)?;
        let unfused = training.attention_kernel == AttentionKernel::Unfused;
        let efficiency = device
            .training
            .attention_efficiency
            .get(&training.attention_kernel)
            .ok_or_else(|| Error::Missing {
                name: format!(
                    "device.training.attention_efficiency.{:?} of {}",
                    training.attention_kernel, device.name
                ),
                hint: "add it to the cluster file or choose another attention kernel".into(),
            })?;
        let hbm = device.memory_bytes_per_s;
        let passes = software.memory_bound_ratio * device.training.memory_bound_ratio;
        let graph = if training.cuda_graphs {
            software.graph_launch_ratio
        } else {
            1.0
        };
        Ok(Self {
            hidden: model.hidden as f64,
            streams: model.residual_streams as f64,
            kind_params: model
                .kinds
                .iter()
                .map(|k| KindParams::new(k, model.hidden))
                .collect(),
            links: Links::new(&cluster),
            unfused,
            quantized: training.compute_dtype.bytes() < 2.0,
            core_flops_per_s: efficiency * plain_rates.peak,
            score_s_per_byte: software.score_ratio / hbm,
            memory_bound_s_per_byte: passes / hbm,
            permute_s_per_byte: software.permute_ratio / hbm,
            scan_s_per_byte: software.scan_ratio / hbm,
            launch_s: software.kernel_launch_s * graph,
            tp_exposed: if training.overlap.tp {
                software.tp_overlap_exposed_ratio
            } else {
                software.tp_exposed_ratio
            },
            barrier_s: expected_jitter_s(cluster.jitter_s, gpus)
                + expected_delay_s(cluster.delay_probability, gpus, cluster.delay_s),
            model_flops_per_token: training_flops_per_token(&model, training.seq_len, training.mtp),
            linear_rates,
            plain_rates,
            model,
            cluster,
            training,
            software,
            gpus,
        })
    }

    /// Vocabulary padded to a multiple of `vocab_multiple` · tp.
    #[must_use]
    pub fn padded_vocab(&self, tp: u32) -> f64 {
        let multiple = self.training.vocab_multiple.max(1) * u64::from(tp);
        (self.model.vocab.div_ceil(multiple) * multiple) as f64
    }

    /// Parameters of the word table (and of the head) on one of `tp` ranks.
    pub(crate) fn table_params(&self, tp: u32) -> f64 {
        let width = match self.model.embedding_width {
            0 => self.hidden,
            width => width as f64,
        };
        self.padded_vocab(tp) * width / f64::from(tp)
    }

    fn tp_sync_s(&self, tp: u32) -> f64 {
        let [two, four, eight] = self.software.tp_sync_s;
        match tp {
            0..=2 => two,
            3..=4 => four,
            _ => eight,
        }
    }

    /// Rows of the hottest expert-parallel rank over the mean; `local_tokens` are those of a rank.
    fn imbalance(&self, ep: u32, local_tokens: f64) -> f64 {
        match (&self.training.routing, experts_of(&self.model)) {
            _ if ep <= 1 => 1.0,
            (Some(routing), Some((experts, top_k))) => {
                imbalance(routing, experts, top_k, ep, local_tokens)
            }
            _ => self.training.moe_imbalance,
        }
    }

    /// Buffers of the framework and of pipeline messages.
    pub(crate) fn buffers(&self, block: &Block) -> f64 {
        let messages = if block.pp > 1.0 {
            2.0 * block.boundary_bytes
        } else {
            0.0
        };
        self.software.buffer_bytes + messages
    }

    /// Allocated bytes and the context fit into the device.
    #[must_use]
    pub fn fits(&self, allocated: f64) -> bool {
        allocated + self.software.context_bytes <= self.cluster.device.memory_bytes
    }

    /// Allocator cache beyond what is allocated: a share of it, as long as the device has room.
    #[must_use]
    pub fn fragmentation_bytes(&self, allocated: f64) -> f64 {
        let room = self.cluster.device.memory_bytes - self.software.context_bytes - allocated;
        (self.software.fragmentation_ratio * allocated).min(room.max(0.0))
    }

    /// Peak memory of a rank that allocates so much; it never falls when `allocated` grows.
    #[must_use]
    pub fn peak_bytes(&self, allocated: f64) -> f64 {
        allocated + self.fragmentation_bytes(allocated) + self.software.context_bytes
    }

    /// Ratio of 16-bit peak: what MFU is measured against.
    #[must_use]
    pub fn peak_flops(&self, dtype: Dtype) -> Option<f64> {
        self.cluster.device.peak_flops.get(&dtype).copied()
    }
}
