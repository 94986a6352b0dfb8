//! What became of every deployment of the space.

use super::kept::Point;
use super::request::Job;
use super::verify::Verified;
use crate::serving::deployment::Engine;
use crate::serving::rules::RULES;
use crate::serving::space::copies::Histogram;
use crate::serving::space::{Engines, Side, Status};

/// An engine that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Example {
    /// Number of its kind.
    pub kind: usize,
    /// What it does.
    pub side: Side,
    /// The engine.
    pub engine: Engine,
}

/// Deployments that come nearest to the limits, where they are missed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Misses {
    /// Least overshoot of the worse limit.
    pub both: Option<Point>,
    /// Least time per output token among those that keep the time to first token.
    pub tpot: Option<Point>,
    /// Least time to first token among those that keep the time per output token.
    pub ttft: Option<Point>,
    /// Most requests a second among replays that fall behind the arrivals.
    pub rate: Option<(f64, Point)>,
}

/// The account: `total = evaluated + pruned + Σ rules + Σ statuses`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// Deployments of the space.
    pub total: u128,
    /// Estimated, and they keep every limit.
    pub evaluated: u128,
    /// Shown to be no better than one that was estimated.
    pub pruned: u128,
    /// What each rule of [`RULES`] rejects, with one example.
    pub rules: Vec<(u128, Option<Example>)>,
    /// What is rejected for another reason, by number of [`Status::ALL`].
    pub statuses: Vec<u128>,
    /// Nearest misses.
    pub misses: Misses,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            total: 0,
            evaluated: 0,
            pruned: 0,
            rules: vec![(0, None); RULES.len()],
            statuses: vec![0; Status::ALL.len()],
            misses: Misses::default(),
        }
    }
}

impl Tally {
    /// Rejected deployments.
    #[must_use]
    pub fn rejected(&self) -> u128 {
        self.rules.iter().map(|(n, _)| n).sum::<u128>() + self.statuses.iter().sum::<u128>()
    }

    /// Whether every deployment is accounted for.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.total == self.evaluated + self.pruned + self.rejected()
    }

    /// Count deployments that a rule rejects.
    pub fn breaks(&mut self, rule: usize, n: u128, example: Example) {
        if n > 0 {
            self.rules[rule].0 += n;
            self.rules[rule].1.get_or_insert(example);
        }
    }

    /// Count deployments that are rejected for another reason.
    pub fn lacks(&mut self, status: Status, n: u128) {
        self.statuses[status as usize] += n;
    }

    /// Sums of two parts; examples and misses of the first come first.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.total += other.total;
        self.evaluated += other.evaluated;
        self.pruned += other.pruned;
        for (own, (n, example)) in self.rules.iter_mut().zip(other.rules) {
            own.0 += n;
            own.1 = own.1.or(example);
        }
        for (own, n) in self.statuses.iter_mut().zip(other.statuses) {
            *own += n;
        }
        self.misses.merge(&other.misses);
        self
    }

    /// Account of aggregated engines before their flags are looked at.
    pub(super) fn singles(job: &Job, kind: usize, engines: &Engines) -> Self {
        let mut tally = Self::default();
        let all = |h: &Histogram| {
            let each = |(gpus, n): (u32, u64)| u128::from(n) * job.copies.singles(gpus);
            h.iter().map(each).sum::<u128>()
        };
        tally.total = all(&engines.total);
        for (rule, (count, example)) in engines.broken.iter().enumerate() {
            if let Some(engine) = example {
                let example = Example {
                    kind,
                    side: Side::Mixed,
                    engine: *engine,
                };
                tally.breaks(rule, all(count), example);
            }
        }
        tally
    }

    /// Account of pairs before flags are looked at: rules of prefill engines first, then those of
    /// decode engines beside prefill engines that obey.
    pub(super) fn pairs(job: &Job, kind: usize, prefill: &Engines, decode: &Engines) -> Self {
        let mut tally = Self::default();
        let obeying = obeying(prefill);
        tally.total = product(job, &prefill.total, &decode.total, false);
        for (rule, (count, example)) in prefill.broken.iter().enumerate() {
            if let Some(engine) = example {
                let n = product(job, count, &decode.total, false);
                let (side, engine) = (Side::Prefill, *engine);
                tally.breaks(rule, n, Example { kind, side, engine });
            }
        }
        for (rule, (count, example)) in decode.broken.iter().enumerate() {
            if let Some(engine) = example {
                let n = product(job, &obeying, count, false);
                let (side, engine) = (Side::Decode, *engine);
                tally.breaks(rule, n, Example { kind, side, engine });
            }
        }
        let own = self::obeying(decode);
        let all = product(job, &obeying, &own, false);
        tally.lacks(Status::Topology, all - product(job, &obeying, &own, true));
        tally
    }
}

/// Engines that obey the rules of layouts.
pub(super) fn obeying(engines: &Engines) -> Histogram {
    engines.total.less(engines.broken.iter().map(|(h, _)| h))
}

/// Deployments of pairs of engines; `fitting`: only pairs that fit the GPUs together.
pub(super) fn product(job: &Job, prefill: &Histogram, decode: &Histogram, fitting: bool) -> u128 {
    let mut sum = 0;
    for (a, n) in prefill.iter().filter(|(_, n)| *n > 0) {
        for (b, m) in decode.iter().filter(|(_, m)| *m > 0) {
            if !fitting || a + b <= job.gpus {
                sum += u128::from(n) * u128::from(m) * job.copies.count_pairs(a, b);
            }
        }
    }
    sum
}

impl Misses {
    /// Look at a deployment that misses a limit.
    pub fn offer(&mut self, job: &Job, point: &Point) {
        let (ttft, tpot) = (job.goal.ttft_limit_s(), job.goal.tpot_limit_s());
        least(&mut self.both, point, &|p: &Point| p.overshoot);
        if point.ttft_s <= ttft {
            least(&mut self.tpot, point, &|p: &Point| p.tpot_s);
        }
        if point.tpot_s <= tpot {
            least(&mut self.ttft, point, &|p: &Point| p.ttft_s);
        }
    }

    /// Look at a deployment whose replay misses a limit that its closed form keeps.
    pub fn offer_replayed(&mut self, job: &Job, found: &Verified) {
        let (out, at) = (&found.estimate.outcome, job.goal.at);
        let mut point = found.point;
        if found.status == Status::Rate {
            // Times of a queue that grows say how long the replay was.
            self.serves((out.requests_per_s, point));
            return;
        }
        (point.ttft_s, point.tpot_s) = (at.of(&out.ttft_s), at.of(&out.tpot_s));
        point.overshoot =
            (point.ttft_s / job.goal.ttft_limit_s()).max(point.tpot_s / job.goal.tpot_limit_s());
        self.offer(job, &point);
    }

    fn serves(&mut self, one: (f64, Point)) {
        if self.rate.is_none_or(|kept| one.0 > kept.0) {
            self.rate = Some(one);
        }
    }

    fn merge(&mut self, other: &Self) {
        if let Some(one) = other.rate {
            self.serves(one);
        }
        for (own, found, key) in [
            (
                &mut self.both,
                other.both,
                (|p| p.overshoot) as fn(&Point) -> f64,
            ),
            (&mut self.tpot, other.tpot, |p| p.tpot_s),
            (&mut self.ttft, other.ttft, |p| p.ttft_s),
        ] {
            if let Some(point) = found {
                least(own, &point, &key);
            }
        }
    }
}

fn least(own: &mut Option<Point>, point: &Point, key: &dyn Fn(&Point) -> f64) {
    if own.as_ref().is_none_or(|kept| key(point) < key(kept)) {
        *own = Some(*point);
    }
}
