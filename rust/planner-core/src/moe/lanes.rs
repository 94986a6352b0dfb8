//! Counting choices where experts have numbers of one byte and a token at most eight of them: the
//! choices of a token are the bytes of a word.
//!
//! Repeats are looked for in all bytes at once, and loads are kept in two lanes that take turns, so
//! that an increment does not wait for the store of the one before.

use super::rng::Pcg64;
use super::sampler::Alias;

/// Most experts.
pub(super) const EXPERTS: usize = 256;
/// Most experts per token.
pub(super) const CHOICES: u32 = 8;
/// The lowest bit of every byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Loads of up to 256 experts, as two halves of a sum.
#[derive(Clone, Debug)]
pub(super) struct Lanes([[u32; EXPERTS]; 2]);

impl Lanes {
    pub(super) const fn new() -> Self {
        Self([[0; EXPERTS]; 2])
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(super) const fn load(&self, expert: usize) -> u32 {
        self.0[0][expert].wrapping_add(self.0[1][expert])
    }

    #[inline]
    fn add<const K: usize>(&mut self, word: u64) {
        for i in 0..K {
            let load = &mut self.0[i % 2][(word >> (8 * i)) as u8 as usize];
            *load = load.wrapping_add(1);
        }
    }

    /// Counts the lowest `k` bytes.
    #[inline]
    pub(super) fn add_some(&mut self, word: u64, k: usize) {
        for i in 0..k {
            let load = &mut self.0[i % 2][(word >> (8 * i)) as u8 as usize];
            *load = load.wrapping_add(1);
        }
    }
}

/// Calls a function that is made for each number of choices.
macro_rules! by_choices {
    ($k:expr, $f:ident($($arg:expr),*)) => {
        match $k {
            1 => $f::<1>($($arg),*),
            2 => $f::<2>($($arg),*),
            3 => $f::<3>($($arg),*),
            4 => $f::<4>($($arg),*),
            5 => $f::<5>($($arg),*),
            6 => $f::<6>($($arg),*),
            7 => $f::<7>($($arg),*),
            _ => $f::<8>($($arg),*),
        }
    };
}

/// Whether two of the lowest K bytes are the same: each is compared with the one r places on, for
/// r up to K/2.
#[inline]
const fn repeats<const K: usize>(word: u64) -> bool {
    let used = u64::MAX >> (64 - 8 * K);
    let word = word & used;
    let mut found = 0;
    let mut r = 1;
    while r <= K / 2 {
        let turned = (word >> (8 * r)) | (word << (8 * (K - r)));
        // A byte that is zero borrows; bytes that are not used must not look like one.
        let differ = (word ^ turned) | !used;
        found |= differ.wrapping_sub(ONES) & !differ;
        r += 1;
    }
    found & (ONES << 7) != 0
}

/// Uniform choices among a power of two of experts.
pub(super) fn uniform(tokens: u32, k: u32, experts: u32, lanes: &mut Lanes, rng: &mut Pcg64) {
    let mask = u64::from(experts - 1) * ONES;
    by_choices!(k, uniform_of(tokens, mask, lanes, rng));
}

fn uniform_of<const K: usize>(tokens: u32, mask: u64, lanes: &mut Lanes, rng: &mut Pcg64) {
    let per_word = 8 / K as u32;
    let mut token = 0;
    while token < tokens {
        let mut bits = rng.next_u64() & mask;
        for _ in 0..per_word.min(tokens - token) {
            let word = if repeats::<K>(bits) {
                mend::<K>(bits, rng, |rng| rng.next_u64() & mask)
            } else {
                bits
            };
            lanes.add::<K>(word);
            bits = bits.checked_shr(8 * K as u32).unwrap_or(0);
        }
        token += per_word;
    }
}

/// Choices by an alias table.
pub(super) fn weighted(tokens: u32, k: u32, alias: &Alias, lanes: &mut Lanes, rng: &mut Pcg64) {
    by_choices!(k, weighted_of(tokens, alias, lanes, rng));
}

fn weighted_of<const K: usize>(tokens: u32, alias: &Alias, lanes: &mut Lanes, rng: &mut Pcg64) {
    let table = alias.bytes();
    for _ in 0..tokens {
        let mut word = 0;
        for i in 0..K.div_ceil(2) {
            word |= table.pair(rng.next_u64()) << (16 * i);
        }
        if repeats::<K>(word) {
            word = mend::<K>(word, rng, |rng| {
                let mut more = 0;
                for i in 0..4 {
                    more |= table.pair(rng.next_u64()) << (16 * i);
                }
                more
            });
        }
        lanes.add::<K>(word);
    }
}

/// Keeps the first of each expert of a word and draws on until K are different.
#[cold]
fn mend<const K: usize>(word: u64, rng: &mut Pcg64, draw: impl Fn(&mut Pcg64) -> u64) -> u64 {
    let (mut kept, mut n) = (0u64, 0);
    let (mut bits, mut left) = (word, K);
    let mut seen = [0u64; EXPERTS / 64];
    loop {
        if left == 0 {
            (bits, left) = (draw(rng), 8);
        }
        let expert = bits as u8;
        let (slot, bit) = (usize::from(expert >> 6), 1 << (expert & 63));
        if seen[slot] & bit == 0 {
            seen[slot] |= bit;
            kept |= u64::from(expert) << (8 * n);
            n += 1;
            if n == K {
                return kept;
            }
        }
        bits >>= 8;
        left -= 1;
    }
}

/// An alias table of at most 256 columns, without bounds to check.
pub(super) struct Bytes {
    table: [u64; EXPERTS],
    columns: u64,
}

impl Bytes {
    pub(super) fn new(entries: &[u64]) -> Self {
        let mut table = [0; EXPERTS];
        table[..entries.len()].copy_from_slice(entries);
        Self {
            table,
            columns: entries.len() as u64,
        }
    }

    /// Two experts in two bytes. Each half of the bits, times the number of columns, has its column
    /// above the point and its side below.
    #[inline]
    fn pair(&self, bits: u64) -> u64 {
        let one = |half: u64| {
            let scaled = half * self.columns;
            let column = scaled >> 32;
            let entry = self.table[column as u8 as usize];
            let keep = u64::from((scaled as u32) < (entry >> 32) as u32).wrapping_neg();
            ((column & keep) | (entry & !keep)) & 0xff
        };
        one(bits >> 32) | one(bits & u64::from(u32::MAX)) << 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn repeats_are_seen(bytes in proptest::array::uniform8(0u8..12)) {
            let word = u64::from_le_bytes(bytes);
            let twice = |k: usize| (0..k).any(|i| bytes[..i].contains(&bytes[i]));
            prop_assert_eq!(repeats::<8>(word), twice(8));
            prop_assert_eq!(repeats::<7>(word), twice(7));
            prop_assert_eq!(repeats::<5>(word), twice(5));
            prop_assert_eq!(repeats::<4>(word), twice(4));
            prop_assert_eq!(repeats::<2>(word), twice(2));
            prop_assert!(!repeats::<1>(word));
        }
    }
}
