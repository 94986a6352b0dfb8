//! Packing replicas on ranks: longest first, then swaps between the fullest rank and the others.
//!
//! A rank's cost is its load over its speed, so that unequal GPUs are packed in proportion.

use super::shape::Placement;

/// A replica: its load and its expert.
pub type Item = (f64, u32);

/// Replicas on ranks, each rank's slots sorted heaviest first.
#[derive(Clone, Debug)]
pub struct Packing {
    /// Slots per rank.
    pub size: usize,
    /// Slots, rank after rank.
    pub slots: Vec<Item>,
    /// Load of each rank.
    pub loads: Vec<f64>,
}

/// Relative improvements below this are rounding.
const EPS: f64 = 1e-12;

/// Replicas of all experts, heaviest first, ties by expert.
#[must_use]
pub fn replicas(loads: &[f64], counts: &[u32]) -> Vec<Item> {
    let mut experts: Vec<(f64, u32)> = loads
        .iter()
        .zip(counts)
        .enumerate()
        .map(|(e, (w, c))| (w / f64::from(*c), e as u32))
        .collect();
    experts.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut items = Vec::with_capacity(counts.iter().sum::<u32>() as usize);
    for (w, e) in experts {
        items.extend(std::iter::repeat_n((w, e), counts[e as usize] as usize));
    }
    items
}

impl Packing {
    /// Longest first: each replica to the rank with a free slot whose cost it raises least, a rank
    /// without that expert where one costs the same.
    #[must_use]
    pub fn longest_first(items: &[Item], speeds: &[f64]) -> Self {
        let ranks = speeds.len();
        let size = items.len() / ranks;
        let mut packing = Self {
            size,
            slots: vec![(0.0, u32::MAX); items.len()],
            loads: vec![0.0; ranks],
        };
        let mut held = vec![0usize; ranks];
        let mut open: Vec<usize> = (0..ranks).collect();
        for &(w, e) in items {
            let mut best = (f64::INFINITY, 0);
            for (i, &r) in open.iter().enumerate() {
                let cost = (packing.loads[r] + w) / speeds[r];
                if cost < best.0
                    && packing.slots[r * size..r * size + held[r]]
                        .last()
                        .is_none_or(|x| x.1 != e)
                {
                    best = (cost, i);
                }
            }
            let r = open[best.1];
            packing.slots[r * size + held[r]] = (w, e);
            packing.loads[r] += w;
            held[r] += 1;
            if held[r] == size {
                open.remove(best.1);
            }
        }
        packing
    }

    /// Two slots a rank, equal ranks: heaviest with lightest is the best pairing there is.
    #[must_use]
    pub fn paired(items: &[Item]) -> Self {
        let n = items.len();
        let mut slots = Vec::with_capacity(n);
        let mut loads = Vec::with_capacity(n / 2);
        for i in 0..n / 2 {
            slots.extend([items[i], items[n - 1 - i]]);
            loads.push(items[i].0 + items[n - 1 - i].0);
        }
        Self {
            size: 2,
            slots,
            loads,
        }
    }

    /// From a placement.
    #[must_use]
    pub fn of(placement: &Placement, loads: &[f64], ranks: usize) -> Self {
        let item = |&e: &u32| {
            (
                loads[e as usize] / f64::from(placement.logical_count[e as usize]),
                e,
            )
        };
        let mut slots: Vec<Item> = placement.physical_to_logical.iter().map(item).collect();
        let size = slots.len() / ranks;
        for rank in slots.chunks_mut(size) {
            rank.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        }
        let loads = slots
            .chunks(size)
            .map(|r| r.iter().map(|i| i.0).sum())
            .collect();
        Self { size, slots, loads }
    }

    /// The fullest rank and its cost.
    #[must_use]
    pub fn fullest(&self, speeds: &[f64]) -> (usize, f64) {
        let mut best = (0, f64::NEG_INFINITY);
        for (r, (load, speed)) in self.loads.iter().zip(speeds).enumerate() {
            let cost = load / speed;
            if cost > best.1 {
                best = (r, cost);
            }
        }
        best
    }

    /// Slots of a rank.
    #[must_use]
    pub fn rank(&self, r: usize) -> &[Item] {
        &self.slots[r * self.size..(r + 1) * self.size]
    }

    /// Swaps between the fullest rank and another while that lowers the fullest, at most `limit`
    /// times, or until the cost is within `goal`. Returns the cost.
    pub fn improve(&mut self, speeds: &[f64], goal: f64, limit: usize) -> f64 {
        for _ in 0..limit {
            let (full, cost) = self.fullest(speeds);
            if cost <= goal {
                return cost;
            }
            let Some((other, i, j)) = self.best_swap(full, cost, speeds) else {
                return cost;
            };
            self.swap(full, i, other, j);
        }
        self.fullest(speeds).1
    }

    /// The swap that leaves the lower of the two new costs lowest. Both ranks are sorted, so two
    /// pointers find the nearest difference to the ideal one.
    fn best_swap(&self, full: usize, cost: f64, speeds: &[f64]) -> Option<(usize, usize, usize)> {
        let mut best = cost * (1.0 - EPS);
        let mut found = None;
        let mine = self.rank(full);
        let (sm, lm) = (speeds[full], self.loads[full]);
        for other in (0..speeds.len()).filter(|r| *r != full) {
            let (so, lo) = (speeds[other], self.loads[other]);
            let ideal = (lm * so - lo * sm) / (sm + so);
            if ideal <= 0.0 || (lm - ideal) / sm >= best {
                continue;
            }
            let theirs = self.rank(other);
            let mut j = 0;
            for (i, a) in mine.iter().enumerate() {
                while j < theirs.len() && a.0 - theirs[j].0 < ideal {
                    j += 1;
                }
                for t in [j.wrapping_sub(1), j] {
                    let Some(b) = theirs.get(t) else { continue };
                    let d = a.0 - b.0;
                    let after = ((lm - d) / sm).max((lo + d) / so);
                    if d > 0.0 && after < best && self.may_swap(a.1, mine, b.1, theirs) {
                        best = after;
                        found = Some((other, i, t));
                    }
                }
            }
        }
        found
    }

    /// A swap must not put an expert beside itself.
    fn may_swap(&self, a: u32, mine: &[Item], b: u32, theirs: &[Item]) -> bool {
        !theirs.iter().any(|x| x.1 == a) && !mine.iter().any(|x| x.1 == b)
    }

    fn swap(&mut self, p: usize, i: usize, q: usize, j: usize) {
        let (a, b) = (self.slots[p * self.size + i], self.slots[q * self.size + j]);
        self.replace(p, i, b);
        self.replace(q, j, a);
    }

    /// Puts another replica in a slot, keeps the rank sorted and its load a fresh sum.
    fn replace(&mut self, r: usize, i: usize, item: Item) {
        let rank = &mut self.slots[r * self.size..(r + 1) * self.size];
        rank[i] = item;
        let mut at = i;
        while at > 0 && rank[at - 1].0 < rank[at].0 {
            rank.swap(at - 1, at);
            at -= 1;
        }
        while at + 1 < rank.len() && rank[at + 1].0 > rank[at].0 {
            rank.swap(at, at + 1);
            at += 1;
        }
        self.loads[r] = rank.iter().map(|x| x.0).sum();
    }

    /// Separates replicas of one expert that share a rank, where a swap with another rank keeps
    /// the cost within `limit`.
    pub fn separate(&mut self, speeds: &[f64], limit: f64) {
        for r in 0..speeds.len() {
            for i in 0..self.size {
                let e = self.rank(r)[i];
                if self.rank(r).iter().filter(|x| x.1 == e.1).count() > 1 {
                    self.move_away(r, i, speeds, limit);
                }
            }
        }
    }

    fn move_away(&mut self, r: usize, i: usize, speeds: &[f64], limit: f64) {
        let (w, e) = self.rank(r)[i];
        for other in (0..speeds.len()).filter(|o| *o != r) {
            if self.rank(other).iter().any(|x| x.1 == e) {
                continue;
            }
            for j in 0..self.size {
                let (v, f) = self.rank(other)[j];
                let fits = (self.loads[r] - w + v) / speeds[r] <= limit
                    && (self.loads[other] + w - v) / speeds[other] <= limit;
                if fits && !self.rank(r).iter().any(|x| x.1 == f) {
                    self.swap(r, i, other, j);
                    return;
                }
            }
        }
    }

    /// The map.
    #[must_use]
    pub fn placement(&self, experts: u32) -> Placement {
        Placement::from_map(self.slots.iter().map(|x| x.1).collect(), experts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_mend_what_longest_first_leaves() {
        // 3,3,2,2,2 + 0 on two ranks of three: longest first gives 7 and 5, the optimum is 6.
        let items: Vec<Item> = [3.0, 3.0, 2.0, 2.0, 2.0, 0.0]
            .iter()
            .zip(0..)
            .map(|(w, e)| (*w, e))
            .collect();
        let mut packing = Packing::longest_first(&items, &[1.0, 1.0]);
        assert_eq!(packing.fullest(&[1.0, 1.0]).1, 7.0);
        assert_eq!(packing.improve(&[1.0, 1.0], 0.0, 100), 6.0);
    }

    #[test]
    fn a_fast_rank_takes_more() {
        let items: Vec<Item> = [4.0, 3.0, 2.0, 1.0]
            .iter()
            .zip(0..)
            .map(|(w, e)| (*w, e))
            .collect();
        let speeds = [2.0, 1.0];
        let mut packing = Packing::longest_first(&items, &speeds);
        packing.improve(&speeds, 0.0, 100);
        assert_eq!(packing.loads, [7.0, 3.0]);
    }

    #[test]
    fn duplicates_are_moved_apart_when_it_is_free() {
        let placement = Placement::from_map(vec![0, 0, 1, 2], 3);
        let loads = [4.0, 2.0, 2.0];
        let mut packing = Packing::of(&placement, &loads, 2);
        packing.separate(&[1.0, 1.0], 4.0);
        assert_eq!(packing.placement(3).duplicates(2), 0);
    }
}
