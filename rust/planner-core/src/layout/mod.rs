//! A layout, the rules that make it valid, and the space of all of them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub mod axes;
pub mod count;
pub mod facts;
pub mod rules;
pub mod shape;
pub mod space;
pub mod walk;

macro_rules! named_enum {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $s:literal),+ $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$vm])* #[serde(rename = $s)] $v),+ }
        impl $name {
            /// Every variant, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$v),+];
            /// Every name, in declaration order: the dictionary of the Arrow column.
            pub const NAMES: &'static [&'static str] = &[$($s),+];
            /// The name that people write.
            #[must_use]
            pub const fn name(self) -> &'static str { Self::NAMES[self as usize] }
        }
    };
}
pub(crate) use named_enum;

named_enum! {
    /// What the data-parallel group shards.
    Sharding {
        /// Nothing: gradients are all-reduced.
        None = "none",
        /// Optimizer state.
        Zero1 = "zero1",
        /// Optimizer state and gradients.
        Zero2 = "zero2",
        /// Optimizer state, gradients and parameters (ZeRO-3, FSDP).
        Zero3 = "zero3",
        /// As ZeRO-3 inside a shard group, replicated over groups.
        Hsdp = "hsdp",
    }
}

named_enum! {
    /// What the backward pass recomputes.
    Recompute {
        /// Nothing.
        None = "none",
        /// The attention core only.
        Selective = "selective",
        /// The first `recompute_layers` layers of every stage, whole.
        Block = "block",
        /// Every layer.
        Full = "full",
    }
}

named_enum! {
    /// Pipeline schedule.
    Schedule {
        /// All forwards, then all backwards.
        GPipe = "gpipe",
        /// One forward, one backward.
        OneFOneB = "1f1b",
        /// 1F1B over `vpp` virtual chunks a stage.
        Interleaved = "interleaved",
        /// Zero-bubble H1: weight gradients fill the bubble.
        ZbH1 = "zb-h1",
        /// DeepSeek's two-way pipeline: twice the parameters, p + 1 activations.
        DualPipe = "dualpipe",
    }
}

named_enum! {
    /// Why a layout is or is not feasible. Order is the order of checks.
    Status {
        /// Feasible.
        Ok = "ok",
        /// Degrees do not multiply to the number of GPUs.
        Topology = "topology",
        /// Heads, KV heads or state heads do not divide.
        Heads = "heads",
        /// Feed-forward widths do not divide.
        Width = "width",
        /// Layers do not spread over the stages.
        Layers = "layers",
        /// Experts do not divide, or the expert grid does not fit the world.
        Experts = "experts",
        /// The sequence does not divide over context and sequence parallelism.
        Sequence = "sequence",
        /// The batch does not divide over data parallelism and micro-batches.
        Batch = "batch",
        /// The schedule does not allow these stages, chunks or micro-batches.
        Schedule = "schedule",
        /// The sharding does not go with the rest of the layout.
        Sharding = "sharding",
        /// The recomputation does not go with the rest of the layout.
        Recompute = "recompute",
        /// A rule of the target framework forbids it.
        Framework = "framework",
        /// Peak memory exceeds the device.
        Memory = "memory",
    }
}

named_enum! {
    /// Whose rules a layout must obey besides the generic ones.
    Framework {
        /// No framework's.
        Generic = "generic",
        /// Megatron-LM, Megatron-Core and what is built on them.
        Megatron = "megatron",
        /// torchtitan: PyTorch FSDP2 and pipelining.
        TorchTitan = "torchtitan",
        /// DeepSpeed: ZeRO, pipeline module, Ulysses.
        DeepSpeed = "deepspeed",
    }
}

/// One way to lay the job out: every degree of freedom that the planner searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Tensor-parallel degree t.
    pub tp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Tensor-parallel degree inside an expert.
    pub etp: u32,
    /// Pipeline stages p.
    pub pp: u32,
    /// Data-parallel degree.
    pub dp: u32,
    /// Virtual chunks per stage v.
    pub vpp: u32,
    /// Sequences in a micro-batch.
    pub micro_batch: u32,
    /// Sequence parallelism (norms and dropout split over tensor-parallel ranks).
    pub sequence_parallel: bool,
    /// What is recomputed.
    pub recompute: Recompute,
    /// Layers per stage that are recomputed whole, when `recompute` is `block`.
    pub recompute_layers: u32,
    /// What is sharded over data-parallel ranks.
    pub sharding: Sharding,
    /// Ranks in a shard group (dp·cp, or fewer for HSDP).
    pub shard_group: u32,
    /// Pipeline schedule.
    pub schedule: Schedule,
}

impl Layout {
    /// GPUs that the layout occupies: tp · cp · pp · dp.
    #[must_use]
    pub const fn world(&self) -> u64 {
        self.tp as u64 * self.cp as u64 * self.pp as u64 * self.dp as u64
    }

    /// Micro-batches per step m = global batch / (micro-batch · dp).
    ///
    /// # Errors
    /// When the batch does not divide.
    pub fn micro_batches(&self, global_batch: u64) -> Result<u64> {
        let per_pass = u64::from(self.micro_batch) * u64::from(self.dp);
        if per_pass == 0 || !global_batch.is_multiple_of(per_pass) {
            return Err(Error::field(
                "global_batch",
                global_batch,
                format!("must be a multiple of micro_batch · dp = {per_pass}"),
            ));
        }
        Ok(global_batch / per_pass)
    }
}
