//! PCG64 (XSL-RR 128/64), the generator of numpy, with one stream per trial.
//!
//! A trial owns its stream, so a Monte-Carlo gives the same bytes at any thread count.
//! Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms
//! for Random Number Generation", HMC-CS-2014-0905.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// A PCG64 stream.
#[derive(Clone, Debug)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    /// Stream number `stream` of `seed`. Both are spread by SplitMix64 first, so that near seeds
    /// and near streams share nothing.
    ///
    /// ```
    /// use planner_core::moe::rng::Pcg64;
    /// let draw = |seed, stream| Pcg64::new(seed, stream).next_u64();
    /// assert_eq!(draw(1, 2), draw(1, 2));
    /// assert_ne!(draw(1, 2), draw(1, 3));
    /// assert_ne!(draw(1, 2), draw(2, 2));
    /// ```
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut s = seed;
        let mut t = stream ^ 0xA076_1D64_78BD_642F;
        let state = wide(split_mix64(&mut s), split_mix64(&mut s));
        let increment = wide(split_mix64(&mut t), split_mix64(&mut t)) | 1;
        Self::from_parts(state, increment)
    }

    /// The reference seeding from a 128-bit state and an odd increment.
    #[must_use]
    pub fn from_parts(state: u128, increment: u128) -> Self {
        let increment = increment | 1;
        let state = increment
            .wrapping_add(state)
            .wrapping_mul(MULTIPLIER)
            .wrapping_add(increment);
        Self { state, increment }
    }

    /// Next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self
            .state
            .wrapping_mul(MULTIPLIER)
            .wrapping_add(self.increment);
        let folded = ((self.state >> 64) ^ self.state) as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// Uniform in `[0, 1)`, 53 bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform integer below `n` (Lemire's multiply-and-shift, unbiased).
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        let mut wide = u128::from(self.next_u64()) * u128::from(n);
        if (wide as u64) < u64::from(n) {
            let threshold = u64::from(n).wrapping_neg() % u64::from(n);
            while (wide as u64) < threshold {
                wide = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (wide >> 64) as u32
    }

    /// Standard normal (polar method of Marsaglia, one of the pair).
    pub fn normal(&mut self) -> f64 {
        loop {
            let u = 2.0 * self.uniform() - 1.0;
            let v = 2.0 * self.uniform() - 1.0;
            let q = u * u + v * v;
            if q > 0.0 && q < 1.0 {
                return u * (-2.0 * q.ln() / q).sqrt();
            }
        }
    }

    /// Gamma of shape `a` and scale 1 (Marsaglia and Tsang 2000; boosted below shape 1).
    pub fn gamma(&mut self, a: f64) -> f64 {
        if a < 1.0 {
            let boost = (1.0 - self.uniform()).powf(1.0 / a);
            return self.gamma(a + 1.0) * boost;
        }
        let d = a - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            let u = 1.0 - self.uniform();
            if u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    /// Shuffles in place (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u32 + 1) as usize);
        }
    }
}

fn wide(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// SplitMix64: the seed spreader (and the generator of the public EPLB test loads).
///
/// ```
/// let mut state = 0;
/// assert_eq!(planner_core::moe::rng::split_mix64(&mut state), 0xE220_A839_7B1D_CDAF);
/// ```
#[inline]
pub fn split_mix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// numpy: `PCG64` with `state` and `inc` set, then `random_raw(3)`.
    #[test]
    fn moments_of_the_derived_draws() {
        let mut rng = Pcg64::new(7, 0);
        let n = 200_000;
        let (mut u, mut z, mut z2, mut g) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..n {
            u += rng.uniform();
            let x = rng.normal();
            z += x;
            z2 += x * x;
            g += rng.gamma(0.4);
        }
        let n = f64::from(n);
        assert!((u / n - 0.5).abs() < 0.003);
        assert!((z / n).abs() < 0.01);
        assert!((z2 / n - 1.0).abs() < 0.02);
        assert!((g / n - 0.4).abs() < 0.01);
    }

    #[test]
    fn below_is_flat() {
        let mut rng = Pcg64::new(3, 1);
        let mut seen = [0u32; 7];
        for _ in 0..70_000 {
            seen[rng.below(7) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&c| (9_500..10_500).contains(&c)),
            "{seen:?}"
        );
    }
}
