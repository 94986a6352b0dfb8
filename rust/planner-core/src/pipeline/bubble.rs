//! Closed forms of pipeline parallelism for equal stages.
//!
//! Symbols: p stages, m micro-batches, v virtual chunks a stage, F forward and B whole backward time
//! of one micro-batch on one stage (all its chunks), W the weight-gradient part of B, F&B a forward
//! and a backward overlapped, i a stage counted from 0.
//!
//! Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (1F1B, interleaved 1F1B); Qi et al. 2024
//! (zero bubble); DeepSeek-V3 technical report 2024 (DualPipe).

use crate::layout::Schedule;

/// Times of one micro-batch on one stage, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassTimes {
    /// Forward F.
    pub forward_s: f64,
    /// Whole backward B, weight gradient included.
    pub backward_s: f64,
    /// Weight-gradient part W of the backward.
    pub weight_s: f64,
    /// A forward and a backward overlapped, F&B (DualPipe only).
    pub overlapped_s: f64,
}

/// Bubble over ideal time: (p−1)/m, interleaved (p−1)/(v·m).
///
/// Ideal time is m·(F+B). For ZB-H1 and DualPipe the ratio depends on F, B and W: use
/// [`bubble_time_s`]; this function returns `None` for them.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::bubble_ratio};
/// assert_eq!(bubble_ratio(Schedule::OneFOneB, 8, 1, 8), Some(0.875));
/// assert_eq!(bubble_ratio(Schedule::Interleaved, 8, 4, 8), Some(0.21875));
/// ```
#[must_use]
pub fn bubble_ratio(schedule: Schedule, p: u32, v: u32, m: u64) -> Option<f64> {
    let stages = f64::from(p) - 1.0;
    match schedule {
        Schedule::GPipe | Schedule::OneFOneB => Some(stages / m as f64),
        Schedule::Interleaved => Some(stages / (f64::from(v) * m as f64)),
        Schedule::ZbH1 | Schedule::DualPipe => None,
    }
}

/// Bubble as a fraction of the step: (p−1)/(m+p−1), interleaved (p−1)/(v·m+p−1).
///
/// Interleaving divides the bubble *time* by v, not this fraction: with p = 8, m = 8 it goes from
/// 46.7 % to 17.9 % at v = 4, not to 11.7 %.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::bubble_fraction};
/// let plain = bubble_fraction(Schedule::OneFOneB, 8, 1, 8).unwrap();
/// let interleaved = bubble_fraction(Schedule::Interleaved, 8, 4, 8).unwrap();
/// assert!((plain - 7.0 / 15.0).abs() < 1e-15);
/// assert!((interleaved - 7.0 / 39.0).abs() < 1e-15);
/// ```
#[must_use]
pub fn bubble_fraction(schedule: Schedule, p: u32, v: u32, m: u64) -> Option<f64> {
    bubble_ratio(schedule, p, v, m).map(|ratio| ratio / (1.0 + ratio))
}

/// Idle time of a stage in one step, s.
///
/// | schedule | bubble time |
/// |---|---|
/// | GPipe, 1F1B | (p−1)(F+B) |
/// | interleaved | (p−1)(F+B)/v |
/// | ZB-H1 | (p−1)(F+B−2W) |
/// | DualPipe | (p/2−1)(F&B + B − 3W) |
///
/// A negative value means that the weight gradients more than fill the bubble: 0 is returned.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::{bubble_time_s, PassTimes}};
/// let t = PassTimes { forward_s: 1.0, backward_s: 2.0, weight_s: 1.0, overlapped_s: 2.5 };
/// assert_eq!(bubble_time_s(Schedule::OneFOneB, 4, 1, t), 9.0);
/// assert_eq!(bubble_time_s(Schedule::Interleaved, 4, 2, t), 4.5);
/// assert_eq!(bubble_time_s(Schedule::ZbH1, 4, 1, t), 3.0); // a third of 1F1B
/// assert_eq!(bubble_time_s(Schedule::DualPipe, 4, 1, t), 1.5);
/// ```
#[must_use]
pub fn bubble_time_s(schedule: Schedule, p: u32, v: u32, t: PassTimes) -> f64 {
    let stages = f64::from(p) - 1.0;
    let both = t.forward_s + t.backward_s;
    let time = match schedule {
        Schedule::GPipe | Schedule::OneFOneB => stages * both,
        Schedule::Interleaved => stages * both / f64::from(v),
        Schedule::ZbH1 => stages * (both - 2.0 * t.weight_s),
        Schedule::DualPipe => {
            (f64::from(p) / 2.0 - 1.0) * (t.overlapped_s + t.backward_s - 3.0 * t.weight_s)
        }
    };
    time.max(0.0)
}

/// Micro-batches whose activations stage i holds at its peak, in stage-equivalents.
///
/// | schedule | in flight |
/// |---|---|
/// | GPipe | m |
/// | 1F1B, ZB-H1 | min(p−i, m) |
/// | interleaved | (2(p−i−1) + (v−1)p + 1)/v, at most m |
/// | DualPipe | p + 1, at most m (for twice the parameters) |
///
/// A chunk holds 1/v of a stage's layers, hence the division by v. On stage 0 interleaving holds
/// p·(1+(p−1)/(p·v)).
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::in_flight};
/// assert_eq!(in_flight(Schedule::GPipe, 4, 1, 16, 0), 16.0);
/// assert_eq!(in_flight(Schedule::OneFOneB, 4, 1, 16, 1), 3.0);
/// assert_eq!(in_flight(Schedule::Interleaved, 4, 2, 16, 0), 5.5); // 4·(1+3/8)
/// assert_eq!(in_flight(Schedule::DualPipe, 8, 1, 64, 3), 9.0);
/// ```
#[inline]
#[must_use]
pub fn in_flight(schedule: Schedule, p: u32, v: u32, m: u64, i: u32) -> f64 {
    let after = f64::from(p) - f64::from(i) - 1.0;
    let held = match schedule {
        Schedule::GPipe => m as f64,
        Schedule::OneFOneB | Schedule::ZbH1 => after + 1.0,
        Schedule::Interleaved => {
            let v = f64::from(v);
            (2.0 * after + (v - 1.0) * f64::from(p) + 1.0) / v
        }
        Schedule::DualPipe => f64::from(p) + 1.0,
    };
    held.min(m as f64)
}

/// Copies of a stage's parameters that a rank holds: DualPipe 2, the others 1.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::parameter_copies};
/// assert_eq!(parameter_copies(Schedule::DualPipe), 2.0);
/// ```
#[must_use]
pub const fn parameter_copies(schedule: Schedule) -> f64 {
    match schedule {
        Schedule::DualPipe => 2.0,
        Schedule::GPipe | Schedule::OneFOneB | Schedule::Interleaved | Schedule::ZbH1 => 1.0,
    }
}

/// Time of a step's passes with equal stages, s: m·(F+B) + bubble time.
///
/// DualPipe's ideal time is m·(F+B) less what overlapping saves; it is m·F&B here.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::{pipeline_time_s, PassTimes}};
/// let t = PassTimes { forward_s: 1.0, backward_s: 2.0, ..Default::default() };
/// assert_eq!(pipeline_time_s(Schedule::OneFOneB, 4, 1, 8, t), 33.0);
/// ```
#[must_use]
pub fn pipeline_time_s(schedule: Schedule, p: u32, v: u32, m: u64, t: PassTimes) -> f64 {
    let one = match schedule {
        Schedule::DualPipe => t.overlapped_s,
        _ => t.forward_s + t.backward_s,
    };
    m as f64 * one + bubble_time_s(schedule, p, v, t)
}

/// Least time of a step's passes, s, for stages that differ.
///
/// GPipe, 1F1B: max over i of Σ_{j<i} (F_j + B_j) + m·(F_i + B_i), since the first forward of stage i
/// has passed the stages before it and its last backward has still to pass them. ZB-H1 may run
/// weight gradients last: max over i of Σ_{j<i} F_j + m·(F_i + B_i) and
/// Σ_{j<i} (F_j + B_j − W_j) + m·(F_i + B_i − W_i). Interleaved, DualPipe (F&B in
/// place of F + B): the busiest stage. A proof
/// that a layout cannot win may rest on it.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::bubble::{pass_floor_s, PassTimes}};
/// let t = |f| PassTimes { forward_s: f, backward_s: 2.0 * f, weight_s: f, ..Default::default() };
/// let stages = [t(1.0), t(1.0), t(2.0)];
/// assert_eq!(pass_floor_s(Schedule::OneFOneB, &stages, 4), 6.0 + 24.0);
/// assert_eq!(pass_floor_s(Schedule::ZbH1, &stages, 4), 2.0 + 24.0);
/// ```
#[must_use]
pub fn pass_floor_s(schedule: Schedule, stages: &[PassTimes], m: u64) -> f64 {
    let m = m as f64;
    let (mut forward, mut input) = (0.0, 0.0);
    let mut floor: f64 = 0.0;
    for t in stages {
        let both = t.forward_s + t.backward_s;
        let bound = match schedule {
            Schedule::GPipe | Schedule::OneFOneB => forward + input + m * both,
            Schedule::ZbH1 => (forward + m * both).max(forward + input + m * (both - t.weight_s)),
            Schedule::Interleaved => m * both,
            Schedule::DualPipe => m * t.overlapped_s,
        };
        floor = floor.max(bound);
        forward += t.forward_s;
        input += t.backward_s
            - if schedule == Schedule::ZbH1 {
                t.weight_s
            } else {
                0.0
            };
    }
    floor
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: PassTimes = PassTimes {
        forward_s: 1.0,
        backward_s: 2.0,
        weight_s: 1.0,
        overlapped_s: 2.6,
    };

    #[test]
    fn interleaving_divides_the_time_by_v_but_not_the_fraction() {
        let plain = bubble_time_s(Schedule::Interleaved, 8, 1, T);
        assert_eq!(plain, 4.0 * bubble_time_s(Schedule::Interleaved, 8, 4, T));
        let fraction = |v| bubble_fraction(Schedule::Interleaved, 8, v, 8).unwrap();
        assert!((fraction(1) - 0.4667).abs() < 1e-4);
        assert!((fraction(4) - 0.1795).abs() < 1e-4);
        assert!((fraction(4) - fraction(1) / 4.0).abs() > 0.06);
    }

    #[test]
    fn one_stage_has_no_bubble_and_many_micro_batches_hide_it() {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::Interleaved] {
            assert_eq!(bubble_ratio(schedule, 1, 1, 8), Some(0.0));
            assert!(bubble_fraction(schedule, 8, 1, 1_000_000).unwrap() < 1e-5);
            assert_eq!(bubble_time_s(schedule, 1, 1, T), 0.0);
        }
        assert_eq!(bubble_time_s(Schedule::ZbH1, 1, 1, T), 0.0);
        assert_eq!(bubble_time_s(Schedule::DualPipe, 2, 1, T), 0.0);
    }

    #[test]
    fn ratio_and_fraction_tell_the_same_story() {
        let ratio = bubble_ratio(Schedule::Interleaved, 8, 2, 16).unwrap();
        let step = pipeline_time_s(Schedule::Interleaved, 8, 2, 16, T);
        let bubble = bubble_time_s(Schedule::Interleaved, 8, 2, T);
        assert!((ratio * 16.0 * 3.0 - bubble).abs() < 1e-12);
        let fraction = bubble_fraction(Schedule::Interleaved, 8, 2, 16).unwrap();
        assert!((fraction - bubble / step).abs() < 1e-15);
    }

    #[test]
    fn in_flight_never_exceeds_the_micro_batches() {
        for &schedule in Schedule::ALL {
            for i in 0..8 {
                assert!(in_flight(schedule, 8, 2, 4, i) <= 4.0);
            }
        }
        assert_eq!(
            in_flight(Schedule::Interleaved, 8, 4, 64, 0),
            8.0 * (1.0 + 7.0 / 32.0)
        );
        assert_eq!(in_flight(Schedule::Interleaved, 8, 1, 64, 7), 1.0);
    }
}
