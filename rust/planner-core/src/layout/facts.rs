//! The facts of a model, a job and a cluster that rules ask about, each computed once.

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::layout::shape::Shape;
use crate::model::Model;
use crate::training::workload::{CpComm, Training};

/// What rules know besides the layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// GPUs in the job.
    pub world: u64,
    /// GPUs in an NVLink domain.
    pub domain: u64,
    /// Sequence length, tokens.
    pub seq: u64,
    /// Sequences in a step.
    pub batch: u64,
    /// What of the model divides.
    pub shape: Shape,
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
        Ok(Self {
            world,
            domain: cluster.scale_up.domain_gpus,
            seq: training.seq_len,
            batch: training.global_batch,
            shape: Shape::new(model)?,
            cp_by_heads: training.cp_comm == CpComm::AllToAll,
            overlap_ep: training.overlap.ep,
            pipeline_outermost: training.pipeline_outermost,
        })
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub const fn is_moe(&self) -> bool {
        self.shape.experts > 0
    }

    /// Layers of the fullest stage, ⌈L / p⌉.
    #[must_use]
    pub const fn stage_layers(&self, pp: u32) -> u64 {
        self.shape.layers.div_ceil(pp as u64)
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
