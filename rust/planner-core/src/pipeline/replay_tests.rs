use proptest::prelude::*;

use super::*;
use crate::pipeline::bubble::{self, PassTimes};

fn plan(schedule: Schedule, stages: usize, micro_batches: usize) -> Plan {
    Plan {
        schedule,
        stages,
        micro_batches,
        forward_delay_s: 0.0,
        backward_delay_s: 0.0,
    }
}

const fn chunk(forward_s: f64, backward_input_s: f64, weight_s: f64) -> ChunkTimes {
    ChunkTimes {
        forward_s,
        backward_input_s,
        weight_s,
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * (1.0 + a.abs().max(b.abs()))
}

proptest! {
    /// Equal stages, no delay: the replay is the closed form, for time and for memory.
    #[test]
    fn equal_stages_are_the_closed_forms(
        p in 1_usize..9, v in 1_usize..5, groups in 1_usize..5,
        f in 0.1_f64..4.0, b in 0.1_f64..4.0, w in 0.0_f64..4.0,
    ) {
        let m = groups * p;
        let whole = PassTimes {
            forward_s: f, backward_s: b + w, weight_s: w, overlapped_s: 0.0,
        };
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::Interleaved] {
            let v = if schedule == Schedule::Interleaved { v } else { 1 };
            let n = v as f64;
            let chunks = vec![chunk(f / n, b / n, w / n); p * v];
            let out = replay(&plan(schedule, p, m), &chunks).unwrap();
            let expected =
                bubble::pipeline_time_s(schedule, p as u32, v as u32, m as u64, whole);
            prop_assert!(close(out.makespan_s, expected), "{schedule:?} {out:?} {expected}");
            for i in 0..p {
                let held = bubble::in_flight(schedule, p as u32, v as u32, m as u64, i as u32);
                prop_assert!(close(f64::from(out.in_flight_chunks[i]) / n, held));
            }
        }
    }

    /// ZB-H1 with W ≤ F and W ≤ input gradient: (p−1)(F+B−2W); 1F1B's activations by stage, and
    /// never more than p of them until the weight gradients are done.
    #[test]
    fn zero_bubble_is_its_closed_form(
        p in 1_usize..9, extra in 0_usize..12,
        f in 0.1_f64..4.0, b in 0.1_f64..4.0, share in 0.0_f64..1.0,
    ) {
        let (m, w) = (p + extra, share * f.min(b));
        let out = replay(&plan(Schedule::ZbH1, p, m), &vec![chunk(f, b, w); p]).unwrap();
        let whole = PassTimes {
            forward_s: f, backward_s: b + w, weight_s: w, overlapped_s: 0.0,
        };
        let expected = bubble::pipeline_time_s(Schedule::ZbH1, p as u32, 1, m as u64, whole);
        prop_assert!(close(out.makespan_s, expected), "{out:?} {expected}");
        for i in 0..p {
            let held = bubble::in_flight(Schedule::ZbH1, p as u32, 1, m as u64, i as u32);
            prop_assert_eq!(f64::from(out.in_flight_chunks[i]), held);
            prop_assert!(out.held_chunks[i] <= p as u32);
        }
    }

    /// GPipe with stages that differ is a flow shop of equal jobs:
    /// Σf + (m−1)·max f + Σb + (m−1)·max b, and each hop adds its delay twice.
    #[test]
    fn uneven_gpipe_is_a_flow_shop(
        times in prop::collection::vec((0.1_f64..4.0, 0.1_f64..4.0), 1..8),
        m in 1_usize..12, delay in 0.0_f64..1.0,
    ) {
        let chunks: Vec<_> = times.iter().map(|&(f, b)| chunk(f, b, 0.0)).collect();
        let mut plan = plan(Schedule::GPipe, chunks.len(), m);
        (plan.forward_delay_s, plan.backward_delay_s) = (delay, 2.0 * delay);
        let side = |pick: fn(&(f64, f64)) -> f64| {
            let all: Vec<f64> = times.iter().map(pick).collect();
            let longest = all.iter().copied().fold(0.0, f64::max);
            all.iter().sum::<f64>() + (m as f64 - 1.0) * longest
        };
        let hops = (times.len() - 1) as f64;
        let expected = side(|t| t.0) + side(|t| t.1) + hops * 3.0 * delay;
        let out = replay(&plan, &chunks).unwrap();
        prop_assert!(close(out.makespan_s, expected), "{} {expected}", out.makespan_s);
    }

    /// Any stages: above the floor, work conserved, and no time saved by a slower pass or link.
    #[test]
    fn uneven_stages_obey_bounds(
        times in prop::collection::vec((0.1_f64..4.0, 0.1_f64..4.0, 0.0_f64..2.0), 1..7),
        m in 1_usize..12, slower in 0_usize..7, delay in 0.0_f64..1.0,
    ) {
        let chunks: Vec<_> = times.iter().map(|&(f, b, w)| chunk(f, b, w)).collect();
        let stages: Vec<_> = times.iter().map(|&(f, b, w)| PassTimes {
            forward_s: f, backward_s: b + w, weight_s: w, overlapped_s: 0.0,
        }).collect();
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
            let base = plan(schedule, chunks.len(), m);
            let out = replay(&base, &chunks).unwrap();
            prop_assert!(out.makespan_s >= bubble::pass_floor_s(schedule, &stages, m as u64) - 1e-9);
            for (idle, stage) in out.idle_s.iter().zip(&stages) {
                let busy = m as f64 * (stage.forward_s + stage.backward_s);
                prop_assert!(close(idle + busy, out.makespan_s));
            }
            let mut worse = chunks.clone();
            worse[slower % chunks.len()].backward_input_s += 0.5;
            prop_assert!(replay(&base, &worse).unwrap().makespan_s >= out.makespan_s);
            let far = Plan { forward_delay_s: delay, ..base };
            prop_assert!(replay(&far, &chunks).unwrap().makespan_s >= out.makespan_s);
        }
    }
}

#[test]
fn one_micro_batch_passes_every_stage_twice() {
    let chunks = [
        chunk(1.0, 1.5, 0.5),
        chunk(2.0, 3.0, 1.0),
        chunk(1.0, 2.0, 2.0),
    ];
    let out = replay(&plan(Schedule::OneFOneB, 3, 1), &chunks).unwrap();
    assert_eq!(out.makespan_s, 4.0 + 10.0);
    assert_eq!(out.in_flight_chunks, [1, 1, 1]);
    // Input gradients pass first; only stage 0's weight gradient is left at the end.
    let split = replay(&plan(Schedule::ZbH1, 3, 1), &chunks).unwrap();
    assert_eq!(split.makespan_s, 4.0 + 6.5 + 0.5);
}

#[test]
fn a_delay_that_does_not_hide_costs_a_round_trip_every_other_micro_batch() {
    let mut far = plan(Schedule::OneFOneB, 2, 9);
    let chunks = [chunk(1.0, 2.0, 0.0); 2];
    let near = replay(&far, &chunks).unwrap().makespan_s;
    (far.forward_delay_s, far.backward_delay_s) = (0.25, 0.25);
    let extra = replay(&far, &chunks).unwrap().makespan_s - near;
    assert!((extra - 5.0 * 0.5).abs() < 1e-12, "{extra}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let one = [chunk(1.0, 1.0, 0.0); 4];
    let wrong = [
        (plan(Schedule::OneFOneB, 0, 1), &one[..]),
        (plan(Schedule::OneFOneB, 4, 0), &one[..]),
        (plan(Schedule::OneFOneB, 3, 4), &one[..]),
        (plan(Schedule::OneFOneB, 2, 4), &one[..]),
        (plan(Schedule::Interleaved, 2, 3), &one[..]),
        (plan(Schedule::DualPipe, 4, 8), &one[..]),
        (plan(Schedule::GPipe, 1, 1), &[chunk(f64::NAN, 1.0, 0.0)]),
        (plan(Schedule::GPipe, 1, 1), &[chunk(-1.0, 1.0, 0.0)]),
    ];
    for (plan, chunks) in wrong {
        assert!(replay(&plan, chunks).is_err(), "{plan:?}");
    }
}
