//! Queues in a vector: taking from the front only moves an index.
//!
//! The front is looked at in every event, so it has to cost one load; what was taken is cut off
//! when it is half of the vector.

/// Elements in order, taken from the front.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    items: Vec<T>,
    head: usize,
}

/// So many taken elements are kept before they are cut off.
const KEPT: usize = 64;
/// A place in order is looked for one by one among so many of the last, then by halving.
const NEAR: usize = 16;

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            head: 0,
        }
    }
}

impl<T: Copy> Line<T> {
    pub fn clear(&mut self) {
        self.items.clear();
        self.head = 0;
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.items.len() - self.head
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn front(&self) -> Option<T> {
        self.items.get(self.head).copied()
    }

    #[inline]
    pub fn get(&self, i: usize) -> Option<T> {
        self.items.get(self.head + i).copied()
    }

    #[inline]
    pub fn back(&self) -> Option<T> {
        self.as_slice().last().copied()
    }

    #[inline]
    pub fn as_slice(&self) -> &[T] {
        self.items.get(self.head..).unwrap_or_default()
    }

    /// Takes the front, which there is.
    #[inline]
    pub fn take(&mut self) {
        self.head += 1;
        if self.head >= KEPT && 2 * self.head >= self.items.len() {
            self.cut();
        }
    }

    #[cold]
    fn cut(&mut self) {
        self.items.drain(..self.head.min(self.items.len()));
        self.head = 0;
    }

    #[inline]
    pub fn push_back(&mut self, item: T) {
        self.items.push(item);
    }

    pub fn push_front(&mut self, item: T) {
        if self.head == 0 {
            self.items.insert(0, item);
        } else {
            self.head -= 1;
            self.items[self.head] = item;
        }
    }

    /// Drops all but those that are to stay.
    pub fn retain(&mut self, stays: impl Fn(&T) -> bool) {
        self.cut();
        self.items.retain(stays);
    }
}

impl Line<u64> {
    /// Adds in ascending order.
    #[inline]
    pub fn insert(&mut self, key: u64) {
        let end = self.items.len();
        let near = self.head.max(end.saturating_sub(NEAR));
        // Counted, not looked for: the place cannot be foretold, and so neither can a branch.
        let later = self.items[near..].iter().filter(|k| **k > key).count();
        let mut at = end - later;
        if at == near {
            at = self.head + self.items[self.head..at].partition_point(|k| *k < key);
        }
        self.items.insert(at, key);
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use crate::moe::rng::Pcg64;
    use std::cmp::Reverse;
    use std::collections::{BinaryHeap, VecDeque};

    #[test]
    fn a_line_is_a_queue() {
        let (mut line, mut queue) = (Line::default(), VecDeque::new());
        let mut rng = Pcg64::new(3, 0);
        for i in 0..20_000u32 {
            match rng.below(9) {
                0..4 => {
                    line.push_back(i);
                    queue.push_back(i);
                }
                4 => {
                    line.push_front(i);
                    queue.push_front(i);
                }
                5 if i % 97 == 0 => {
                    line.retain(|x| x % 3 > 0);
                    queue.retain(|x| x % 3 > 0);
                }
                _ => {
                    if !line.is_empty() {
                        line.take();
                    }
                    queue.pop_front();
                }
            }
            assert_eq!(line.front(), queue.front().copied());
            assert_eq!(line.back(), queue.back().copied());
            assert_eq!(line.get(3), queue.get(3).copied());
            assert_eq!(line.len(), queue.len());
        }
        assert!(line.as_slice().iter().eq(&queue));
    }

    #[test]
    fn a_line_of_keys_is_a_heap() {
        let (mut line, mut heap) = (Line::default(), BinaryHeap::new());
        let mut rng = Pcg64::new(4, 0);
        for i in 0..20_000u64 {
            let key = (i / 2 + rng.next_u64() % 900) << 32 | i;
            line.insert(key);
            heap.push(Reverse(key));
            if i > 300 {
                assert_eq!(line.front(), heap.pop().map(|Reverse(k)| k));
                line.take();
            }
        }
        assert!(line.as_slice().is_sorted());
    }
}
