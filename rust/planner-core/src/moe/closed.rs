//! Imbalance in closed form: how much fuller than the mean is the fullest rank?

use super::extremes::{Moments, NormalMax, expected_max, expected_max_unequal};
use super::routing::Routing;

/// Expected load of the fullest rank over the mean load, for a contiguous placement of `experts`
/// on `ep` ranks with `tokens_per_rank` tokens on each rank.
///
/// ```text
/// T = tokens_per_rank·R      m = E/R experts on a rank     μ = T·k/R
/// uniform:    σ² = μ·(E−k)/(E−1)                                  (R free bins)
/// Dirichlet:  σ² = μ·(E−k)/(E−1) + μ²/(mα),  the share of a rank is Gamma(mα)/(Eα)
/// others:     σ_r² = T·E/(E−1)·Σ π_e(1−π_e),  π_e = k·share_e, averaged over layers
/// result = E[max of R bins]/μ ≤ min(R, E/k)
/// ```
///
/// Symbols: E experts, k experts per token, R ranks. Unit: 1. For a Zipf or lognormal model the
/// popular experts are spread over the ranks at random; recorded counts stand as they are.
/// Measured against Monte-Carlo (tests): within 1 % where a rank's mean load is at least 4 tokens.
/// E that R does not divide: the fullest rank holds ⌈E/R⌉ experts and the mean is over R.
///
/// ```
/// use planner_core::moe::{Routing, imbalance};
/// let x = imbalance(&Routing::Uniform, 256, 8, 32, 128.0);
/// assert!((x - 1.065).abs() < 0.004); // Monte-Carlo of 4,096 tokens: 1.0651 ± 0.0037
/// assert_eq!(imbalance(&Routing::Uniform, 256, 8, 1, 128.0), 1.0);
/// ```
#[must_use]
pub fn imbalance(
    routing: &Routing,
    experts: u32,
    top_k: u32,
    ep: u32,
    tokens_per_rank: f64,
) -> f64 {
    match routing.unbiased().1 {
        Routing::Uniform | Routing::Dirichlet { .. } => symmetric(
            routing,
            experts,
            top_k,
            tokens_per_rank,
            &NormalMax::of(ep.clamp(1, experts.max(1))),
        ),
        _ => {
            let rows = routing.shares(experts, top_k);
            let sum: f64 = rows
                .iter()
                .map(|s| of_shares(s, top_k, ep, tokens_per_rank))
                .sum();
            sum / rows.len().max(1) as f64
        }
    }
}

/// Rows of the fullest rank over the mean with shared experts counted: S experts that take every
/// token of the rank beside the k routed choices dilute the imbalance to (x·k + S)/(k + S).
///
/// ```
/// use planner_core::moe::closed::with_shared;
/// assert_eq!(with_shared(1.8, 8, 0), 1.8);
/// assert!((with_shared(1.9, 8, 1) - 1.8).abs() < 1e-12);
/// ```
#[must_use]
pub fn with_shared(imbalance: f64, top_k: u32, shared: u32) -> f64 {
    let (k, s) = (f64::from(top_k), f64::from(shared));
    (imbalance * k + s) / (k + s)
}

/// [`imbalance`] of a model that treats all experts alike, with the moments of the R-bin maximum
/// already at hand (a sweep keeps one [`NormalMax`] per R): tens of nanoseconds at large loads.
#[must_use]
pub fn symmetric(
    routing: &Routing,
    experts: u32,
    top_k: u32,
    tokens_per_rank: f64,
    ranks: &NormalMax,
) -> f64 {
    let (e, k, r) = (f64::from(experts), f64::from(top_k), f64::from(ranks.bins));
    let bin = rank_bin(routing, experts, top_k, tokens_per_rank, ranks.bins);
    if ranks.bins <= 1 || bin.mean <= 0.0 {
        return 1.0;
    }
    let uneven = (e / r).ceil() / (e / r);
    (expected_max(bin, ranks) / bin.mean * uneven).clamp(1.0, r.min(e / k).max(1.0))
}

/// Mean, variance and third moment of one rank's load, sum constraint lifted, for a model that
/// treats all experts alike (`ranks` = E: one expert's load).
#[must_use]
pub fn rank_bin(
    routing: &Routing,
    experts: u32,
    top_k: u32,
    tokens_per_rank: f64,
    ranks: u32,
) -> Moments {
    let (e, k) = (f64::from(experts), f64::from(top_k));
    let mean = tokens_per_rank * k;
    let c = if experts > 1 {
        (e - k) / (e - 1.0)
    } else {
        0.0
    };
    let mut bin = Moments {
        mean,
        variance: c * mean,
        third: c * (2.0 * c - 1.0) * mean,
    };
    if let (left, Routing::Dirichlet { alpha }) = routing.unbiased() {
        let shape = e / f64::from(ranks) * alpha;
        let spread = left * left * mean * mean / shape;
        bin.variance += spread;
        bin.third += 3.0 * c * spread + 2.0 * left * mean * spread / shape;
    }
    bin
}

/// [`imbalance`] of one layer with given shares, contiguous placement.
#[must_use]
pub fn of_shares(shares: &[f64], top_k: u32, ep: u32, tokens_per_rank: f64) -> f64 {
    let ranks = rank_moments(shares, top_k, ep, tokens_per_rank);
    let mean = tokens_per_rank * f64::from(top_k);
    if ep <= 1 || mean <= 0.0 {
        return 1.0;
    }
    let most = shares.len() as f64 / f64::from(top_k);
    (expected_max_unequal(&ranks) / mean).clamp(1.0, f64::from(ep).min(most).max(1.0))
}

/// Mean, variance and third moment of each rank's load, sum constraint lifted.
fn rank_moments(shares: &[f64], top_k: u32, ep: u32, tokens_per_rank: f64) -> Vec<Moments> {
    let e = shares.len();
    let tokens = tokens_per_rank * f64::from(ep);
    let lift = if e > 1 {
        e as f64 / (e as f64 - 1.0)
    } else {
        0.0
    };
    let size = e.div_ceil(ep.max(1) as usize).max(1);
    shares
        .chunks(size)
        .map(|chunk| {
            let mut bin = Moments {
                mean: 0.0,
                variance: 0.0,
                third: 0.0,
            };
            for share in chunk {
                let p = (share * f64::from(top_k)).min(1.0);
                bin.mean += tokens * p;
                bin.variance += tokens * p * (1.0 - p) * lift;
                bin.third += tokens * p * (1.0 - p) * (1.0 - 2.0 * p) * lift;
            }
            bin
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Case = (u32, u32, u32, u32, f64, f64, f64, f64);

    /// E, k, T, EP, expert max/mean and rank max/mean with their 95 % half-widths: Monte-Carlo of
    /// 2,000 trials with numpy's PCG64, seed 20261129.
    const UNIFORM: [Case; 7] = [
        (8, 2, 128, 8, 1.2382, 0.0038, 1.2382, 0.0038),
        (8, 2, 8192, 8, 1.0294, 0.0009, 1.0294, 0.0009),
        (64, 8, 1024, 8, 1.1992, 0.0030, 1.0433, 0.0013),
        (128, 8, 4096, 16, 1.1613, 0.0054, 1.0385, 0.0023),
        (256, 8, 32, 32, 4.6595, 0.0315, 1.7846, 0.0087),
        (256, 8, 128, 32, 2.6436, 0.0158, 1.3796, 0.0052),
        (512, 10, 1024, 64, 1.7533, 0.0232, 1.1830, 0.0077),
    ];

    #[test]
    fn uniform_closed_form_against_monte_carlo() {
        for (e, k, t, ep, expert, expert_ci, rank, rank_ci) in UNIFORM {
            let t = f64::from(t);
            let x = imbalance(&Routing::Uniform, e, k, e, t / f64::from(e));
            assert!(
                (x - expert).abs() < expert_ci + 0.01 * (expert - 1.0).max(0.3),
                "{e} {k} {t}: {x} {expert}"
            );
            let y = imbalance(&Routing::Uniform, e, k, ep, t / f64::from(ep));
            assert!(
                (y - rank).abs() < rank_ci + 0.01 * (rank - 1.0).max(0.3),
                "{e} {k} {t} {ep}: {y} {rank}"
            );
        }
    }

    #[test]
    fn limits() {
        let d = Routing::Dirichlet { alpha: 1.0 };
        // Every expert chosen: no noise left.
        assert_eq!(imbalance(&Routing::Uniform, 8, 8, 8, 64.0), 1.0);
        // A great concentration is uniform, a great batch is balanced only without skew.
        let even = imbalance(&Routing::Dirichlet { alpha: 1e8 }, 64, 8, 8, 1024.0);
        assert!((even / imbalance(&Routing::Uniform, 64, 8, 8, 1024.0) - 1.0).abs() < 1e-6);
        assert!((imbalance(&Routing::Uniform, 64, 8, 8, 1e9) - 1.0).abs() < 1e-3);
        // Dirichlet(1), one expert a rank, infinite batch: H(64), capped at E/k.
        let hot = imbalance(&d, 64, 1, 64, 1e9);
        assert!((hot / 4.744 - 1.0).abs() < 0.01, "{hot}");
        assert_eq!(imbalance(&d, 64, 32, 64, 1e9), 2.0);
        // Equal counts are uniform.
        let counts = Routing::Counts {
            layers: vec![vec![5.0; 64]],
        };
        let a = imbalance(&counts, 64, 8, 8, 512.0);
        let b = imbalance(&Routing::Uniform, 64, 8, 8, 512.0);
        assert!((a / b - 1.0).abs() < 2e-3, "{a} {b}");
        assert!(
            (imbalance(&counts, 64, 8, 8, 4.0) / imbalance(&Routing::Uniform, 64, 8, 8, 4.0) - 1.0)
                .abs()
                < 0.01
        );
    }

    #[test]
    fn a_recorded_hot_rank_does_not_average_out() {
        let mut row = vec![1.0; 8];
        row[0] = 3.0;
        let counts = Routing::Counts { layers: vec![row] };
        let x = imbalance(&counts, 8, 1, 4, 1e6);
        assert!((x - 1.6).abs() < 1e-3, "{x}"); // (3+1)/10·4
    }

    proptest! {
        #[test]
        fn between_one_and_its_ceiling_and_falling_with_tokens(
            e in 2u32..300, k in 1u32..9, ep in 1u32..64, t in 1.0f64..1e5, alpha in 0.1f64..100.0
        ) {
            prop_assume!(k <= e && ep <= e);
            for routing in [Routing::Uniform, Routing::Dirichlet { alpha }, Routing::Zipf { s: 0.6 }] {
                let x = imbalance(&routing, e, k, ep, t);
                prop_assert!(x.is_finite() && x >= 1.0 && x <= f64::from(ep).max(1.0) + 1e-9);
                let y = imbalance(&routing, e, k, ep, t * 4.0);
                prop_assert!(y <= x * 1.02, "{routing:?} {x} {y}");
            }
        }
    }
}
