//! Dense numbers for arbitrary 64-bit block keys.

/// From a key to a number counted from 0. Grows with distinct keys only.
///
/// Small keys, as traces that number their blocks have them, are looked up in a plain array; others
/// in an open-addressing table of numbers beside an array of keys, so that a probe loads four bytes
/// and the comparison finds its key next to that of the block before.
///
/// ```
/// use planner_core::kv::prefix::Intern;
/// let mut table = Intern::default();
/// assert_eq!([table.id(7), table.id(u64::MAX), table.id(7)], [0, 1, 0]);
/// assert_eq!(table.len(), 2);
/// ```
pub struct Intern {
    /// Number plus one by small key, 0: none.
    small: Vec<u32>,
    /// Number plus one, 0: empty.
    slots: Vec<u32>,
    /// Key by number.
    keys: Vec<u64>,
    /// Keys in `slots`.
    hashed: usize,
}

const MAX_KEYS: usize = u32::MAX as usize - 1;
/// Most entries of the plain array for each key seen, and for none.
const SPARSE: u64 = 4;
const SMALL_MIN: u64 = 1 << 12;

impl Default for Intern {
    fn default() -> Self {
        Self {
            small: Vec::new(),
            slots: vec![0; 1024],
            keys: Vec::new(),
            hashed: 0,
        }
    }
}

impl Intern {
    /// Forgets all keys and keeps the memory.
    pub fn clear(&mut self) {
        self.small.clear();
        self.slots.fill(0);
        self.keys.clear();
        self.hashed = 0;
    }

    /// The number of `key`, a new one if it was not seen.
    ///
    /// # Panics
    /// Beyond 2³² − 2 distinct keys.
    #[inline]
    pub fn id(&mut self, key: u64) -> u32 {
        if let Some(known) = self.small.get(key as usize)
            && key < 1 << 32
        {
            if *known > 0 {
                return *known - 1;
            }
            return self.add_small(key);
        }
        let mask = self.slots.len() - 1;
        let mut at = place(key) & mask;
        while self.slots[at] > 0 {
            let id = self.slots[at] - 1;
            if self.keys[id as usize] == key {
                return id;
            }
            at = (at + 1) & mask;
        }
        self.add(key, at)
    }

    fn next(&mut self, key: u64) -> u32 {
        assert!(
            self.keys.len() < MAX_KEYS,
            "more than 2^32 - 2 distinct blocks"
        );
        self.keys.push(key);
        self.keys.len() as u32
    }

    #[inline]
    fn add_small(&mut self, key: u64) -> u32 {
        let number = self.next(key);
        self.small[key as usize] = number;
        number - 1
    }

    /// A new key that is beyond the plain array: lengthens it, or takes the slot `at`.
    fn add(&mut self, key: u64, at: usize) -> u32 {
        if key < SPARSE * self.keys.len() as u64 + SMALL_MIN && key < 1 << 32 {
            let before = self.small.len() as u64;
            let enough = (key + 1).max(before + before / 8) as usize;
            self.small.resize(enough, 0);
            if self.hashed > 0 {
                for (number, key) in (1..).zip(&self.keys) {
                    if (before..enough as u64).contains(key) {
                        self.small[*key as usize] = number;
                    }
                }
            }
            return self.add_small(key);
        }
        let number = self.next(key);
        self.slots[at] = number;
        self.hashed += 1;
        if self.hashed * 2 > self.slots.len() {
            self.grow();
        }
        number - 1
    }

    /// Distinct keys.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.keys.len() as u32
    }

    /// Whether no key was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[cold]
    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let old = std::mem::replace(&mut self.slots, vec![0; mask + 1]);
        for number in old.into_iter().filter(|n| *n > 0) {
            let mut at = place(self.keys[number as usize - 1]) & mask;
            while self.slots[at] > 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = number;
        }
    }
}

#[inline]
fn place(key: u64) -> usize {
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ (product >> 32)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::Intern;

    proptest::proptest! {
        #[test]
        fn numbers_count_first_sights(
            keys in proptest::collection::vec(proptest::prop_oneof![0u64..200, 3000u64..40_000, proptest::num::u64::ANY], 0..3000)
        ) {
            let (mut table, mut known) = (Intern::default(), HashMap::new());
            for round in 0..2 {
                for key in &keys {
                    let next = known.len() as u32;
                    proptest::prop_assert_eq!(table.id(*key), *known.entry(*key).or_insert(next));
                }
                proptest::prop_assert_eq!(table.len() as usize, known.len());
                if round == 0 {
                    table.clear();
                    known.clear();
                }
            }
        }
    }
}
