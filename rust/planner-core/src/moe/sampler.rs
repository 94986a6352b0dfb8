//! Drawing the k experts of a token.

use super::rng::Pcg64;

/// How tokens choose.
#[derive(Clone, Debug)]
pub enum Sampler {
    /// All sets of k equally likely.
    Uniform,
    /// Each expert is chosen with its own probability.
    Weighted(Alias),
    /// Experts carry scores, groups are ranked by the sum of their best two, the k best experts of
    /// the best groups are taken (DeepSeek-V3).
    Grouped(Grouped),
}

/// Alias table over experts, one word per expert: threshold in the high half, alias in the low.
///
/// Draws with repeats refused are successive sampling: experts arrive by exponential clocks of
/// rates w and the first k are taken. An expert of share s is then chosen with probability close to
/// k·s where w = −ln(1 − k·s) (Rosén 1997), which is how the rates are set. Measured: the chance of
/// an expert is off by at most 0.02 for shares as skewed as Dirichlet(0.5), k ≥ 2; exact for k = 1.
#[derive(Clone, Debug)]
pub struct Alias {
    table: Vec<u64>,
    /// Experts that every token takes.
    sure: Vec<u32>,
}

/// Group-limited routing.
#[derive(Clone, Debug)]
pub struct Grouped {
    /// Experts per group.
    pub size: usize,
    /// Groups kept per token.
    pub keep: usize,
    /// 1/weight of each expert, for scores u^(1/weight); empty where all are alike.
    pub exponents: Vec<f64>,
}

/// From this chance on, every token takes the expert.
const SURE: f64 = 1.0 - 1e-6;

impl Alias {
    /// From shares that sum to 1, none above 1/k.
    #[must_use]
    pub fn new(shares: &[f64], top_k: u32) -> Self {
        let chance = |s: &f64| s * f64::from(top_k);
        let sure: Vec<u32> = (0..)
            .zip(shares)
            .filter(|(_, s)| chance(s) >= SURE)
            .map(|(e, _)| e)
            .collect();
        let left = top_k.saturating_sub(sure.len() as u32);
        let rate = |p: f64| match left {
            _ if p >= SURE => 0.0,
            1 => p,
            _ => -(-p).ln_1p(),
        };
        let mut rates: Vec<f64> = shares.iter().map(|s| rate(chance(s))).collect();
        if rates.iter().sum::<f64>() <= 0.0 {
            rates.fill(1.0);
        }
        Self {
            sure,
            ..Self::of_rates(&rates)
        }
    }

    /// Vose's construction.
    #[must_use]
    pub fn of_rates(rates: &[f64]) -> Self {
        let n = rates.len();
        let sum: f64 = rates.iter().sum();
        let mut scaled: Vec<f64> = rates.iter().map(|r| r * n as f64 / sum).collect();
        let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..n).partition(|i| scaled[*i] < 1.0);
        let mut table: Vec<u64> = (0..n as u64)
            .map(|i| u64::from(u32::MAX) << 32 | i)
            .collect();
        while let (Some(l), Some(h)) = (low.pop(), high.last().copied()) {
            let threshold = (scaled[l] * 4_294_967_296.0).min(4_294_967_295.0) as u64;
            table[l] = threshold << 32 | h as u64;
            scaled[h] -= 1.0 - scaled[l];
            if scaled[h] < 1.0 {
                high.pop();
                low.push(h);
            }
        }
        Self {
            table,
            sure: Vec::new(),
        }
    }

    /// One expert from 64 random bits: the high half picks the column, the low half the side.
    #[inline]
    fn pick(&self, bits: u64) -> u32 {
        let column = ((bits >> 32) * self.table.len() as u64) >> 32;
        let entry = self.table[column as usize];
        let keep = u64::from((bits as u32) < (entry >> 32) as u32).wrapping_neg();
        ((column & keep) | (entry & !keep)) as u32
    }
}

/// Loads of the experts, each with the last token that chose it: one word per expert, so that a
/// repeat is seen and a load is counted by one memory access.
#[derive(Clone, Debug)]
pub struct Histogram {
    words: Vec<u64>,
    token: u32,
}

impl Histogram {
    /// No token yet.
    #[must_use]
    pub fn new(experts: usize) -> Self {
        Self {
            words: vec![u64::from(u32::MAX) << 32; experts],
            token: u32::MAX,
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.words.fill(u64::from(u32::MAX) << 32);
        self.token = u32::MAX;
    }

    /// The loads.
    pub fn loads(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().map(|w| *w as u32)
    }

    /// Starts a token.
    #[inline]
    fn next(&mut self) -> u64 {
        self.token = self.token.wrapping_add(1);
        u64::from(self.token) << 32
    }

    /// Counts an expert unless the token has chosen it already.
    #[inline]
    fn add(&mut self, expert: u32, token: u64) -> bool {
        let word = &mut self.words[expert as usize];
        if *word & !u64::from(u32::MAX) == token {
            return false;
        }
        *word = token | u64::from((*word as u32).wrapping_add(1));
        true
    }
}

impl Sampler {
    /// Draws `tokens` tokens of k experts each into `into`.
    pub fn count(&self, tokens: u32, top_k: u32, into: &mut Histogram, rng: &mut Pcg64) {
        let experts = into.words.len() as u32;
        match self {
            Self::Uniform if top_k * 2 <= experts && experts.is_power_of_two() => {
                count_bits(tokens, top_k, into, rng);
            }
            Self::Uniform if top_k * 2 <= experts => count_halves(tokens, top_k, into, rng),
            Self::Weighted(alias) if alias.sure.is_empty() => {
                for _ in 0..tokens {
                    let token = into.next();
                    let mut n = 0;
                    while n < top_k {
                        n += u32::from(into.add(alias.pick(rng.next_u64()), token));
                    }
                }
            }
            _ => {
                let mut picks = vec![0; top_k as usize];
                for _ in 0..tokens {
                    self.token(experts, &mut picks, rng);
                    let token = into.next();
                    for e in &picks {
                        into.add(*e, token);
                    }
                }
            }
        }
    }

    /// Draws one token's experts into `picks`, in no order.
    pub fn token(&self, experts: u32, picks: &mut [u32], rng: &mut Pcg64) {
        match self {
            Self::Uniform => floyd(experts, picks, rng),
            Self::Weighted(alias) => {
                let mut n = alias.sure.len().min(picks.len());
                picks[..n].copy_from_slice(&alias.sure[..n]);
                while n < picks.len() {
                    let e = alias.pick(rng.next_u64());
                    if !picks[..n].contains(&e) {
                        picks[n] = e;
                        n += 1;
                    }
                }
            }
            Self::Grouped(g) => g.token(experts as usize, picks, rng),
        }
    }
}

/// One word holds several candidates where E is a power of two.
fn count_bits(tokens: u32, top_k: u32, into: &mut Histogram, rng: &mut Pcg64) {
    let experts = into.words.len() as u32;
    let width = experts.trailing_zeros();
    let per_word = 64 / width;
    let mask = experts - 1;
    let (mut bits, mut left) = (0u64, 0u32);
    for _ in 0..tokens {
        let token = into.next();
        let mut n = 0;
        while n < top_k {
            if left == 0 {
                bits = rng.next_u64();
                left = per_word;
            }
            n += u32::from(into.add(bits as u32 & mask, token));
            bits >>= width;
            left -= 1;
        }
    }
}

/// Each half of a word is a candidate; multiply-and-shift prefers no expert by more than E/2³².
fn count_halves(tokens: u32, top_k: u32, into: &mut Histogram, rng: &mut Pcg64) {
    let experts = into.words.len() as u64;
    let (mut bits, mut second) = (0u64, false);
    for _ in 0..tokens {
        let token = into.next();
        let mut n = 0;
        while n < top_k {
            bits = if second { bits >> 32 } else { rng.next_u64() };
            second = !second;
            let expert = ((bits & u64::from(u32::MAX)) * experts) >> 32;
            n += u32::from(into.add(expert as u32, token));
        }
    }
}

/// Floyd's sampling: k different numbers below n from k draws.
fn floyd(n: u32, picks: &mut [u32], rng: &mut Pcg64) {
    let k = picks.len() as u32;
    for (i, j) in (n - k..n).enumerate() {
        let t = rng.below(j + 1);
        picks[i] = if picks[..i].contains(&t) { j } else { t };
    }
}

impl Grouped {
    fn token(&self, experts: usize, picks: &mut [u32], rng: &mut Pcg64) {
        let mut scores = Vec::with_capacity(experts);
        for e in 0..experts {
            let u = rng.uniform();
            scores.push(self.exponents.get(e).map_or(u, |x| u.powf(*x)));
        }
        let mut groups: Vec<(f64, usize)> = scores
            .chunks(self.size)
            .enumerate()
            .map(|(g, s)| {
                let (a, b) = s.iter().fold((0.0f64, 0.0f64), |(a, b), x| {
                    if *x > a { (*x, a) } else { (a, b.max(*x)) }
                });
                (a + b, g)
            })
            .collect();
        groups.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut kept: Vec<(f64, u32)> = groups[..self.keep]
            .iter()
            .flat_map(|(_, g)| g * self.size..(g + 1) * self.size)
            .map(|e| (scores[e], e as u32))
            .collect();
        kept.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (pick, (_, e)) in picks.iter_mut().zip(kept) {
            *pick = e;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(sampler: &Sampler, experts: usize, k: u32, tokens: u32) -> Vec<f64> {
        let mut histogram = Histogram::new(experts);
        sampler.count(tokens, k, &mut histogram, &mut Pcg64::new(11, 0));
        histogram.loads().map(f64::from).collect()
    }

    #[test]
    fn every_token_chooses_k_different_experts() {
        for (e, k) in [(8, 2), (8, 8), (7, 3), (384, 8), (256, 8), (2, 1), (6, 5)] {
            let all = loads(&Sampler::Uniform, e, k, 1000);
            assert_eq!(all.iter().sum::<f64>(), f64::from(k) * 1000.0);
            assert!(all.iter().all(|x| *x <= 1000.0));
        }
    }

    #[test]
    fn shares_are_met_by_sampling_without_replacement() {
        let shares =
            super::super::routing::cap_shares(&[30.0, 10.0, 5.0, 5.0, 3.0, 2.0, 1.0, 0.5], 2);
        let all = loads(&Sampler::Weighted(Alias::new(&shares, 2)), 8, 2, 400_000);
        for (got, want) in all.iter().zip(&shares) {
            let got = got / 800_000.0;
            assert!((got - want).abs() < 0.01, "{got} {want}");
        }
    }

    #[test]
    fn group_limited_tokens_stay_in_their_groups() {
        let sampler = Sampler::Grouped(Grouped {
            size: 4,
            keep: 2,
            exponents: Vec::new(),
        });
        let mut picks = [0; 4];
        let mut rng = Pcg64::new(5, 5);
        for _ in 0..200 {
            sampler.token(32, &mut picks, &mut rng);
            let mut groups: Vec<u32> = picks.iter().map(|e| e / 4).collect();
            groups.sort_unstable();
            groups.dedup();
            assert!(groups.len() <= 2);
        }
    }
}
