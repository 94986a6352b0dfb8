//! Values, limits and properties of the collective times.

use super::*;
use crate::cluster::{Device, DeviceTraining, ScaleOut, ScaleUp, Tier};
use proptest::prelude::*;

fn fabric(efficiency: f64) -> Fabric {
    Fabric {
        base_s: 0.0,
        ring_hop_s: 0.0,
        tree_hop_s: 0.0,
        ramp_s: 0.0,
        all_reduce_efficiency: efficiency,
        gather_efficiency: efficiency,
        all_to_all_efficiency: efficiency,
        p2p_efficiency: efficiency,
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

fn cluster() -> Cluster {
    Cluster {
        name: "test".into(),
        device: Device {
            name: "test".into(),
            architecture: "test".into(),
            peak_flops: [].into(),
            memory_bytes: 1.0,
            memory_bytes_per_s: 1.0,
            sms: 1,
            l2_bytes: 1.0,
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
            fabric: fabric(1.0),
        },
        scale_out: ScaleOut {
            nics_per_node: 8,
            nic_bytes_per_s: 50e9,
            tiers: vec![],
            fabric: fabric(1.0),
        },
        price_per_gpu_hour: None,
        jitter_s: 0.0,
        delay_probability: 0.0,
        delay_s: 0.0,
    }
}

const OPERATIONS: [Operation; 6] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Rooted,
    Operation::PointToPoint,
];

fn close(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
}

#[test]
fn ideal_links_move_the_closed_form_volume() {
    let c = cluster();
    let inside = Group::strided(8, 1, 8);
    close(
        collective_s(Operation::AllReduce, 450e6, &inside, &c),
        1.75e-3,
    );
    close(
        collective_s(Operation::AllGather, 450e6, &inside, &c),
        0.875e-3,
    );
    close(
        collective_s(Operation::PointToPoint, 450e6, &inside, &c),
        1e-3,
    );
    // One rank a domain, 8 ranks: everything crosses the GPU's own NIC.
    let across = Group::strided(8, 8, 8);
    close(
        collective_s(Operation::AllReduce, 50e6, &across, &c),
        1.75e-3,
    );
}

#[test]
fn a_group_over_two_domains_uses_every_nic() {
    let c = cluster();
    let t = collective_s(Operation::AllReduce, 400e6, &Group::strided(16, 1, 8), &c);
    // 400 MB over 8 NICs of 50 GB/s: 1 ms out, 1.56 ms in, joined (1 + 1.56⁸)^⅛ = 1.56 ms.
    let inside: f64 = 1.75 * 400e6 / 450e9;
    close(t, (1e-3_f64.powi(8) + inside.powi(8)).powf(0.125));
    let all_slow = 1.875 * 400e6 / 50e9;
    assert!(t < 0.2 * all_slow);
}

#[test]
fn two_gpus_that_share_a_nic_halve_it() {
    let mut c = cluster();
    let group = Group::strided(64, 8, 8);
    let whole = collective_s(Operation::AllGather, 1e9, &group, &c);
    c.scale_out.nics_per_node = 4;
    close(
        collective_s(Operation::AllGather, 1e9, &group, &c),
        2.0 * whole,
    );
}

#[test]
fn oversubscription_divides_what_crosses_the_tier() {
    let mut c = cluster();
    c.scale_out.tiers = vec![Tier {
        name: "leaf".into(),
        gpus: 64,
        oversubscription: 4.0,
        latency_s: 0.0,
    }];
    let plain = cluster();
    // Below one leaf: nothing crosses.
    let below = Group::strided(8, 8, 8);
    let op = Operation::AllGather;
    close(
        collective_s(op, 1e9, &below, &c),
        collective_s(op, 1e9, &below, &plain),
    );
    // One rank a leaf: all of the ring crosses.
    let spread = Group::strided(8, 64, 8);
    close(
        collective_s(op, 1e9, &spread, &c),
        4.0 * collective_s(op, 1e9, &spread, &plain),
    );
    // Eight ranks a leaf: one in eight hops crosses, the spine carries it.
    let dense = Group::strided(64, 8, 8);
    close(
        collective_s(op, 1e9, &dense, &c),
        collective_s(op, 1e9, &dense, &plain),
    );
}

#[test]
fn one_rank_or_nothing_to_send_is_free() {
    let c = cluster();
    for op in OPERATIONS {
        assert_eq!(collective_s(op, 1e9, &Group::strided(1, 1, 8), &c), 0.0);
        assert_eq!(collective_s(op, 0.0, &Group::strided(16, 1, 8), &c), 0.0);
    }
}

proptest! {
    #[test]
    fn grows_with_bytes(
        bytes in 1.0..1e10_f64, ranks in 2_u64..600, stride in 1_u64..16,
    ) {
        let mut c = cluster();
        for f in [&mut c.scale_up.fabric, &mut c.scale_out.fabric] {
            f.base_s = 4e-6;
            f.ring_hop_s = 1e-6;
            f.tree_hop_s = 5e-6;
            f.ramp_s = 1e-5;
        }
        let group = Group::strided(ranks, stride, 8);
        for op in OPERATIONS {
            let t = collective_s(op, bytes, &group, &c);
            let twice = collective_s(op, 2.0 * bytes, &group, &c);
            prop_assert!(t.is_finite() && t > 0.0);
            prop_assert!(twice > t && twice < 2.0 * t + 1e-12);
        }
    }

    /// All-reduce costs no more than a reduce-scatter and an all-gather.
    #[test]
    fn all_reduce_is_at_most_its_halves(bytes in 1e3..1e10_f64, ranks in 2_u64..600) {
        let c = cluster();
        let group = Group::strided(ranks, 1, 8);
        let whole = collective_s(Operation::AllReduce, bytes, &group, &c);
        let halves = collective_s(Operation::ReduceScatter, bytes, &group, &c)
            + collective_s(Operation::AllGather, bytes, &group, &c);
        prop_assert!(whole <= halves * (1.0 + 1e-9));
    }
}
