//! Devices, links and switch tiers. A datasheet peak is a fact with a source; an efficiency is a
//! fitted number: the two never share a field.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::Dtype;

/// A cluster: one device type, one scale-up domain size, one scale-out network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Display name.
    pub name: String,
    /// The accelerator.
    pub device: Device,
    /// GPUs in a node (a host).
    pub gpus_per_node: u64,
    /// NVLink, Infinity Fabric, PCIe: what joins GPUs inside a domain.
    pub scale_up: ScaleUp,
    /// What joins the domains.
    pub scale_out: ScaleOut,
    /// Price of a GPU-hour, if known.
    pub price_per_gpu_hour: Option<f64>,
    /// Standard deviation of a rank's arrival at a collective, s (0: off).
    #[serde(default)]
    pub jitter_s: f64,
    /// Probability that a rank is delayed in one collective (packet loss; 0: off).
    #[serde(default)]
    pub delay_probability: f64,
    /// Length of such a delay, s.
    #[serde(default)]
    pub delay_s: f64,
}

/// An accelerator: datasheet facts, then fitted curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name, such as `H100 SXM 80 GB`.
    pub name: String,
    /// Architecture: `volta`, `ampere`, `hopper`, `blackwell`, `ada`, `cdna3`, …
    pub architecture: String,
    /// Dense peak per format, FLOP/s.
    pub peak_flops: BTreeMap<Dtype, f64>,
    /// HBM capacity, bytes.
    pub memory_bytes: f64,
    /// HBM bandwidth, bytes/s.
    pub memory_bytes_per_s: f64,
    /// Streaming multiprocessors (compute units).
    pub sms: u64,
    /// L2 cache, bytes.
    pub l2_bytes: f64,
    /// Fitted GEMM curve per format.
    pub gemm: BTreeMap<Dtype, GemmCurve>,
    /// Fitted prefill attention per kernel library and KV format.
    #[serde(default)]
    pub prefill: Library<PrefillCurve>,
    /// Fitted decode attention per kernel library and KV format.
    #[serde(default)]
    pub decode: Library<DecodeCurve>,
    /// Fitted prefill attention of latent (MLA) layers, expanded heads.
    #[serde(default)]
    pub mla_prefill: Library<PrefillCurve>,
    /// Fitted decode attention of latent (MLA) layers, absorbed heads.
    #[serde(default)]
    pub mla_decode: Library<DecodeCurve>,
    /// What training makes of the curves.
    pub training: DeviceTraining,
}

/// How kernels inside a long training job differ from a short benchmark of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTraining {
    /// GEMM time in training (power, real operands, casts) over that of the curve, per format.
    pub gemm_ratio: BTreeMap<Dtype, f64>,
    /// Share of the bf16 peak that the attention core reaches over forward and backward.
    pub attention_efficiency: BTreeMap<AttentionKernel, f64>,
    /// Time of memory-bound operators over bytes / HBM bandwidth, device part.
    pub memory_bound_ratio: f64,
}

/// Curve of GEMM time against shape; see [`crate::kernels::gemm`] for the equation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmCurve {
    /// Rate of the tensor cores over the datasheet peak for tiles without operand traffic; what a
    /// real tile of side s reaches is `efficiency · s / (s + tile_half)`.
    pub efficiency: f64,
    /// Depth k at which half the rate is lost to prologue and epilogue.
    pub k_half: f64,
    /// Weight of wave quantisation: 0 none, 1 whole waves.
    pub wave: f64,
    /// Tile side at which half the rate is lost to operand traffic.
    pub tile_half: f64,
    /// Smallest tile of the kernel library, elements.
    pub tile_min: f64,
    /// Largest tile of the kernel library, elements.
    pub tile_max: f64,
    /// Shallowest k that the library gives to one slice of a split-k GEMM.
    pub split_k: f64,
    /// Rate lost to the power limit by a GEMM much longer than a millisecond.
    pub throttle: f64,
    /// Share of HBM bandwidth that a memory-bound GEMM reaches.
    pub memory_efficiency: f64,
    /// Fixed time of a kernel, s.
    pub base_s: f64,
    /// Bytes moved per activation to cast it into this format before the GEMM (0: no cast).
    pub cast_bytes: f64,
}

/// Generation of attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKernel {
    /// Batched GEMMs with a materialised score matrix.
    Unfused,
    /// FlashAttention-2 class.
    Flash2,
    /// FlashAttention-3 / cuDNN / FA4 class: the device's best.
    Flash3,
}

/// Curves per kernel library (`sglang/flash`, `vllm/flash`, `trtllm/trtllm`: the engine that calls
/// the kernel and the family it belongs to) and per format of keys and values.
pub type Library<Curve> = BTreeMap<String, BTreeMap<Dtype, Curve>>;

/// Curve of prefill attention; see [`crate::kernels::attention`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillCurve {
    /// Share of the bf16 peak that the core reaches at long sequences and wide heads.
    pub efficiency: f64,
    /// Keys whose time each query pays on top of its own (softmax prologue, masked tiles).
    pub seq_half: f64,
    /// Head width at which half the rate is lost to the softmax.
    pub dim_half: f64,
    /// Time of the longest query tile over that of an even share of the device.
    pub tail: f64,
    /// Fixed time of one tile of queries on one SM, s.
    pub tile_s: f64,
    /// Rate with fp8 operands over the rate with bf16 ones.
    pub fp8_ratio: f64,
    /// Share of HBM bandwidth reached on queries, keys, values and outputs.
    pub memory_efficiency: f64,
    /// Fixed time of a kernel, s.
    pub base_s: f64,
}

/// Curve of decode attention; see [`crate::kernels::attention`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeCurve {
    /// Share of HBM bandwidth reached on keys and values.
    pub memory_efficiency: f64,
    /// Share of the bf16 peak reached on scores and outputs.
    pub compute_efficiency: f64,
    /// Time of one (sequence, KV head) on one SM, s.
    pub head_s: f64,
    /// Time of one (sequence, query head) on one SM, s.
    pub query_head_s: f64,
    /// Time of one (sequence, KV head) that streams alone, over that of a fair share of HBM times
    /// the number of SMs: how little a kernel splits a long sequence.
    pub serial: f64,
    /// Time to fill the memory pipeline, s.
    pub ramp_s: f64,
    /// Fixed time of a kernel, s.
    pub base_s: f64,
}

/// Links inside a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleUp {
    /// GPUs in one domain (8 for HGX, 72 for NVL72).
    pub domain_gpus: u64,
    /// Peak of one GPU's links, bytes/s each way.
    pub bytes_per_s: f64,
    /// The switch can reduce (NVLS, SHARP).
    pub in_switch_reduction: bool,
    /// Fitted costs of collectives inside the domain.
    pub fabric: Fabric,
}

/// Links between domains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleOut {
    /// NICs in a node.
    pub nics_per_node: u64,
    /// Peak of one NIC, bytes/s each way.
    pub nic_bytes_per_s: f64,
    /// Switch tiers from the rail or leaf upwards. Empty: one non-blocking tier.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// Fitted costs of collectives between domains.
    pub fabric: Fabric,
}

/// A switch tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Name, such as `leaf` or `spine`.
    pub name: String,
    /// GPUs below one switch (or pod) of the tier.
    pub gpus: u64,
    /// Down-links over up-links: what traffic that leaves such a group is divided by (1: none).
    pub oversubscription: f64,
    /// Latency that crossing the tier adds, s.
    pub latency_s: f64,
}

/// Fitted costs of collectives on one kind of link; see [`crate::collectives::time`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Fixed time of any collective, s.
    pub base_s: f64,
    /// Time per hop of a ring, s.
    pub ring_hop_s: f64,
    /// Time per level of a tree, s.
    pub tree_hop_s: f64,
    /// Time to fill the chunk pipeline, s.
    pub ramp_s: f64,
    /// Share of the peak that all-reduce by ring or tree reaches (bus bandwidth / peak).
    pub all_reduce_efficiency: f64,
    /// Share that all-gather and reduce-scatter reach.
    pub gather_efficiency: f64,
    /// Share that all-to-all reaches.
    pub all_to_all_efficiency: f64,
    /// Share that point-to-point, broadcast and reduce reach.
    pub p2p_efficiency: f64,
    /// Time of a rank's own share in all-reduce over that of a share from the wire.
    pub all_reduce_copy_ratio: f64,
    /// The same in all-gather and reduce-scatter.
    pub gather_copy_ratio: f64,
    /// The same in all-to-all.
    pub all_to_all_copy_ratio: f64,
    /// Message bytes over time · peak in an in-switch all-reduce (0: the switch cannot reduce).
    pub in_switch_efficiency: f64,
    /// Fixed time that an in-switch all-reduce adds, s.
    pub in_switch_s: f64,
    /// Bandwidth falls as (2/ranks)^contention: 0 on a switch, more where ranks share a bus.
    pub contention: f64,
    /// Time of a collective inside a training job over that of the curve: congestion, contention
    /// with compute, late ranks.
    #[serde(default = "one")]
    pub training_ratio: f64,
    /// Fixed time of one pipeline send or receive beyond the software's, s.
    #[serde(default)]
    pub message_s: f64,
}

const fn one() -> f64 {
    1.0
}
