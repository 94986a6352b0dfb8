//! The ten quoted rules that need care, as `docs/quoted-rules.md` states them. Same order.

use planner_core::collectives::tensor_parallel::{self as tp, Operator};
use planner_core::collectives::volume::{all_reduce_bytes, reduce_scatter_bytes};
use planner_core::collectives::{data_parallel as dp, expert_parallel as ep, straggler};
use planner_core::layout::Schedule;
use planner_core::memory::{kv, zero};
use planner_core::pipeline::bubble;

#[test]
fn rule_1_the_kv_cache_of_a_70b_model() {
    let total = |heads| 2048.0 * kv::per_token_bytes(80, heads, 128, 2.0, 1);
    assert_eq!(total(8), 671_088_640.0); // 0.671 GB, not 10.5
    assert_eq!(2.0 * total(8), 1_342_177_280.0); // the printed product, one factor 2 too many
    assert_eq!(2.0 * total(64), 10_737_418_240.0); // 10.7 GB needs no GQA and a factor 2 too many
}

#[test]
fn rule_2_two_all_reduces_each_way() {
    let plain = tp::layer_traffic(8, 1e6, false, false);
    let split = tp::layer_traffic(8, 1e6, true, false);
    assert_eq!(
        (plain.forward_collectives, plain.backward_collectives),
        (2, 2)
    );
    assert_eq!(
        (split.forward_collectives, split.backward_collectives),
        (4, 4)
    );
    assert_eq!(plain.forward_bytes, split.forward_bytes);
}

#[test]
fn rule_3_zero_3_moves_half_as_much_again() {
    let plain = dp::ddp(70e9, 64, 2.0).total_bytes();
    let ratio = |t: dp::DataParallelTraffic| t.total_bytes() / plain;
    assert!((ratio(dp::zero_1_2(70e9, 64, 2.0, 2.0)) - 1.0).abs() < 1e-12);
    assert!((ratio(dp::zero_3(70e9, 64, 2.0, 2.0, 1, false)) - 1.5).abs() < 1e-12);
}

#[test]
fn rule_4_interleaving_divides_the_time_not_the_fraction() {
    let fraction = |v| bubble::bubble_fraction(Schedule::Interleaved, 8, v, 8).unwrap();
    assert!((fraction(1) - 0.467).abs() < 5e-4);
    assert!((fraction(4) - 0.179).abs() < 5e-4);
    assert!((fraction(1) / 4.0 - 0.117).abs() < 5e-4); // what the quoted rule says
    let t = bubble::PassTimes {
        forward_s: 1.0,
        backward_s: 2.0,
        ..Default::default()
    };
    let time = |v| bubble::bubble_time_s(Schedule::Interleaved, 8, v, t);
    assert_eq!(time(1), 4.0 * time(4));
}

#[test]
fn rule_5_group_scales_cost_three_percent() {
    let scales = zero::group_scale_bytes(70e9, 128, 2.0);
    assert_eq!(scales / zero::weight_bytes(70e9, 0.5, 1), 0.03125);
    assert!((scales / zero::weight_bytes(70e9, 2.0, 1) - 0.0078).abs() < 1e-4);
    assert!(zero::group_scale_bytes(70e9, 128, 2.5) > scales); // with a 4-bit zero point
}

#[test]
fn rule_6_the_all_to_all_volume_is_an_upper_bound() {
    let upper = ep::dispatch_bytes(4096, 8, 7168, 1.0);
    assert_eq!(ep::remote_dispatch_bytes(upper, 64), upper * 63.0 / 64.0);
    let node = ep::node_dispatch_bytes(4096, 7168, 1.0, (256, 8, 8));
    assert!((node / upper - 0.579).abs() < 1e-3);
}

#[test]
fn rule_7_conjugates() {
    assert_eq!(Operator::AllReduce.conjugate(), Operator::Identity);
    assert_eq!(Operator::Identity.conjugate(), Operator::AllReduce);
    assert_eq!(Operator::AllGather.conjugate(), Operator::ReduceScatter);
    assert_eq!(Operator::ReduceScatter.conjugate(), Operator::AllGather);
}

#[test]
fn rule_8_two_is_the_size_of_an_element() {
    let message = tp::message_bytes(1, 4096, 8192, 2.0);
    assert_eq!(message, 2.0 * 4096.0 * 8192.0);
    assert_eq!(all_reduce_bytes(8, message), 1.75 * message);
    assert_eq!(tp::message_bytes(1, 4096, 8192, 1.0), message / 2.0); // one byte in fp8
    assert_eq!(
        reduce_scatter_bytes(8, message) * 2.0,
        all_reduce_bytes(8, message)
    );
}

#[test]
fn rule_9_kv_heads_replicate() {
    let rank = |t| kv::per_token_bytes(80, 8, 128, 2.0, t);
    assert_eq!(rank(8), rank(1) / 8.0);
    assert_eq!(rank(16), rank(8));
    assert_eq!(kv::mla_per_token_bytes(61, 512, 64, 2.0), 70_272.0); // on every rank
}

#[test]
fn rule_10_utilisation_is_zero_for_half_a_second() {
    assert_eq!(straggler::expected_delay_s(1.0, 1000, 0.5), 0.5);
    let mean = straggler::mean_utilisation(5.0, straggler::expected_delay_s(1e-6, 1000, 0.5));
    assert!(mean > 0.9999);
}
