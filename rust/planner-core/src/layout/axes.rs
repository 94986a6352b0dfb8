//! The axes of the space: which values each degree of freedom may take.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::layout::facts::Facts;
use crate::layout::{Recompute, Schedule, Sharding};

/// Largest context-parallel degree that is tried unless the caller asks for more.
pub const CP_LIMIT: u32 = 64;
/// Largest expert tensor-parallel degree that is tried unless the caller asks for more.
pub const ETP_LIMIT: u32 = 64;
/// Most virtual chunks per stage that are tried unless the caller asks for more.
pub const VPP_LIMIT: u32 = 16;
/// Largest micro-batch that is tried unless the caller asks for more.
pub const MICRO_BATCH_LIMIT: u32 = 64;

/// Values of a numeric axis as the caller states them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    /// One value.
    Pin(u32),
    /// Exactly these.
    List(Vec<u32>),
    /// The values that would be tried anyway, within bounds.
    Range {
        /// Least value.
        #[serde(default)]
        min: Option<u32>,
        /// Greatest value; it replaces the axis' own limit.
        #[serde(default)]
        max: Option<u32>,
    },
}

/// What the caller says about each axis; `None` leaves it open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Axes {
    /// Tensor-parallel degree.
    pub tp: Option<Choice>,
    /// Context-parallel degree.
    pub cp: Option<Choice>,
    /// Expert-parallel degree.
    pub ep: Option<Choice>,
    /// Tensor-parallel degree inside an expert.
    pub etp: Option<Choice>,
    /// Pipeline stages.
    pub pp: Option<Choice>,
    /// Data-parallel degree (otherwise whatever the other degrees leave).
    pub dp: Option<Choice>,
    /// Virtual chunks per stage.
    pub vpp: Option<Choice>,
    /// Sequences in a micro-batch.
    pub micro_batch: Option<Choice>,
    /// Sequence parallelism, where tp > 1.
    pub sequence_parallel: Option<Vec<bool>>,
    /// Kinds of recomputation.
    pub recompute: Option<Vec<Recompute>>,
    /// Layers per stage for block recomputation (otherwise half a stage's).
    pub recompute_layers: Option<Vec<u32>>,
    /// Kinds of sharding.
    pub sharding: Option<Vec<Sharding>>,
    /// Ranks in an HSDP shard group (otherwise the data-parallel ranks of one NVLink domain).
    pub shard_group: Option<Vec<u32>>,
    /// Schedules.
    pub schedule: Option<Vec<Schedule>>,
}

/// The values of every axis, sorted and without repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Tensor-parallel degrees.
    pub tp: Vec<u32>,
    /// Context-parallel degrees.
    pub cp: Vec<u32>,
    /// Expert-parallel degrees.
    pub ep: Vec<u32>,
    /// Expert tensor-parallel degrees.
    pub etp: Vec<u32>,
    /// Pipeline stages.
    pub pp: Vec<u32>,
    /// Data-parallel degrees, if the caller restricts them.
    pub dp: Option<Vec<u32>>,
    /// Micro-batches.
    pub micro_batch: Vec<u32>,
    /// Sequence parallelism where tp > 1; at tp = 1 the only value is off.
    pub sequence_parallel: Vec<bool>,
    /// Recomputation with the layers of `block`; `None`: half a stage's.
    pub recompute: Vec<(Recompute, Option<u32>)>,
    /// Schedule with its chunks per stage: more than one exactly where it interleaves.
    pub plan: Vec<(Schedule, u32)>,
    /// Sharding with the group of HSDP; `None`: the ranks of one domain.
    pub sharding: Vec<(Sharding, Option<u32>)>,
}

/// Divisors of `n`, ascending.
///
/// ```
/// use planner_core::layout::axes::divisors;
/// assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
/// assert_eq!(divisors(98_304).len(), 32); // 3 · 2^15
/// ```
#[must_use]
pub fn divisors(n: u64) -> Vec<u32> {
    let mut out = Vec::new();
    let mut d = 1;
    while d * d <= n {
        if n.is_multiple_of(d) {
            out.extend(u32::try_from(d).ok());
            if d * d != n {
                out.extend(u32::try_from(n / d).ok());
            }
        }
        d += 1;
    }
    out.sort_unstable();
    out
}

/// The values of one numeric axis: the caller's, or those of `open` up to `limit`.
pub(crate) fn values(
    name: &str,
    choice: Option<&Choice>,
    open: Vec<u32>,
    limit: u32,
) -> Result<Vec<u32>> {
    let out = values_or_none(name, choice, open, limit)?;
    match out.first() {
        Some(0) => Err(Error::field(name, 0, "must be at least 1")),
        _ => Ok(out),
    }
}

/// As [`values`], where 0 stands for "none of it".
pub(crate) fn values_or_none(
    name: &str,
    choice: Option<&Choice>,
    open: Vec<u32>,
    limit: u32,
) -> Result<Vec<u32>> {
    let mut out = match choice {
        Some(Choice::Pin(value)) => vec![*value],
        Some(Choice::List(list)) => list.clone(),
        Some(Choice::Range { min, max }) => {
            let (min, max) = (min.unwrap_or(0), max.unwrap_or(limit));
            open.into_iter()
                .filter(|v| (min..=max).contains(v))
                .collect()
        }
        None => open.into_iter().filter(|&v| v <= limit).collect(),
    };
    distinct(name, &mut out)?;
    Ok(out)
}

fn distinct<T: Ord>(name: &str, values: &mut Vec<T>) -> Result<()> {
    values.sort_unstable();
    values.dedup();
    if values.is_empty() {
        return Err(Error::field(name, "[]", "leaves no value to try"));
    }
    Ok(())
}

fn names<T: Ord + Copy>(name: &str, choice: Option<&Vec<T>>, open: &[T]) -> Result<Vec<T>> {
    let mut out = choice.map_or_else(|| open.to_vec(), Clone::clone);
    distinct(name, &mut out)?;
    Ok(out)
}

/// Pair the one kind that takes a number with each number, every other kind with none.
fn with_numbers<T: Ord + Copy>(
    kinds: Vec<T>,
    kind: T,
    numbers: Option<&Vec<u32>>,
) -> Vec<(T, Option<u32>)> {
    let mut out = Vec::new();
    for k in kinds {
        match numbers {
            Some(list) if k == kind => out.extend(list.iter().map(|&n| (k, Some(n)))),
            _ => out.push((k, None)),
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

impl Axes {
    /// Resolve every axis for a job.
    ///
    /// # Errors
    /// When an axis is left without values, a degree does not divide the world, or `vpp` and
    /// `schedule` contradict each other.
    pub fn candidates(&self, facts: &Facts) -> Result<Candidates> {
        let world = divisors(facts.world);
        let experts = if facts.is_moe() {
            divisors(facts.shape.experts)
        } else {
            vec![1]
        };
        let etp = if facts.is_moe() {
            world.clone()
        } else {
            vec![1]
        };
        let out = Candidates {
            tp: values("tp", self.tp.as_ref(), world.clone(), u32::MAX)?,
            cp: values("cp", self.cp.as_ref(), world.clone(), CP_LIMIT)?,
            ep: values("ep", self.ep.as_ref(), experts, u32::MAX)?,
            etp: values("etp", self.etp.as_ref(), etp, ETP_LIMIT)?,
            pp: values("pp", self.pp.as_ref(), world.clone(), u32::MAX)?,
            dp: match &self.dp {
                Some(choice) => Some(values("dp", Some(choice), world, u32::MAX)?),
                None => None,
            },
            micro_batch: values(
                "micro_batch",
                self.micro_batch.as_ref(),
                divisors(facts.batch),
                MICRO_BATCH_LIMIT,
            )?,
            sequence_parallel: names(
                "sequence_parallel",
                self.sequence_parallel.as_ref(),
                &[false, true],
            )?,
            recompute: with_numbers(
                names("recompute", self.recompute.as_ref(), Recompute::ALL)?,
                Recompute::Block,
                self.recompute_layers.as_ref(),
            ),
            plan: self.plans()?,
            sharding: with_numbers(
                names("sharding", self.sharding.as_ref(), Sharding::ALL)?,
                Sharding::Hsdp,
                self.shard_group.as_ref(),
            ),
        };
        let degrees = [("tp", &out.tp), ("cp", &out.cp), ("pp", &out.pp)];
        for (name, list) in degrees
            .into_iter()
            .chain(out.dp.as_ref().map(|dp| ("dp", dp)))
        {
            if let Some(bad) = list
                .iter()
                .find(|&&v| !facts.world.is_multiple_of(u64::from(v)))
            {
                let rule = format!("must divide the {} GPUs", facts.world);
                return Err(Error::field(name, bad, rule));
            }
        }
        Ok(out)
    }

    fn plans(&self) -> Result<Vec<(Schedule, u32)>> {
        const OPEN: &[Schedule] = &[
            Schedule::GPipe,
            Schedule::OneFOneB,
            Schedule::Interleaved,
            Schedule::ZbH1,
        ];
        let schedules = names("schedule", self.schedule.as_ref(), OPEN)?;
        let chunks = values("vpp", self.vpp.as_ref(), (1..=256).collect(), VPP_LIMIT)?;
        let mut out = Vec::new();
        for schedule in schedules {
            let interleaves = schedule == Schedule::Interleaved;
            out.extend(
                chunks
                    .iter()
                    .filter(|&&v| (v > 1) == interleaves)
                    .map(|&v| (schedule, v)),
            );
        }
        if out.is_empty() {
            let rule = "vpp is above 1 with the interleaved schedule and only there";
            return Err(Error::field(
                "schedule",
                format!("{:?}", self.schedule),
                rule,
            ));
        }
        Ok(out)
    }
}
