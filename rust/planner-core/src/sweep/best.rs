//! What a sweep keeps: the k fastest layouts, and the front of step time against memory.
//!
//! Both are sets defined by a total order (key, then number), so they do not depend on the order
//! of arrival, and parts found by different threads merge into the same result.

use super::Options;

/// Key of a numbered layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Step time, s.
    pub step_s: f64,
    /// Peak memory, bytes.
    pub peak_bytes: f64,
    /// Number of the layout.
    pub id: u64,
}

impl Found {
    fn before(&self, other: &Self) -> bool {
        (self.step_s, self.id) < (other.step_s, other.id)
    }
}

/// The k fastest.
#[derive(Clone, Debug)]
pub struct Top {
    size: usize,
    kept: Vec<Found>,
}

impl Top {
    /// Room for `size`.
    #[must_use]
    pub const fn new(size: usize) -> Self {
        Self {
            size,
            kept: Vec::new(),
        }
    }

    /// Step time that a layout must not exceed to get in.
    #[must_use]
    pub fn limit(&self) -> f64 {
        match self.kept.last() {
            _ if self.size == 0 => f64::NEG_INFINITY,
            Some(last) if self.kept.len() == self.size => last.step_s,
            _ => f64::INFINITY,
        }
    }

    /// Consider one.
    pub fn offer(&mut self, found: Found) {
        if found.step_s > self.limit() {
            return;
        }
        let place = self.kept.partition_point(|kept| kept.before(&found));
        self.kept.insert(place, found);
        self.kept.truncate(self.size);
    }

    /// Whether nothing was found.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Fastest first.
    #[must_use]
    pub fn sorted(&self) -> &[Found] {
        &self.kept
    }
}

/// Layouts that no other beats in both step time and memory. Of equal ones the first is kept.
#[derive(Clone, Debug, Default)]
pub struct Front {
    /// Ascending in step time, strictly descending in memory.
    points: Vec<Found>,
}

impl Front {
    /// Whether some point is no worse in both and better in one.
    #[must_use]
    pub fn beats(&self, step_s: f64, peak_bytes: f64) -> bool {
        let faster = self.points.partition_point(|p| p.step_s <= step_s);
        self.points[..faster].last().is_some_and(|p| {
            p.peak_bytes <= peak_bytes && (p.step_s < step_s || p.peak_bytes < peak_bytes)
        })
    }

    /// Consider one.
    pub fn offer(&mut self, found: Found) {
        if self.beats(found.step_s, found.peak_bytes) {
            return;
        }
        let start = self.points.partition_point(|p| p.step_s < found.step_s);
        if let Some(twin) = self.points.get_mut(start)
            && (twin.step_s, twin.peak_bytes) == (found.step_s, found.peak_bytes)
        {
            twin.id = twin.id.min(found.id);
            return;
        }
        let beaten = self.points[start..].partition_point(|p| p.peak_bytes >= found.peak_bytes);
        self.points.splice(start..start + beaten, [found]);
    }

    /// Fastest first.
    #[must_use]
    pub fn points(&self) -> &[Found] {
        &self.points
    }
}

/// Everything that a part of a sweep keeps.
#[derive(Clone, Debug)]
pub struct Best {
    /// The fastest.
    pub top: Top,
    /// The front.
    pub front: Front,
    /// Layouts estimated that fit.
    pub evaluated: u64,
    /// Layouts that do not fit.
    pub over_memory: u64,
    /// The estimated layout that needs least memory.
    pub leanest: Option<Found>,
    /// The first layout whose estimate is not a number: an input of the estimate is not one.
    pub broken: Option<u64>,
    pareto: bool,
}

impl Best {
    /// Nothing yet.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        Self {
            top: Top::new(options.top),
            front: Front::default(),
            evaluated: 0,
            over_memory: 0,
            leanest: None,
            broken: None,
            pareto: options.pareto,
        }
    }

    /// Whether a layout that is at best this fast and this small could still be kept.
    #[must_use]
    pub fn wants(&self, step_s: f64, peak_bytes: f64) -> bool {
        step_s <= self.top.limit() || (self.pareto && !self.front.beats(step_s, peak_bytes))
    }

    /// Consider a layout that fits.
    pub fn offer(&mut self, found: Found) {
        self.top.offer(found);
        if self.pareto {
            self.front.offer(found);
        }
    }

    /// Consider a layout as the one that needs least memory.
    pub fn offer_lean(&mut self, found: Found) {
        let key = |f: &Found| (f.peak_bytes, f.id);
        if self
            .leanest
            .as_ref()
            .is_none_or(|kept| key(&found) < key(kept))
        {
            self.leanest = Some(found);
        }
    }

    /// Note a layout whose estimate is not a number.
    pub fn note_broken(&mut self, id: u64) {
        self.broken = Some(self.broken.map_or(id, |known| known.min(id)));
    }

    /// Both parts together.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        for &found in other.top.sorted() {
            self.top.offer(found);
        }
        for &found in other.front.points() {
            self.front.offer(found);
        }
        if let Some(found) = other.leanest {
            self.offer_lean(found);
        }
        if let Some(id) = other.broken {
            self.note_broken(id);
        }
        self.evaluated += other.evaluated;
        self.over_memory += other.over_memory;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_of_arrival_does_not_matter(
            keys in prop::collection::vec((0u8..12, 0u8..12), 1..60), size in 0usize..6, cut in 0usize..60,
        ) {
            let options = Options { top: size, ..Options::default() };
            let found: Vec<_> = (0..).zip(&keys)
                .map(|(id, &(s, b))| Found { step_s: f64::from(s), peak_bytes: f64::from(b), id })
                .collect();
            let mut forward = Best::new(&options);
            found.iter().for_each(|&f| forward.offer(f));
            let (mut a, mut b) = (Best::new(&options), Best::new(&options));
            for (i, &f) in found.iter().enumerate().rev() {
                if i < cut { a.offer(f) } else { b.offer(f) }
            }
            let merged = b.merge(a);
            prop_assert_eq!(merged.top.sorted(), forward.top.sorted());
            prop_assert_eq!(merged.front.points(), forward.front.points());

            let mut sorted = found.clone();
            sorted.sort_by(|x, y| (x.step_s, x.id).partial_cmp(&(y.step_s, y.id)).unwrap());
            sorted.truncate(size);
            prop_assert_eq!(forward.top.sorted(), &sorted[..]);
            let beaten = |f: &Found| found.iter().any(|g| {
                g.step_s <= f.step_s && g.peak_bytes <= f.peak_bytes
                    && (g.step_s < f.step_s || g.peak_bytes < f.peak_bytes
                        || g.id < f.id)
            });
            let front = found.iter().filter(|f| !beaten(f)).count();
            prop_assert_eq!(front, forward.front.points().len());
        }
    }
}
