//! Expected maximum of R loads, in closed form.
//!
//! The loads of the R bins sum to a constant. Lifting that constraint (`Moments` hold the variance
//! that R free bins would need) gives independent bins with the same expected maximum to first
//! order: the R/(R−1) correction of the normal asymptotics.

/// Gauss error function complement; relative error below 1.2e-7.
/// Source: Press et al., Numerical Recipes, `erfcc`.
#[must_use]
pub fn erfc(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let poly = -1.265_512_23
        + t * (1.000_023_68
            + t * (0.374_091_96
                + t * (0.096_784_18
                    + t * (-0.186_288_06
                        + t * (0.278_868_07
                            + t * (-1.135_203_98
                                + t * (1.488_515_87 + t * (-0.822_152_23 + t * 0.170_872_77))))))));
    let tail = t * (-x * x + poly).exp();
    if x >= 0.0 { tail } else { 2.0 - tail }
}

/// Standard normal distribution function.
///
/// ```
/// let p = planner_core::moe::extremes::normal_cdf(1.959_964);
/// assert!((p - 0.975).abs() < 1e-6);
/// ```
#[must_use]
pub fn normal_cdf(z: f64) -> f64 {
    0.5 * erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

/// First three moments of the largest of R independent standard normals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormalMax {
    /// Number of bins R.
    pub bins: u32,
    /// `E[Z]`, `E[Z²]`, `E[Z³]` of the maximum.
    pub moments: [f64; 3],
}

impl NormalMax {
    /// Moments for R bins, by the trapezoid rule on R·φ(z)·Φ(z)^(R−1).
    ///
    /// ```
    /// use planner_core::moe::extremes::NormalMax;
    /// let two = NormalMax::of(2).moments[0];
    /// assert!((two - 1.0 / std::f64::consts::PI.sqrt()).abs() < 1e-6);
    /// ```
    #[must_use]
    pub fn of(bins: u32) -> Self {
        const STEP: f64 = 0.125;
        let r = f64::from(bins);
        let mut moments = [0.0; 3];
        for i in -64..=80 {
            let z = f64::from(i) * STEP;
            let below = normal_cdf(z);
            let density = r * (-0.5 * z * z).exp() * 0.398_942_280_401_432_7 * below.powf(r - 1.0);
            let w = density * STEP;
            moments[0] += w * z;
            moments[1] += w * z * z;
            moments[2] += w * z * z * z;
        }
        Self { bins, moments }
    }
}

/// Mean, variance and third central moment of one bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Mean μ.
    pub mean: f64,
    /// Variance σ².
    pub variance: f64,
    /// Third central moment.
    pub third: f64,
}

impl Moments {
    /// Skewness γ.
    #[must_use]
    pub fn skew(&self) -> f64 {
        if self.variance > 0.0 {
            self.third / self.variance.powf(1.5)
        } else {
            0.0
        }
    }
}

/// Below this mean load a bin is counted out one token at a time; above, it is a smooth curve.
pub const DISCRETE_BELOW: f64 = 24.0;

/// Expected maximum of R equal bins.
///
/// Small means: Σ (1 − F(x)^R) over the binomial or negative binomial of the same mean and
/// variance. Large means: Pearson III by Wilson–Hilferty, x = μ + σ·(2/γ)·((1 − γ²/36 + γz/6)³ − 1),
/// whose expectation over the largest z is a polynomial of the three moments of [`NormalMax`].
#[must_use]
pub fn expected_max(bin: Moments, of: &NormalMax) -> f64 {
    if of.bins <= 1 || bin.variance <= 0.0 {
        return bin.mean;
    }
    if bin.mean < DISCRETE_BELOW {
        return discrete_max(bin, of.bins);
    }
    let sd = bin.variance.sqrt();
    bin.mean + sd * standard_max(bin.skew(), of)
}

/// Expected maximum in units of σ above the mean, for skewness γ.
fn standard_max(g: f64, of: &NormalMax) -> f64 {
    let [m1, m2, m3] = of.moments;
    if g.abs() < 1e-4 {
        return m1;
    }
    let c = 1.0 - g * g / 36.0;
    let d = g / 6.0;
    let cube = c * c * c + 3.0 * c * c * d * m1 + 3.0 * c * d * d * m2 + d * d * d * m3;
    2.0 / g * (cube - 1.0)
}

fn discrete_max(bin: Moments, bins: u32) -> f64 {
    let r = f64::from(bins);
    let mut walk = Walk::new(bin);
    let mut sum = 0.0;
    for _ in 0..100_000 {
        let above = -(r * walk.below.min(1.0).ln()).exp_m1();
        if above < 1e-9 && walk.at > bin.mean {
            break;
        }
        sum += above;
        walk.step();
    }
    sum
}

/// A counting distribution walked upwards: binomial where σ² < μ, negative binomial where σ² > μ.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    at: f64,
    point: f64,
    /// P(X ≤ at).
    pub below: f64,
    slope: f64,
    offset: f64,
}

impl Walk {
    /// Starts at zero. Panjer's recursion p(x+1) = p(x)·(offset + slope·x)/(x+1) covers the
    /// binomial (slope < 0), the Poisson (0) and the negative binomial (> 0).
    #[must_use]
    pub fn new(bin: Moments) -> Self {
        let ratio = bin.variance / bin.mean;
        let slope = 1.0 - 1.0 / ratio;
        let offset = bin.mean / ratio;
        let point = if (ratio - 1.0).abs() < 1e-9 {
            (-bin.mean).exp()
        } else {
            (-offset / slope * (1.0 - slope).recip().ln()).exp()
        };
        Self {
            at: 0.0,
            point,
            below: point,
            slope,
            offset,
        }
    }

    /// Moves one token up.
    #[inline]
    pub fn step(&mut self) {
        let next = self.point * (self.offset + self.slope * self.at) / (self.at + 1.0);
        self.point = next.max(0.0);
        self.below += self.point;
        self.at += 1.0;
    }
}

/// Expected excess over a limit, E[(X − C)₊]: the tokens that one expert of capacity C drops.
///
/// Small means: μ − C + Σ_{x<C} (C − x)·p(x), counted out. Large means: ∫ 1 − F from C on, Pearson
/// III, 64 steps.
///
/// ```
/// use planner_core::moe::extremes::{Moments, excess};
/// // 4,096 tokens on 64 experts: binomial, mean 64; the exact share dropped at C = 64 is 0.0494.
/// let bin = Moments { mean: 64.0, variance: 63.0, third: 61.03 };
/// assert!((excess(bin, 64.0) / 64.0 - 0.0494).abs() < 2e-4);
/// ```
#[must_use]
pub fn excess(bin: Moments, limit: f64) -> f64 {
    if bin.mean <= 0.0 || bin.variance <= 0.0 {
        return (bin.mean - limit).max(0.0);
    }
    if bin.mean < DISCRETE_BELOW {
        let mut walk = Walk::new(bin);
        let mut short = 0.0;
        for _ in 0..limit.min(1e5) as u32 {
            short += (limit - walk.at) * walk.point;
            walk.step();
        }
        return (bin.mean - limit + short).max(0.0);
    }
    let (sd, skew) = (bin.variance.sqrt(), bin.skew());
    let high = bin.mean + (8.0 + 6.0 * skew.max(0.0)) * sd;
    let low = limit.max(bin.mean - 8.0 * sd);
    if low >= high {
        return 0.0;
    }
    const STEPS: u32 = 64;
    let h = (high - low) / f64::from(STEPS);
    let area: f64 = (0..=STEPS)
        .map(|i| {
            let w = if i == 0 || i == STEPS { 0.5 } else { 1.0 };
            w * (1.0 - smooth_cdf(low + h * f64::from(i), bin.mean, sd, skew))
        })
        .sum();
    area * h + (low - limit)
}

/// Expected maximum of unequal independent bins, ∫ 1 − ∏F_r, on a grid of 96 steps.
#[must_use]
pub fn expected_max_unequal(bins: &[Moments]) -> f64 {
    let top = bins.iter().map(|b| b.mean).fold(0.0, f64::max);
    if top < DISCRETE_BELOW {
        return discrete_max_unequal(bins, top);
    }
    let spread = |b: &Moments| b.variance.max(0.0).sqrt();
    let low = bins
        .iter()
        .map(|b| b.mean - 5.0 * spread(b))
        .fold(0.0, f64::max);
    let high = bins
        .iter()
        .map(|b| b.mean + 7.0 * spread(b))
        .fold(top, f64::max);
    let live: Vec<(Moments, f64, f64)> = bins
        .iter()
        .filter(|b| b.mean + 8.0 * spread(b) >= low && spread(b) > 0.0)
        .map(|b| (*b, spread(b), b.skew()))
        .collect();
    let floor = bins
        .iter()
        .filter(|b| spread(b) <= 0.0)
        .map(|b| b.mean)
        .fold(0.0, f64::max);
    if high <= low {
        return top;
    }
    const STEPS: usize = 96;
    let h = (high - low) / STEPS as f64;
    let mut area = 0.0;
    for i in 0..=STEPS {
        let x = low + h * i as f64;
        let all: f64 = if x < floor {
            0.0
        } else {
            live.iter()
                .map(|(b, s, g)| smooth_cdf(x, b.mean, *s, *g))
                .product()
        };
        let w = if i == 0 || i == STEPS { 0.5 } else { 1.0 };
        area += w * (1.0 - all);
    }
    low + area * h
}

/// Pearson III distribution function by Wilson–Hilferty.
fn smooth_cdf(x: f64, mean: f64, sd: f64, g: f64) -> f64 {
    let t = (x - mean) / sd;
    if g.abs() < 1e-4 {
        return normal_cdf(t);
    }
    let inside = (1.0 + 0.5 * g * t).max(0.0);
    normal_cdf(6.0 / g * (inside.cbrt() - 1.0 + g * g / 36.0))
}

fn discrete_max_unequal(bins: &[Moments], top: f64) -> f64 {
    let mut walks: Vec<Walk> = bins
        .iter()
        .filter(|b| b.mean > 0.0 && b.variance > 0.0)
        .map(|b| Walk::new(*b))
        .collect();
    let mut sum = 0.0;
    for x in 0..10_000 {
        let all: f64 = walks.iter().map(|w| w.below.min(1.0)).product();
        if 1.0 - all < 1e-9 && f64::from(x) > top {
            break;
        }
        sum += 1.0 - all;
        walks.iter_mut().for_each(Walk::step);
    }
    sum.max(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_maxima_match_the_tables() {
        // Expected largest of n normals: 1.42360 (8), 2.04276 (30... see Harter 1961), 2.50759 (100).
        for (n, e) in [(8, 1.423_60), (30, 2.042_76), (100, 2.507_59)] {
            let m = NormalMax::of(n).moments[0];
            assert!((m - e).abs() < 2e-5, "{n}: {m}");
        }
    }

    #[test]
    fn equal_bins_agree_with_the_unequal_integral() {
        for mean in [3.0, 200.0] {
            let bin = Moments {
                mean,
                variance: 0.9 * mean,
                third: 0.7 * mean,
            };
            let a = expected_max(bin, &NormalMax::of(16));
            let b = expected_max_unequal(&[bin; 16]);
            assert!((a / b - 1.0).abs() < 2e-3, "{mean}: {a} {b}");
        }
    }

    #[test]
    fn exponential_maximum_is_the_harmonic_number() {
        // Gamma of shape 1: E[max of 64] = H(64) = 4.744.
        let bin = Moments {
            mean: 1000.0,
            variance: 1e6,
            third: 2e9,
        };
        let m = expected_max(bin, &NormalMax::of(64)) / 1000.0;
        assert!((m / 4.7439 - 1.0).abs() < 0.01, "{m}");
    }

    #[test]
    fn smooth_and_discrete_meet() {
        let bin = |mean: f64| Moments {
            mean,
            variance: mean,
            third: mean,
        };
        let of = NormalMax::of(64);
        let a = expected_max(bin(DISCRETE_BELOW - 1e-9), &of);
        let b = expected_max(bin(DISCRETE_BELOW + 1e-9), &of);
        assert!((a / b - 1.0).abs() < 0.004, "{a} {b}");
    }
}
