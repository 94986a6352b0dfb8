//! Drawing the k experts of a token.

use super::groups::Router;
use super::lanes::{self, Bytes, CHOICES, EXPERTS, Lanes};
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
    /// 1/weight of each expert, for scores u^(1/weight); empty where all are alike. One per expert.
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

    /// The table for experts of one byte.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::new(&self.table)
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
/// repeat is seen and a load is counted by one memory access. Experts of one byte are counted in
/// lanes instead.
#[derive(Clone, Debug)]
pub struct Histogram {
    words: Vec<u64>,
    token: u32,
    lanes: Box<Lanes>,
}

impl Histogram {
    /// No token yet.
    #[must_use]
    pub fn new(experts: usize) -> Self {
        Self {
            words: vec![u64::from(u32::MAX) << 32; experts],
            token: u32::MAX,
            lanes: Box::new(Lanes::new()),
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.words.fill(u64::from(u32::MAX) << 32);
        self.token = u32::MAX;
        self.lanes.clear();
    }

    /// The loads.
    pub fn loads(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().map(|(e, w)| {
            let lanes = if e < EXPERTS { self.lanes.load(e) } else { 0 };
            (*w as u32).wrapping_add(lanes)
        })
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
        let in_bytes = into.words.len() <= EXPERTS && top_k <= CHOICES;
        match self {
            Self::Uniform if in_bytes && top_k * 2 <= experts && experts.is_power_of_two() => {
                lanes::uniform(tokens, top_k, experts, &mut into.lanes, rng);
            }
            Self::Weighted(alias) if in_bytes && alias.sure.is_empty() => {
                lanes::weighted(tokens, top_k, alias, &mut into.lanes, rng);
            }
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
            Self::Grouped(g) => {
                if let Some(router) = g.router(experts as usize, top_k) {
                    return router.count(tokens, &mut into.lanes, rng);
                }
                let mut picks = vec![0; top_k as usize];
                let mut scratch = Scores::default();
                for _ in 0..tokens {
                    g.token(experts as usize, &mut picks, &mut scratch, rng);
                    let token = into.next();
                    for e in &picks {
                        into.add(*e, token);
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
            Self::Grouped(g) => g.token(experts as usize, picks, &mut Scores::default(), rng),
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

/// Scratch memory of group-limited tokens: scores with their expert or group in the low half.
#[derive(Default)]
struct Scores {
    experts: Vec<u64>,
    groups: Vec<u64>,
    kept: Vec<u64>,
}

/// Bits of a group's number under the sum of two scores of 31 bits.
const GROUP_BITS: u32 = 32;

impl Grouped {
    /// The quick way, where experts are alike and few enough.
    fn router(&self, experts: usize, top_k: u32) -> Option<Router> {
        if !self.exponents.is_empty() {
            return None;
        }
        Router::new(experts, self.size, self.keep, top_k)
    }

    /// Scores have 31 bits (32 with their sum), so that one shares a word with a number, and words are
    /// compared.
    fn token(&self, experts: usize, picks: &mut [u32], s: &mut Scores, rng: &mut Pcg64) {
        self.scores(experts, &mut s.experts, rng);
        s.groups.clear();
        for (g, members) in s.experts.chunks(self.size).enumerate() {
            let (mut first, mut second) = (0, 0);
            for word in members {
                let score = word >> GROUP_BITS;
                second = second.max(score.min(first));
                first = first.max(score);
            }
            s.groups
                .push(self.sum(first, second) << GROUP_BITS | g as u64);
        }
        best_first(&mut s.groups, self.keep);
        s.kept.clear();
        for word in &s.groups[..self.keep] {
            let g = *word as u32 as usize;
            s.kept
                .extend_from_slice(&s.experts[g * self.size..(g + 1) * self.size]);
        }
        best_first(&mut s.kept, picks.len());
        for (pick, word) in picks.iter_mut().zip(&s.kept) {
            *pick = *word as u32;
        }
    }

    /// Sum of two scores: integers where all experts are alike, else the bits of two floats.
    fn sum(&self, a: u64, b: u64) -> u64 {
        if self.exponents.is_empty() {
            a + b
        } else {
            u64::from((f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits())
        }
    }

    fn scores(&self, experts: usize, into: &mut Vec<u64>, rng: &mut Pcg64) {
        into.clear();
        if self.exponents.is_empty() {
            for e in (0..experts as u64).step_by(2) {
                let bits = rng.next_u64();
                into.push(bits >> 33 << GROUP_BITS | e);
                into.push((bits & 0x7fff_ffff) << GROUP_BITS | (e + 1));
            }
            into.truncate(experts);
        } else {
            for (e, x) in self.exponents.iter().enumerate() {
                // Floats that are not negative are ordered as their bits.
                let score = (rng.uniform().powf(*x) as f32).to_bits();
                into.push(u64::from(score) << GROUP_BITS | e as u64);
            }
        }
    }
}

/// Moves the n largest words to the front, in no order.
fn best_first(words: &mut [u64], n: usize) {
    if n < words.len() {
        words.select_nth_unstable_by(n, |a, b| b.cmp(a));
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
