//! Routing models: who gets the tokens.
//!
//! A model gives the share of the token-choices that each expert receives. Shares sum to 1 and none
//! passes 1/k, since a token chooses an expert at most once.

use super::rng::Pcg64;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// A routing model.
///
/// ```
/// use planner_core::moe::Routing;
/// assert_eq!(Routing::parse("dirichlet:0.8").unwrap(), Routing::Dirichlet { alpha: 0.8 });
/// assert!(Routing::parse("dirichlet:-1").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Routing {
    /// Each token takes k different experts, all sets equally likely.
    Uniform,
    /// Shares drawn from a symmetric Dirichlet, then multinomial noise.
    Dirichlet {
        /// Concentration per expert: 1/α is the squared spread of a share; recorded models: 0.5–500.
        alpha: f64,
    },
    /// The i-th most popular expert has a share ∝ i^−s; popularity is spread over ranks at random.
    Zipf {
        /// Exponent s ≥ 0.
        s: f64,
    },
    /// Shares ∝ exp(σ·z).
    Lognormal {
        /// σ ≥ 0.
        sigma: f64,
    },
    /// Recorded counts, layers × experts.
    Counts {
        /// One row per MoE layer; only ratios matter.
        layers: Vec<Vec<f64>>,
    },
    /// A bias on the router's scores (aux-loss-free balancing) has taken off a part of the skew: each
    /// share is 1/E + left·(share − 1/E).
    Biased {
        /// How much of the skew is left: 1 none taken off, 0 balanced but for sampling noise.
        left: f64,
        /// Shares without the bias.
        of: Box<Routing>,
    },
}

/// Placements over which the closed forms average the popularity of Zipf and lognormal models: the
/// fullest rank's standard deviation over placements is about 0.15 for s = 0.6, so that the mean of
/// 64 is off by 0.02.
pub const PERMUTATIONS: u64 = 64;

impl Routing {
    /// Reads `uniform`, `dirichlet:α`, `zipf:s` or `lognormal:σ`.
    ///
    /// # Errors
    /// An unknown name, or a parameter outside its rule.
    pub fn parse(text: &str) -> Result<Self> {
        let rule = "one of uniform, dirichlet:ALPHA, zipf:S, lognormal:SIGMA, or a file of counts";
        let bad = || Error::field("routing", text, rule);
        let (name, value) = text
            .split_once(':')
            .map_or((text, None), |(n, v)| (n, Some(v)));
        let value = value
            .map(|v| v.parse::<f64>().map_err(|_| bad()))
            .transpose()?;
        let routing = match (name, value) {
            ("uniform", None) => Self::Uniform,
            ("dirichlet", Some(alpha)) => Self::Dirichlet { alpha },
            ("zipf", Some(s)) => Self::Zipf { s },
            ("lognormal", Some(sigma)) => Self::Lognormal { sigma },
            _ => return Err(bad()),
        };
        routing.check_parameter()?;
        Ok(routing)
    }

    fn check_parameter(&self) -> Result<()> {
        let (field, value, rule, ok) = match self {
            Self::Dirichlet { alpha } => (
                "routing.alpha",
                *alpha,
                "a number in [0.001, 1e9]",
                (1e-3..=1e9).contains(alpha),
            ),
            Self::Zipf { s } => (
                "routing.s",
                *s,
                "a number in [0, 10]",
                (0.0..=10.0).contains(s),
            ),
            Self::Lognormal { sigma } => (
                "routing.sigma",
                *sigma,
                "a number in [0, 10]",
                (0.0..=10.0).contains(sigma),
            ),
            Self::Biased { left, of } => {
                if matches!(**of, Self::Biased { .. }) {
                    return Err(Error::field("routing.of", "biased", "biased once"));
                }
                of.check_parameter()?;
                (
                    "routing.left",
                    *left,
                    "a share in [0, 1]",
                    (0.0..=1.0).contains(left),
                )
            }
            Self::Uniform | Self::Counts { .. } => return Ok(()),
        };
        if ok {
            Ok(())
        } else {
            Err(Error::field(field, value, rule))
        }
    }

    /// Checks the model against a layer of `experts` experts, `top_k` per token.
    ///
    /// # Errors
    /// k outside 1..=E, a parameter outside its rule, or counts of another width, NaN, negative or
    /// all zero.
    pub fn check(&self, experts: u32, top_k: u32) -> Result<()> {
        if experts == 0 || top_k == 0 || top_k > experts {
            return Err(Error::field(
                "top_k",
                top_k,
                format!("1 ≤ k ≤ E, with E = {experts}"),
            ));
        }
        self.check_parameter()?;
        if let Self::Counts { layers } = self.unbiased().1 {
            if layers.is_empty() {
                return Err(Error::field(
                    "routing.layers",
                    "[]",
                    "at least one layer of counts",
                ));
            }
            for (i, row) in layers.iter().enumerate() {
                let field = format!("routing.layers[{i}]");
                if row.len() != experts as usize {
                    return Err(Error::field(
                        field,
                        row.len(),
                        format!("{experts} counts, one per expert"),
                    ));
                }
                if let Some(bad) = row.iter().find(|c| !c.is_finite() || **c < 0.0) {
                    return Err(Error::field(field, bad, "counts are finite and ≥ 0"));
                }
                if row.iter().sum::<f64>() <= 0.0 {
                    return Err(Error::field(
                        field,
                        0,
                        "a layer has at least one routed token",
                    ));
                }
            }
        }
        Ok(())
    }

    /// How much of the skew a bias has left, and the model that it was taken off.
    #[must_use]
    pub fn unbiased(&self) -> (f64, &Self) {
        match self {
            Self::Biased { left, of } => (*left, of),
            _ => (1.0, self),
        }
    }

    /// Squared coefficient of variation of the experts' shares: 0 uniform, 1/α of a Dirichlet, else
    /// the mean over the layers or placements of [`Routing::shares`].
    ///
    /// ```
    /// use planner_core::moe::Routing;
    /// assert_eq!(Routing::Uniform.squared_variation(64, 8), 0.0);
    /// assert_eq!(Routing::Dirichlet { alpha: 4.0 }.squared_variation(64, 8), 0.25);
    /// ```
    #[must_use]
    pub fn squared_variation(&self, experts: u32, top_k: u32) -> f64 {
        match self {
            Self::Uniform => 0.0,
            Self::Dirichlet { alpha } => 1.0 / alpha,
            Self::Biased { left, of } => left * left * of.squared_variation(experts, top_k),
            _ => {
                let rows = self.shares(experts, top_k);
                let e = f64::from(experts);
                let squares = rows.iter().flatten().map(|s| (s * e - 1.0).powi(2));
                squares.sum::<f64>() / (rows.len() as f64 * e)
            }
        }
    }

    /// Typical share vectors, one per layer or placement: what the closed forms of the models
    /// without an algebra of their own average over. Shares sum to 1, none above 1/k.
    #[must_use]
    pub fn shares(&self, experts: u32, top_k: u32) -> Vec<Vec<f64>> {
        let rows = match self {
            Self::Uniform => 1,
            Self::Counts { layers } => layers.len() as u64,
            _ => PERMUTATIONS,
        };
        match self {
            Self::Biased { left, of } => {
                let mut rows = of.shares(experts, top_k);
                rows.iter_mut().for_each(|row| ease(row, *left));
                rows
            }
            _ => (0..rows)
                .map(|p| self.draw_shares(experts, top_k, p, &mut Pcg64::new(0x5eed, p)))
                .collect(),
        }
    }

    /// Shares of one batch: Dirichlet shares and the placement of Zipf and lognormal popularity are
    /// drawn, recorded layers take turns by `index`. A bias is not applied.
    #[must_use]
    pub fn draw_shares(&self, experts: u32, top_k: u32, index: u64, rng: &mut Pcg64) -> Vec<f64> {
        let e = experts as usize;
        let mut permuted = |weights: Vec<f64>| {
            let mut row = cap_shares(&weights, top_k);
            rng.shuffle(&mut row);
            row
        };
        match self {
            Self::Uniform => vec![1.0 / e as f64; e],
            Self::Zipf { s } => permuted((1..=e).map(|i| (i as f64).powf(-s)).collect()),
            Self::Lognormal { sigma } => permuted(
                (0..e)
                    .map(|i| (sigma * normal_quantile((i as f64 + 0.5) / e as f64)).exp())
                    .collect(),
            ),
            Self::Dirichlet { alpha } => draw_dirichlet(*alpha, experts, top_k, rng),
            Self::Counts { layers } => {
                let row = index % layers.len().max(1) as u64;
                cap_shares(&layers[row as usize], top_k)
            }
            Self::Biased { of, .. } => of.draw_shares(experts, top_k, index, rng),
        }
    }
}

/// Leaves a part of the skew of shares that sum to 1.
///
/// ```
/// let mut shares = [0.5, 0.25, 0.25, 0.0];
/// planner_core::moe::routing::ease(&mut shares, 0.2);
/// assert_eq!(shares, [0.3, 0.25, 0.25, 0.2]);
/// ```
pub fn ease(shares: &mut [f64], left: f64) {
    if left < 1.0 {
        let even = 1.0 / shares.len() as f64;
        shares
            .iter_mut()
            .for_each(|s| *s = even + left * (*s - even));
    }
}

/// One draw of Dirichlet shares, capped at 1/k.
#[must_use]
pub fn draw_dirichlet(alpha: f64, experts: u32, top_k: u32, rng: &mut Pcg64) -> Vec<f64> {
    let draws: Vec<f64> = (0..experts).map(|_| rng.gamma(alpha).max(1e-300)).collect();
    cap_shares(&draws, top_k)
}

/// Normalises weights to shares and caps each at 1/k; the excess goes to the others in proportion.
///
/// ```
/// use planner_core::moe::routing::cap_shares;
/// assert_eq!(cap_shares(&[8.0, 1.0, 1.0], 2), vec![0.5, 0.25, 0.25]);
/// ```
#[must_use]
pub fn cap_shares(weights: &[f64], top_k: u32) -> Vec<f64> {
    let cap = 1.0 / f64::from(top_k);
    let sum: f64 = weights.iter().sum();
    let mut shares: Vec<f64> = weights.iter().map(|w| w / sum).collect();
    for _ in 0..top_k {
        let full: usize = shares.iter().filter(|s| **s >= cap - 1e-15).count();
        let rest: f64 = shares.iter().filter(|s| **s < cap - 1e-15).sum();
        let room = 1.0 - full as f64 * cap;
        if !shares.iter().any(|s| *s > cap + 1e-15) {
            break;
        }
        for s in &mut shares {
            *s = if *s >= cap - 1e-15 {
                cap
            } else if rest > 0.0 {
                *s * room / rest
            } else {
                *s
            };
        }
    }
    spread_shortfall(&mut shares, cap);
    shares
}

/// Fewer than k experts with any weight cannot hold all choices: the idle ones share what is left.
fn spread_shortfall(shares: &mut [f64], cap: f64) {
    let short = 1.0 - shares.iter().sum::<f64>();
    let idle = shares.iter().filter(|s| **s < cap - 1e-15).count();
    if short > 1e-12 && idle > 0 {
        for s in shares.iter_mut().filter(|s| **s < cap - 1e-15) {
            *s += short / idle as f64;
        }
    }
}

/// Standard normal quantile (Acklam's rational approximation, relative error 1.2e-9).
///
/// ```
/// let z = planner_core::moe::routing::normal_quantile(0.975);
/// assert!((z - 1.959_964).abs() < 1e-5);
/// ```
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
    ];
    let horner = |c: &[f64], x: f64| c.iter().fold(0.0, |acc, k| acc * x + k);
    let tail = |q: f64| horner(&C, q) / (horner(&D, q) * q + 1.0);
    if p < 0.024_25 {
        tail((-2.0 * p.ln()).sqrt())
    } else if p > 1.0 - 0.024_25 {
        -tail((-2.0 * (1.0 - p).ln()).sqrt())
    } else {
        let q = p - 0.5;
        let r = q * q;
        horner(&A, r) * q / (horner(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_bad_parameters() {
        assert_eq!(Routing::parse("uniform").unwrap(), Routing::Uniform);
        assert_eq!(
            Routing::parse("zipf:0.5").unwrap(),
            Routing::Zipf { s: 0.5 }
        );
        for bad in [
            "",
            "dirichlet",
            "dirichlet:nan",
            "dirichlet:0",
            "zipf:x",
            "uniform:1",
            "lognormal:-1",
        ] {
            assert!(Routing::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_must_make_sense() {
        let counts = |rows: &[&[f64]]| Routing::Counts {
            layers: rows.iter().map(|r| r.to_vec()).collect(),
        };
        assert!(counts(&[&[1.0, 2.0]]).check(2, 1).is_ok());
        assert!(counts(&[]).check(2, 1).is_err());
        assert!(counts(&[&[1.0]]).check(2, 1).is_err());
        assert!(counts(&[&[1.0, f64::NAN]]).check(2, 1).is_err());
        assert!(counts(&[&[1.0, -1.0]]).check(2, 1).is_err());
        assert!(counts(&[&[0.0, 0.0]]).check(2, 1).is_err());
        assert!(Routing::Uniform.check(8, 9).is_err());
        assert!(Routing::Uniform.check(8, 0).is_err());
        let biased = |left, of| Routing::Biased {
            left,
            of: Box::new(of),
        };
        assert!(biased(0.2, counts(&[&[1.0, 2.0]])).check(2, 1).is_ok());
        assert!(biased(0.2, counts(&[&[1.0]])).check(2, 1).is_err());
        assert!(biased(1.2, Routing::Uniform).check(2, 1).is_err());
        assert!(biased(f64::NAN, Routing::Uniform).check(2, 1).is_err());
        assert!(
            biased(0.5, biased(0.5, Routing::Uniform))
                .check(2, 1)
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn shares_sum_to_one_under_the_cap(
            weights in proptest::collection::vec(0.0f64..1e6, 8..40), k in 1u32..8
        ) {
            prop_assume!(weights.iter().sum::<f64>() > 0.0);
            let s = cap_shares(&weights, k);
            prop_assert!((s.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(s.iter().all(|x| *x <= 1.0 / f64::from(k) + 1e-9 && *x >= 0.0));
        }
    }
}
