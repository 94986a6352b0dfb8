//! Barriers: a collective ends with its slowest rank.
//!
//! Symbols: N ranks, q probability that a rank is delayed in one collective, D the delay, σ standard
//! deviation of a rank's arrival. Ranks are independent.

/// Probability that any rank is delayed: 1 − (1−q)^N.
///
/// ```
/// use planner_core::collectives::straggler::any_delayed_probability;
/// assert!((any_delayed_probability(1e-4, 1000) - 0.0952).abs() < 1e-4);
/// ```
#[must_use]
pub fn any_delayed_probability(q: f64, n: u64) -> f64 {
    if q >= 1.0 {
        return f64::from(u8::from(n > 0));
    }
    -(n as f64 * (-q).ln_1p()).exp_m1()
}

/// Upper bound of the expected cost of delays in one collective, s: (1 − (1−q)^N)·D.
///
/// An upper bound when D is the longest delay: the collective waits for the slowest rank once,
/// however many are late.
///
/// ```
/// use planner_core::collectives::straggler::expected_delay_s;
/// // One of 1,000 ranks retransmits for 500 ms: every rank waits 500 ms.
/// assert_eq!(expected_delay_s(1.0, 1000, 0.5), 0.5);
/// // Once in 10⁷ rank-collectives it costs 50 µs a collective on average.
/// assert!((expected_delay_s(1e-7, 1000, 0.5) - 49.9975e-6).abs() < 1e-9);
/// ```
#[must_use]
pub fn expected_delay_s(q: f64, n: u64, d_s: f64) -> f64 {
    any_delayed_probability(q, n) * d_s
}

/// Expected wait for the last of N normal arrivals, s: σ·√(2 ln N).
///
/// The leading term of the expected maximum: an upper bound for every N, 15 % high at
/// N = 1,000 and 43 % at N = 8. Source: Gumbel 1958; Boucheron et al. 2013, theorem 2.5.
///
/// ```
/// use planner_core::collectives::straggler::expected_jitter_s;
/// assert!((expected_jitter_s(1e-3, 1000) - 3.717e-3).abs() < 1e-6);
/// assert_eq!(expected_jitter_s(1e-3, 1), 0.0);
/// ```
#[must_use]
pub fn expected_jitter_s(sigma_s: f64, n: u64) -> f64 {
    if n <= 1 {
        0.0
    } else {
        sigma_s * (2.0 * (n as f64).ln()).sqrt()
    }
}

/// Mean utilisation when a collective follows every `compute_s` of useful work.
///
/// compute / (compute + expected delay): it is zero only while the ranks wait.
///
/// ```
/// use planner_core::collectives::straggler::mean_utilisation;
/// // 500 ms lost in one of a hundred 5 s steps is a loss of 0.1 %.
/// assert!((mean_utilisation(5.0, 0.01 * 0.5) - 0.999).abs() < 1e-6);
/// ```
#[must_use]
pub fn mean_utilisation(compute_s: f64, expected_delay_s: f64) -> f64 {
    compute_s / (compute_s + expected_delay_s)
}

/// Goodput over line rate of a go-back-N transport: (1−p)/(1 + p·(W−1)).
///
/// p probability that a packet is lost, W packets in flight that are sent again after a loss.
/// Selective repeat would keep 1−p. Source: Tanenbaum and Wetherall, §3.4; for RDMA, Mittal et al.
/// 2018 (IRN).
///
/// ```
/// use planner_core::collectives::straggler::go_back_n_goodput;
/// // 50 GB/s, 10 µs round trip, 4 KiB packets: about 122 in flight; 0.1 % loss costs 11 %.
/// assert!((go_back_n_goodput(1e-3, 122.0) - 0.891).abs() < 1e-3);
/// assert_eq!(go_back_n_goodput(0.0, 122.0), 1.0);
/// ```
#[must_use]
pub fn go_back_n_goodput(loss: f64, window_packets: f64) -> f64 {
    (1.0 - loss) / (1.0 + loss * (window_packets - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn more_ranks_wait_more_but_never_beyond_the_delay(
            q in 0.0_f64..1.0, n in 1_u64..100_000, d in 0.0_f64..10.0,
        ) {
            let wait = expected_delay_s(q, n, d);
            prop_assert!(wait <= d && wait <= q * n as f64 * d * (1.0 + 1e-12));
            prop_assert!(wait <= expected_delay_s(q, n + 1, d));
            prop_assert!(expected_jitter_s(d, n) <= expected_jitter_s(d, n + 1));
        }

        #[test]
        fn loss_only_hurts(p in 0.0_f64..0.5, w in 1.0_f64..1000.0) {
            prop_assert!(go_back_n_goodput(p, w) <= 1.0 - p + 1e-15);
            prop_assert!(go_back_n_goodput(p, w + 1.0) <= go_back_n_goodput(p, w));
        }
    }

    #[test]
    fn a_rare_delay_is_not_lost_to_rounding() {
        let p = any_delayed_probability(1e-18, 1000);
        assert!((p / 1e-15 - 1.0).abs() < 1e-9);
        assert_eq!(any_delayed_probability(0.0, 1_000_000), 0.0);
        assert_eq!(any_delayed_probability(1.0, 1), 1.0);
        assert_eq!(any_delayed_probability(0.3, 0), 0.0);
    }
}
