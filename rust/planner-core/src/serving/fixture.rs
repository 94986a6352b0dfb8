//! A small world for the tests of this room: one model of each sort, a GPU, numbers.

use super::costs::{Costs, Role, Setting};
use super::deployment::{Backend, Engine, Precision};
use super::hardware::{Hardware, Operators};
use super::routing::Routing;
use super::software::Software;
use crate::cluster::{Cluster, Device, DeviceTraining, Fabric, ScaleOut, ScaleUp};
use crate::model::tests::{attention, model, only};
use crate::model::{Dense, FeedForward, LayerKind, Mixer, Mla, Model, Moe, Span};
use crate::units::Dtype;

/// Round numbers.
pub(crate) const HARDWARE: Hardware = Hardware {
    weight_read: 0.8,
    weight_read_16_bit: 1.0,
    weight_read_4_bit: 1.0,
    expert_read: 0.8,
    expert_read_4_bit: 1.0,
    expert_read_weight_only: 0.4,
    kv_read: 0.8,
    gemm_rate: 0.5,
    expert_rate: 0.5,
    latent_rate: 0.5,
    prefill_gemm_rate: 0.5,
    prefill_expert_rate: 0.25,
    prefill_attention_rate: 0.5,
    prefill_4_bit: 1.0,
    prefill_expert_8_bit: 1.0,
    weight_only_rate: 1.0,
    link_rate: 0.5,
    elementwise_passes: 10.0,
    expert_row_passes: 0.0,
    all_reduce_s: 5e-6,
    latency_per_doubling: 0.15,
    operator_ratio: 1.0,
    operators: Operators {
        attention: 10.0,
        latent: 30.0,
        linear: 50.0,
        indexer: 70.0,
        dense: 4.0,
        moe: 12.0,
        choice: 1.0,
        shared: 0.0,
        weight_only: 0.0,
        cast_fp8_block: 5.0,
        cast_fp4: 2.0,
    },
};

/// Round numbers.
pub(crate) const SOFTWARE: Software = Software {
    weight_read: 1.0,
    expert_read: 1.0,
    kv_read: 1.0,
    prefill_rate: 1.0,
    operator_s: 1e-6,
    all_reduce_ratio: 1.0,
    all_to_all_ratio: 4.0,
    step_s: 1e-3,
    sequence_s: 5e-6,
    launch_s: 1e-5,
    pass_s: 1e-3,
    ttft_s: 20e-3,
    ttft_per_token_s: 1e-6,
    speculative_ttft_s: 0.0,
    mixed_decode_share: 1.0,
    acceptance: 0.75,
    draft_s: 3e-4,
    disaggregated_prefill_rate: 1.0,
    transfer_s: 5e-3,
    transfer_bytes_per_s: 20e9,
    disaggregated_ttft_s: 60e-3,
};

fn fabric() -> Fabric {
    Fabric {
        base_s: 1e-5,
        ring_hop_s: 0.0,
        tree_hop_s: 0.0,
        ramp_s: 0.0,
        all_reduce_efficiency: 1.0,
        gather_efficiency: 1.0,
        all_to_all_efficiency: 1.0,
        p2p_efficiency: 1.0,
        all_reduce_copy_ratio: 0.0,
        gather_copy_ratio: 0.0,
        all_to_all_copy_ratio: 0.0,
        in_switch_efficiency: 0.0,
        in_switch_s: 0.0,
        contention: 0.0,
        training_ratio: 1.0,
        message_s: 0.0,
    }
}

/// Nodes of eight GPUs of 4 TB/s, 1 PFLOP/s in 16 bits, 2 PFLOP/s in 8.
pub(crate) fn cluster() -> Cluster {
    Cluster {
        name: "test".into(),
        device: Device {
            name: "test".into(),
            architecture: "hopper".into(),
            peak_flops: [
                (Dtype::Bf16, 1e15),
                (Dtype::Fp8, 2e15),
                (Dtype::Fp8Block, 2e15),
            ]
            .into(),
            memory_bytes: 140e9,
            memory_bytes_per_s: 4e12,
            sms: 132,
            l2_bytes: 50e6,
            gemm: [].into(),
            prefill: [].into(),
            decode: [].into(),
            mla_prefill: [].into(),
            mla_decode: [].into(),
            training: DeviceTraining {
                gemm_ratio: [].into(),
                attention_efficiency: [].into(),
                memory_bound_ratio: 1.0,
            },
        },
        gpus_per_node: 8,
        scale_up: ScaleUp {
            domain_gpus: 8,
            bytes_per_s: 450e9,
            in_switch_reduction: false,
            fabric: fabric(),
        },
        scale_out: ScaleOut {
            nics_per_node: 8,
            nic_bytes_per_s: 50e9,
            tiers: vec![],
            fabric: fabric(),
        },
        price_per_gpu_hour: None,
        jitter_s: 0.0,
        delay_probability: 0.0,
        delay_s: 0.0,
    }
}

/// 32 layers of 32 query and 8 KV heads of 128, MLP of 14,336.
pub(crate) fn dense() -> Model {
    let kind = LayerKind {
        feed_forward: Some(FeedForward::Dense(Dense {
            intermediate: 14_336,
            gated: true,
            bias_params: 0,
        })),
        ..only(attention(32, 8, 128))
    };
    model(vec![kind], 32)
}

/// 32 layers of latent attention with 128 heads and 256 experts, 8 a token.
pub(crate) fn latent_moe() -> Model {
    let kind = LayerKind {
        mixer: Some(Mixer::Mla(Mla {
            heads: 128,
            q_lora_rank: 1536,
            kv_lora_rank: 512,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
            span: Span::Full,
            bias_params: 0,
            head_params: 0,
            output_gate: false,
            indexer: None,
        })),
        feed_forward: Some(FeedForward::Moe(Moe {
            experts: 256,
            top_k: 8,
            intermediate: 2048,
            expert_hidden: 4096,
            gated: true,
            expert_bias_params: 0,
            shared_intermediate: 2048,
            latent_params: 0,
            router_params: 256 * 4096,
            groups: 8,
            top_groups: 4,
        })),
        ..only(attention(1, 1, 1))
    };
    model(vec![kind], 32)
}

/// Everything in 8 bits.
pub(crate) const FP8: Precision = Precision {
    attention: Dtype::Fp8Block,
    dense: Dtype::Fp8Block,
    experts: Dtype::Fp8Block,
    kv: Dtype::Fp8,
};

/// An engine of `tp` GPUs, experts cut like the rest.
pub(crate) const fn engine(tp: u32) -> Engine {
    Engine {
        tp,
        pp: 1,
        attention_dp: 1,
        pcp: 1,
        ep: 1,
        moe_tp: tp,
        dcp: 1,
        max_batch: 256,
        max_batched_tokens: 8192,
        block_tokens: 16,
        recv_interval: 1,
        memory_share: 0.9,
        spec_tokens: 0,
        redundant_experts: 0,
    }
}

/// Costs with the numbers above.
pub(crate) fn costs(model: &Model, engine: &Engine) -> Costs {
    let cluster = cluster();
    let setting = Setting {
        model,
        cluster: &cluster,
        hardware: &HARDWARE,
        software: &SOFTWARE,
        backend: Backend::Vllm,
        routing: Routing::UNIFORM,
        measured: None,
    };
    Costs::new(&setting, &FP8, engine, Role::Both).unwrap()
}
