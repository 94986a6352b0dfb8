//! Dense numbers for arbitrary 64-bit block keys.

/// Open-addressing table from key to a number counted from 0. Grows with distinct keys only.
///
/// ```
/// use planner_core::kv::prefix::Intern;
/// let mut table = Intern::default();
/// assert_eq!([table.id(7), table.id(u64::MAX), table.id(7)], [0, 1, 0]);
/// assert_eq!(table.len(), 2);
/// ```
pub struct Intern {
    slots: Vec<(u64, u32)>,
    len: u32,
}

const EMPTY: u32 = u32::MAX;

impl Default for Intern {
    fn default() -> Self {
        Self {
            slots: vec![(0, EMPTY); 1024],
            len: 0,
        }
    }
}

impl Intern {
    /// The number of `key`, a new one if it was not seen.
    ///
    /// # Panics
    /// Beyond 2³² − 1 distinct keys.
    #[inline]
    pub fn id(&mut self, key: u64) -> u32 {
        let mask = self.slots.len() - 1;
        let mut at = place(key) & mask;
        loop {
            let (found, id) = self.slots[at];
            if id == EMPTY {
                break;
            }
            if found == key {
                return id;
            }
            at = (at + 1) & mask;
        }
        assert!(self.len < EMPTY, "more than 2^32 - 1 distinct blocks");
        self.slots[at] = (key, self.len);
        self.len += 1;
        if self.len as usize * 2 > self.slots.len() {
            self.grow();
        }
        self.len - 1
    }

    /// Distinct keys.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no key was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cold]
    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let old = std::mem::replace(&mut self.slots, vec![(0, EMPTY); mask + 1]);
        for (key, id) in old {
            if id == EMPTY {
                continue;
            }
            let mut at = place(key) & mask;
            while self.slots[at].1 != EMPTY {
                at = (at + 1) & mask;
            }
            self.slots[at] = (key, id);
        }
    }
}

#[inline]
fn place(key: u64) -> usize {
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ (product >> 32)) as usize
}
