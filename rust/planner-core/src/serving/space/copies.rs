//! How many deployments engines make: replicas of one kind, or pairs of worker counts.

use std::collections::BTreeMap;

/// Engines by the GPUs that one takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    /// Count `n` engines of `gpus` GPUs.
    pub fn add(&mut self, gpus: u32, n: u64) {
        *self.0.entry(gpus).or_default() += n;
    }

    /// Engines, by GPUs.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().map(|(&gpus, &n)| (gpus, n))
    }

    /// The engines that none of the parts counts.
    #[must_use]
    pub fn less<'a>(&self, parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut left = self.clone();
        for (gpus, n) in parts.flat_map(Self::iter) {
            if let Some(own) = left.0.get_mut(&gpus) {
                *own -= n;
            }
        }
        left
    }

    /// Engines in all.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Numbers of workers that a job may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// GPUs of the job.
    pub gpus: u32,
    /// Workers that may decode (or do both), ascending; none: any number.
    pub decode: Option<Vec<u32>>,
    /// Workers that may prefill, ascending; none: any number.
    pub prefill: Option<Vec<u32>>,
}

impl Copies {
    /// Numbers of aggregated workers of `each` GPUs; one at least, so that an engine too large for
    /// the job still counts as a deployment.
    #[must_use]
    pub fn single(&self, each: u32) -> Vec<u32> {
        let most = (self.gpus / each).max(1);
        within(self.decode.as_ref(), most)
    }

    /// Deployments of aggregated engines.
    ///
    /// ```
    /// use planner_core::serving::space::copies::Copies;
    /// let copies = Copies { gpus: 64, decode: None, prefill: None };
    /// assert_eq!(copies.singles(8), 8);
    /// ```
    #[must_use]
    pub fn singles(&self, each: u32) -> u128 {
        self.single(each).len() as u128
    }

    /// Numbers (prefill, decode) of workers of `prefill` and `decode` GPUs.
    ///
    /// ```
    /// use planner_core::serving::space::copies::Copies;
    /// let copies = Copies { gpus: 24, decode: None, prefill: None };
    /// assert_eq!(copies.pairs(8, 8).collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1)]);
    /// assert_eq!(copies.count_pairs(8, 8), 3);
    /// ```
    pub fn pairs(&self, prefill: u32, decode: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let most = (self.gpus.saturating_sub(decode) / prefill).max(1);
        within(self.prefill.as_ref(), most)
            .into_iter()
            .flat_map(move |x| {
                let left = self.gpus.saturating_sub(x * prefill);
                let least = if x == 1 { 1 } else { 0 };
                within(self.decode.as_ref(), (left / decode).max(least))
                    .into_iter()
                    .map(move |y| (x, y))
            })
    }

    /// Number of [`Self::pairs`].
    #[must_use]
    pub fn count_pairs(&self, prefill: u32, decode: u32) -> u128 {
        if self.prefill.is_some() || self.decode.is_some() {
            return self.pairs(prefill, decode).count() as u128;
        }
        let most = (self.gpus.saturating_sub(decode) / prefill).max(1);
        let count = |x: u32| self.gpus.saturating_sub(x * prefill) / decode;
        (1..=most)
            .map(|x| u128::from(count(x)))
            .sum::<u128>()
            .max(1)
    }
}

/// 1..=most, or the stated numbers up to it; stated numbers that are all beyond: the least of them.
fn within(stated: Option<&Vec<u32>>, most: u32) -> Vec<u32> {
    match stated {
        None => (1..=most).collect(),
        Some(list) => {
            let mut fit: Vec<u32> = list.iter().copied().filter(|&n| n <= most).collect();
            if fit.is_empty() && most > 0 {
                fit.extend(list.first());
            }
            fit
        }
    }
}
