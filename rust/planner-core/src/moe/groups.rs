//! Counting group-limited choices among equal experts.
//!
//! Scores have 16 bits. A row holds one expert of each group, so the best two of all groups are
//! found by a few minima and maxima over lanes. Of the experts in the kept groups only those above
//! a threshold are gathered, and of these the best are known by counting who is larger. Nothing
//! branches on a score, save that too few or too many were gathered. Each token turns groups and
//! experts by a random amount, so that a tie prefers nobody.

use super::lanes::{CHOICES, EXPERTS, Lanes};
use super::rng::{Pcg64, split_mix64};

/// Most groups.
const GROUPS: usize = 8;
/// Most experts of a group.
const ROWS: usize = 64;
/// Candidates that are ranked by counting; a good many more than are asked for.
const RANKED: usize = 24;
/// No candidate.
const NOBODY: u16 = u16::MAX;
/// Room for all candidates; a power of two, at least groups × rows.
const ROOM: usize = GROUPS * ROWS;

/// The bit of a row in each of its lanes.
const BITS: [i16; 16 * GROUPS] = {
    let mut bits = [0; 16 * GROUPS];
    let mut i = 0;
    while i < bits.len() {
        bits[i] = (1u16 << (i / GROUPS)) as i16;
        i += 1;
    }
    bits
};

/// A router of equal experts: groups of `size`, of which `keep` are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Router {
    groups: usize,
    size: usize,
    keep: usize,
    top_k: usize,
    /// Scores above this are candidates.
    above: i16,
}

/// A score of each group.
type Row = [i16; GROUPS];

/// Scores of a token and what is made of them.
struct Token {
    rows: [Row; ROWS],
    /// Scores of candidates, and eight times their rows plus their lanes.
    scores: [i16; ROOM],
    places: [u16; ROOM],
}

impl Router {
    /// The router, where it can be counted here.
    pub(super) fn new(experts: usize, size: usize, keep: usize, top_k: u32) -> Option<Self> {
        let groups = experts.checked_div(size)?;
        let fits = experts <= EXPERTS
            && top_k <= CHOICES
            && groups * size == experts
            && groups <= GROUPS
            && (2..=ROWS).contains(&size)
            && (1..=groups).contains(&keep)
            && top_k as usize <= keep * size;
        if !fits {
            return None;
        }
        // Kept groups have more good experts than others, hence fewer than wanted.
        let wanted = f64::from(top_k) + 4.0;
        let share = (wanted / (keep * size) as f64).min(1.0);
        let above = 32_767.0 - share * 65_536.0;
        Some(Self {
            groups,
            size,
            keep,
            top_k: top_k as usize,
            above: above.max(-32_768.0) as i16,
        })
    }

    /// Draws tokens. Bits come from SplitMix64, whose draws do not wait for each other, started by
    /// the generator of the trial.
    pub(super) fn count(&self, tokens: u32, lanes: &mut Lanes, rng: &mut Pcg64) {
        let mut state = rng.next_u64();
        let mut token = Token {
            rows: [[i16::MIN; GROUPS]; ROWS],
            scores: [0; ROOM],
            places: [0; ROOM],
        };
        for _ in 0..tokens {
            let turn = split_mix64(&mut state);
            token.draw(self.size, &mut state);
            let kept = token.kept_groups(self);
            let found = token.gather(self, &kept, self.above);
            let mut chosen = [NOBODY; RANKED];
            if (self.top_k..=RANKED).contains(&found) {
                token.rank(found, &mut chosen);
            }
            if chosen[..self.top_k].contains(&NOBODY) {
                chosen = token.sorted(self, &kept, found);
            }
            lanes.add_some(self.word(&chosen, turn), self.top_k);
        }
    }

    /// Experts as bytes of a word, groups and experts turned.
    #[inline]
    fn word(&self, chosen: &[u16; RANKED], turn: u64) -> u64 {
        let below = |bits: u64, n: usize| ((bits & 0xffff_ffff) * n as u64) >> 32;
        let (by_lane, by_row) = (below(turn, self.groups), below(turn >> 32, self.size));
        let wrap = |at: u64, n: usize| {
            let n = n as u64;
            if at >= n { at - n } else { at }
        };
        let mut word = 0;
        for (i, place) in chosen.iter().take(self.top_k).enumerate() {
            let lane = wrap(u64::from(place & 7) + by_lane, self.groups);
            let row = wrap(u64::from(place >> 3) + by_row, self.size);
            word |= (lane * self.size as u64 + row) << (8 * i);
        }
        word
    }
}

impl Token {
    #[inline]
    fn draw(&mut self, size: usize, state: &mut u64) {
        for row in &mut self.rows[..size] {
            let (a, b) = (split_mix64(state), split_mix64(state));
            let bits = [a.to_ne_bytes(), b.to_ne_bytes()];
            let (bytes, _) = bits.as_flattened().as_chunks::<2>();
            for (score, pair) in row.iter_mut().zip(bytes) {
                *score = i16::from_ne_bytes(*pair);
            }
        }
    }

    /// Best and second score of each lane: rows are paired, then pairs of pairs, in loops long enough
    /// to be done many lanes at a time.
    #[inline]
    fn best_two(&self, size: usize) -> ([i16; GROUPS], [i16; GROUPS]) {
        let mut half = size.next_power_of_two() / 2 * GROUPS;
        let (a, b) = self.rows.as_flattened().split_at(half);
        let (mut first, mut second) = ([0; ROOM / 2], [0; ROOM / 2]);
        for (((first, second), a), b) in first.iter_mut().zip(&mut second).zip(a).zip(b) {
            (*first, *second) = (*a.max(b), *a.min(b));
        }
        while half > GROUPS {
            half /= 2;
            let (first, more) = first.split_at_mut(half);
            let (second, less) = second.split_at_mut(half);
            for i in 0..half {
                second[i] = second[i].max(less[i]).max(first[i].min(more[i]));
                first[i] = first[i].max(more[i]);
            }
        }
        let lanes = |all: [i16; ROOM / 2]| std::array::from_fn(|lane| all[lane]);
        (lanes(first), lanes(second))
    }

    /// Lanes of the groups with the largest sums of two, those that are kept first.
    #[inline]
    fn kept_groups(&self, router: &Router) -> [u8; GROUPS] {
        let (first, second) = self.best_two(router.size);
        let mut sums = [i32::MIN; GROUPS];
        for lane in 0..router.groups {
            sums[lane] = (i32::from(first[lane]) + i32::from(second[lane])) << 3 | lane as i32;
        }
        let mut larger = [0; GROUPS];
        for other in sums {
            for lane in 0..GROUPS {
                larger[lane] += i32::from(other > sums[lane]);
            }
        }
        let mut kept = [0; GROUPS];
        let mut n = 0;
        for (lane, larger) in larger.iter().enumerate() {
            kept[n & (GROUPS - 1)] = lane as u8;
            n += usize::from(*larger < router.keep as i32);
        }
        kept
    }

    /// Gathers the experts of kept groups with scores above a threshold; how many there are.
    #[inline]
    fn gather(&mut self, router: &Router, kept: &[u8; GROUPS], above: i16) -> usize {
        let mut good = [0u64; GROUPS];
        for (i, block) in self.rows[..router.size].chunks(16).enumerate() {
            let mut bits = [0i16; 16 * GROUPS];
            for ((bits, score), bit) in bits.iter_mut().zip(block.as_flattened()).zip(&BITS) {
                *bits = -i16::from(*score > above) & bit;
            }
            let mut half = 8 * GROUPS;
            while half >= GROUPS {
                let (bits, more) = bits.split_at_mut(half);
                for (bits, more) in bits.iter_mut().zip(more) {
                    *bits |= *more;
                }
                half /= 2;
            }
            for (good, bits) in good.iter_mut().zip(bits) {
                *good |= u64::from(bits as u16) << (16 * i);
            }
        }
        let mut n = 0;
        for lane in &kept[..router.keep] {
            let lane = usize::from(lane & 7);
            let mut left = good[lane];
            while left > 0 {
                let row = left.trailing_zeros() as usize & (ROWS - 1);
                left &= left - 1;
                self.scores[n & (ROOM - 1)] = self.rows[row][lane];
                self.places[n & (ROOM - 1)] = (row << 3 | lane) as u16;
                n += 1;
            }
        }
        n
    }

    /// The best of the candidates first, by counting for each how many are larger. Equal ones leave
    /// a place to nobody.
    #[inline]
    fn rank(&mut self, found: usize, best: &mut [u16; RANKED]) {
        self.scores[found..RANKED].fill(i16::MIN);
        let mut all = [0; RANKED];
        all.copy_from_slice(&self.scores[..RANKED]);
        let mut larger = [0i16; RANKED];
        for other in all {
            for (rank, score) in larger.iter_mut().zip(&all) {
                *rank += i16::from(other > *score);
            }
        }
        for (place, rank) in self.places[..found].iter().zip(larger) {
            best[(rank as usize).min(RANKED - 1)] = *place;
        }
    }

    /// The same by sorting, of all experts in kept groups where too few were gathered.
    #[cold]
    fn sorted(&mut self, router: &Router, kept: &[u8; GROUPS], found: usize) -> [u16; RANKED] {
        let mut n = found;
        if found < router.top_k {
            for score in self.rows[..router.size].as_flattened_mut() {
                // The least score would not be above the threshold.
                *score = (*score).max(i16::MIN + 1);
            }
            n = self.gather(router, kept, i16::MIN);
        }
        let mut all: Vec<(i16, u16)> = self.scores.into_iter().zip(self.places).take(n).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut best = [NOBODY; RANKED];
        for (place, found) in best.iter_mut().zip(all) {
            *place = found.1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::super::sampler::{Grouped, Sampler};
    use super::*;

    /// Experts of one token.
    fn token(router: &Router, experts: usize, rng: &mut Pcg64) -> Vec<usize> {
        let mut lanes = Lanes::new();
        router.count(1, &mut lanes, rng);
        let loads = (0..experts).map(|e| (e, lanes.load(e)));
        loads.filter(|l| l.1 > 0).map(|l| l.0).collect()
    }

    const SHAPES: [(usize, usize, usize, u32); 7] = [
        (256, 32, 4, 8),
        (160, 20, 3, 6),
        (64, 8, 1, 8),
        (32, 4, 2, 4),
        (16, 2, 4, 8),
        (128, 64, 1, 8),
        (21, 7, 2, 5),
    ];

    #[test]
    fn tokens_choose_different_experts_of_the_kept_groups() {
        let mut rng = Pcg64::new(2, 0);
        for (experts, size, keep, k) in SHAPES {
            let router = Router::new(experts, size, keep, k).unwrap();
            for _ in 0..500 {
                let chosen = token(&router, experts, &mut rng);
                assert_eq!(chosen.len(), k as usize);
                let mut groups: Vec<usize> = chosen.iter().map(|e| e / size).collect();
                groups.dedup();
                assert!(groups.len() <= keep);
            }
        }
    }

    #[test]
    fn groups_are_used_as_often_as_by_scores_of_31_bits() {
        const TOKENS: u32 = 20_000;
        let mut rng = Pcg64::new(3, 0);
        for (experts, size, keep, k) in SHAPES {
            let router = Router::new(experts, size, keep, k).unwrap();
            let slow = Sampler::Grouped(Grouped {
                size,
                keep,
                exponents: Vec::new(),
            });
            // Tokens by how many of their experts are in their fullest group.
            let mut seen = [[0.0; 9]; 2];
            let fullest = |chosen: &[usize]| {
                let in_group = |g| chosen.iter().filter(|e| **e / size == g).count();
                (0..experts / size).map(in_group).max().unwrap_or(0)
            };
            let mut picks = vec![0; k as usize];
            for _ in 0..TOKENS {
                seen[0][fullest(&token(&router, experts, &mut rng))] += 1.0;
                slow.token(experts as u32, &mut picks, &mut rng);
                let chosen: Vec<usize> = picks.iter().map(|e| *e as usize).collect();
                seen[1][fullest(&chosen)] += 1.0;
            }
            for (quick, slow) in seen[0].iter().zip(&seen[1]) {
                // Four and a half deviations of a difference of two counts; seeds are fixed.
                let tolerance: f64 = 4.5 * f64::sqrt(quick + slow + 1.0);
                assert!((quick - slow).abs() <= tolerance, "{quick} {slow} {size}");
            }
        }
    }

    #[test]
    fn no_expert_is_preferred() {
        const TOKENS: u32 = 200_000;
        for (experts, size, keep, k) in SHAPES {
            let router = Router::new(experts, size, keep, k).unwrap();
            let mut lanes = Lanes::new();
            router.count(TOKENS, &mut lanes, &mut Pcg64::new(4, 0));
            let p = f64::from(k) / experts as f64;
            let mean = f64::from(TOKENS) * p;
            for e in 0..experts {
                let off = f64::from(lanes.load(e)) - mean;
                assert!(
                    off.abs() <= 5.0 * (mean * (1.0 - p)).sqrt(),
                    "{e} {off} {mean}"
                );
            }
        }
    }

    #[test]
    fn routers_that_do_not_fit_are_counted_elsewhere() {
        for (experts, size, keep, k) in [(512, 64, 4, 8), (256, 16, 4, 8), (64, 8, 1, 9)] {
            assert!(Router::new(experts, size, keep, k).is_none());
        }
    }
}
