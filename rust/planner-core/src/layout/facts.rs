//! The facts of a model, a job and a cluster that rules ask about, each computed once.

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::layout::shape::Shape;
use crate::model::Model;
use crate::training::workload::{CpComm, Training};

/// What rules know besides the layout.
///
/// "Every width divides by t" is the same as "their greatest common divisor divides by t", so the
/// facts hold divisors. A divisor of 0 means that the model has nothing of the kind: 0 divides by
/// everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// GPUs in the job.
    pub world: u64,
    /// GPUs in an NVLink domain.
    pub domain: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Sequence length, tokens.
    pub seq: u64,
    /// Sequences in a step.
    pub batch: u64,
    /// Common divisor of the query heads of softmax-attention layers.
    pub heads: u64,
    /// Distinct key/value head counts of softmax-attention layers with separate keys and values.
    pub kv_heads: Vec<u64>,
    /// Common divisor of the key, value and state heads of linear and state-space layers.
    pub state_heads: u64,
    /// Distinct state-space group counts.
    pub state_groups: Vec<u64>,
    /// Common divisor of dense and shared-expert feed-forward widths.
    pub width: u64,
    /// Common divisor of the widths of routed experts.
    pub expert_width: u64,
    /// Common divisor of the routed-expert counts (0: a dense model).
    pub experts: u64,
    /// Common divisor of the quotients experts / routing groups.
    pub expert_groups: u64,
    /// The LM head shares the embedding matrix.
    pub tied: bool,
    /// Context parallelism exchanges heads for sequence (Ulysses).
    pub cp_by_heads: bool,
    /// Expert dispatch is to be hidden behind another micro-batch.
    pub overlap_ep: bool,
    /// Pipeline stages vary slowest in the rank order.
    pub pipeline_outermost: bool,
}

impl Facts {
    /// Collect the facts of a job on `world` GPUs.
    ///
    /// # Errors
    /// When the model has no layer, or the job no GPU, token or sequence.
    pub fn new(model: &Model, cluster: &Cluster, training: &Training, world: u64) -> Result<Self> {
        for (field, value) in [
            ("gpus", world),
            ("model.layers", model.layers.len() as u64),
            ("training.seq_len", training.seq_len),
            ("training.global_batch", training.global_batch),
            ("cluster.scale_up.domain_gpus", cluster.scale_up.domain_gpus),
        ] {
            if value == 0 {
                return Err(Error::field(field, value, "must be at least 1"));
            }
        }
        if u32::try_from(world).is_err() {
            return Err(Error::field("gpus", world, "must be below 2^32"));
        }
        if training.global_batch > 1 << 40 {
            return Err(Error::field(
                "training.global_batch",
                training.global_batch,
                "must be at most 2^40",
            ));
        }
        let shape = Shape::new(model)?;
        Ok(Self {
            world,
            domain: cluster.scale_up.domain_gpus,
            layers: shape.layers,
            seq: training.seq_len,
            batch: training.global_batch,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            state_heads: shape.state_heads,
            state_groups: shape.state_groups,
            width: shape.width,
            expert_width: shape.expert_width,
            experts: shape.experts,
            expert_groups: shape.expert_groups,
            tied: shape.tied,
            cp_by_heads: training.cp_comm == CpComm::AllToAll,
            overlap_ep: training.overlap.ep,
            pipeline_outermost: training.pipeline_outermost,
        })
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub const fn is_moe(&self) -> bool {
        self.experts > 0
    }

    /// Layers of the fullest stage, ⌈L / p⌉.
    #[must_use]
    pub const fn stage_layers(&self, pp: u32) -> u64 {
        self.layers.div_ceil(pp as u64)
    }

    /// Micro-batches per step, rounded down: whole where the batch rules hold.
    #[must_use]
    pub const fn micro_batches(&self, layout: &Layout) -> u64 {
        self.batch / (layout.micro_batch as u64 * layout.dp as u64)
    }

    /// Data-parallel ranks of an expert: world / (etp · ep · pp), rounded down.
    #[must_use]
    pub const fn expert_dp(&self, layout: &Layout) -> u64 {
        self.world / (layout.etp as u64 * layout.ep as u64 * layout.pp as u64)
    }
}
