//! The best and the front, replayed request by request: what the closed form ranks, the replay
//! decides.
//!
//! Layouts are taken in the order of their closed form. One whose replay misses a limit is tried
//! with its next best setting. The walk ends when enough layouts have passed and no other could
//! still beat them by 1 %.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rayon::prelude::*;

use super::account::Tally;
use super::kept::{Kept, Point, Worth, density, worth};
use super::request::{Job, Objective, Statistic};
use super::traffic::Demand;
use super::{Found, Options};
use crate::error::Result;
use crate::serving::estimate::{self, Estimate, Mode, Question, Space};
use crate::serving::load::{Arrivals, Load};
use crate::serving::outcome::Limits;
use crate::serving::space::Status;
use crate::sweep::control::Control;

/// By how much a replay may be better than the closed form.
const SLACK: f64 = 0.01;
/// Deployments replayed at once.
const ROUND: usize = 8;
/// Most deployments that are replayed for the best, and most requests played for them.
const MOST: u64 = 4096;
const MOST_PLAYED: u64 = 4_000_000;
/// Deployments replayed after which the walk ends once one has passed.
const MANY: u64 = 256;
/// Requests played after which the walk ends once enough layouts have passed.
const MOST_REQUESTS: u64 = 500_000;
/// Most deployments replayed for an objective that is not the one asked for.
const TRIED: usize = 4;
/// Most points of a front that are replayed.
const FRONT: usize = 24;

/// How long open arrivals are played, in times of a request: whether the queue grows shows only after
/// several.
const LIFETIMES: f64 = 6.0;
/// Fewest and most requests of such a replay.
const FEWEST: f64 = 2000.0;
const MOST_OPEN: f64 = 200_000.0;

/// A deployment and its replay.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The deployment.
    pub point: Point,
    /// What the replay says.
    pub estimate: Estimate,
    /// ok, or the limit that it misses.
    pub status: Status,
}

impl Verified {
    /// Worth under an objective.
    #[must_use]
    pub fn worth(&self, job: &Job, objective: Objective) -> Worth {
        let out = &self.estimate.outcome;
        let gpus = self.point.gpus();
        worth(
            job,
            objective,
            out.output_tokens_per_s,
            out.tpot_s.mean,
            gpus,
        )
    }
}

/// Requests that are played for so many clients: ten each, fewer where there are many; the burst
/// weighs a tenth however many there are.
#[must_use]
pub fn requests(clients: u32) -> Option<u32> {
    match clients {
        0..=128 => None,
        _ => Some(clients + (clients * 9).min(16_384)),
    }
}

/// Requests of a deployment.
#[must_use]
pub fn load_of(job: &Job, point: &Point) -> Load {
    let mut load = Load {
        arrivals: Arrivals::Closed {
            concurrency: point.clients.max(1),
        },
        ..clone_without_arrivals(&job.load)
    };
    match (&job.load.arrivals, job.traffic.demand) {
        (Arrivals::Trace { .. }, Demand::Rate(..)) => {
            let cache = point.kv_tokens * f64::from(point.decode.workers);
            load.arrivals = Arrivals::Trace {
                requests: job.traffic.played(cache),
            };
        }
        (open @ Arrivals::Open { .. }, Demand::Rate(..)) => load.arrivals = open.clone(),
        _ => load.requests = job.load.requests.or(requests(point.clients)),
    }
    load
}

fn clone_without_arrivals(load: &Load) -> Load {
    Load {
        arrivals: Arrivals::Closed { concurrency: 1 },
        input: load.input,
        output: load.output,
        requests: load.requests,
        prefix_hit_ratio: load.prefix_hit_ratio,
        acceptance: load.acceptance,
        seed: load.seed,
    }
}

/// Replay a deployment.
///
/// # Errors
/// When the load makes no sense.
pub fn replay_as(job: &Job, point: &Point, mode: Mode, space: &mut Space) -> Result<Verified> {
    let mut load = load_of(job, point);
    let deployment = point.deployment(job);
    let setting = job.setting(&job.kinds[point.kind]);
    if let (Arrivals::Open { rate_per_s, .. }, None) = (&load.arrivals, load.requests) {
        let mean = estimate::answer(
            &Question {
                setting,
                deployment: &deployment,
                load: &load,
                limits: Limits::NONE,
                mode: Mode::Mean,
            },
            space,
        )?;
        let out = &mean.outcome;
        let each_s = out.ttft_s.mean + job.traffic.output * out.tpot_s.mean;
        let count = (rate_per_s * each_s * LIFETIMES).clamp(FEWEST, MOST_OPEN);
        load.requests = Some(count as u32);
    }
    let question = Question {
        setting,
        deployment: &deployment,
        load: &load,
        limits: Limits {
            ttft_s: job.goal.ttft_s.unwrap_or(f64::INFINITY),
            tpot_s: job.goal.tpot_s.unwrap_or(f64::INFINITY),
        },
        mode,
    };
    let estimate = estimate::answer(&question, space)?;
    let status = status(job, &estimate);
    Ok(Verified {
        point: *point,
        estimate,
        status,
    })
}

/// Whether a replay keeps the limits.
fn status(job: &Job, estimate: &Estimate) -> Status {
    let (out, goal) = (&estimate.outcome, &job.goal);
    let at = |q| Statistic::of(goal.at, q);
    if !estimate.fits {
        Status::Memory
    } else if out.saturated && matches!(job.traffic.demand, Demand::Rate(..)) {
        Status::Rate
    } else if at(&out.tpot_s) > goal.tpot_limit_s() {
        Status::Tpot
    } else if at(&out.ttft_s) > goal.ttft_limit_s() {
        Status::Ttft
    } else {
        Status::Ok
    }
}

/// What is tried next of a layout.
struct Next {
    worth: Worth,
    /// Number of the layout: of equal worths the first of the space comes first.
    layout: usize,
    place: usize,
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |n: &Self| (n.worth.0, n.worth.1);
        let (a, b) = (key(self), key(other));
        (a.0.total_cmp(&b.0))
            .then(a.1.total_cmp(&b.1))
            .then(other.layout.cmp(&self.layout))
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Next {}

pub(super) fn verify(
    job: &Job,
    kept: Kept,
    mut tally: Tally,
    options: &Options,
    control: &Control,
) -> Result<Found> {
    let lists: Vec<&Vec<(Worth, Point)>> = kept.layouts.values().collect();
    let mut heap: BinaryHeap<Next> = lists
        .iter()
        .enumerate()
        .filter_map(|(layout, list)| {
            let worth = list.first()?.0;
            Some(Next {
                worth,
                layout,
                place: 0,
            })
        })
        .collect();
    let mut passed: Vec<Verified> = Vec::new();
    let (mut replayed, mut played) = (0, 0);
    while replayed < MOST && played < MOST_PLAYED && !enough(job, &passed, heap.peek(), options.top)
    {
        let enough_played = played > MOST_REQUESTS && passed.len() >= options.top;
        if enough_played || (replayed >= MANY && !passed.is_empty()) {
            break;
        }
        let round: Vec<Next> = (0..ROUND).map_while(|_| heap.pop()).collect();
        let points: Vec<Point> = round.iter().map(|n| lists[n.layout][n.place].1).collect();
        replayed += points.len() as u64;
        for (next, found) in round.into_iter().zip(all(job, &points, control)?) {
            played += u64::from(found.estimate.outcome.requests);
            if found.status == Status::Ok {
                passed.push(found);
                continue;
            }
            tally.misses.offer_replayed(job, &found);
            if let Some(place) = next_try(job, &found, lists[next.layout], next.place) {
                let worth = lists[next.layout][place].0;
                heap.push(Next {
                    worth,
                    place,
                    ..next
                });
            }
        }
    }
    let best = others(job, &kept, &mut passed, control, &mut replayed)?;
    let objective = job.goal.objective;
    passed.sort_by(|a, b| descending(a.worth(job, objective), b.worth(job, objective)));
    let mut seen = std::collections::BTreeSet::new();
    passed.retain(|v| seen.insert(v.point.layout()));
    let front = front(job, &kept, &passed, control, &mut replayed)?;
    passed.truncate(options.top);
    Ok(Found {
        top: passed,
        front,
        best,
        tally,
        replayed,
    })
}

/// The next setting of a layout that keeps the limits if the closed form is as far from its replay as
/// it is for the one that has just missed them.
fn next_try(job: &Job, missed: &Verified, list: &[(Worth, Point)], place: usize) -> Option<usize> {
    let (out, at) = (&missed.estimate.outcome, job.goal.at);
    let ratio = |replayed: f64, closed: f64| (replayed / closed).max(1.0) * (1.0 - SLACK);
    let ttft = ratio(at.of(&out.ttft_s), missed.point.ttft_s);
    let tpot = ratio(at.of(&out.tpot_s), missed.point.tpot_s);
    let keeps = |p: &Point| {
        let late = p.ttft_s * ttft > job.goal.ttft_limit_s();
        let slow = p.tpot_s * tpot > job.goal.tpot_limit_s();
        match missed.status {
            // A replay that fits nothing or falls behind says nothing of its times.
            Status::Memory => true,
            Status::Rate => p.gpus() > missed.point.gpus(),
            _ => !(late || slow),
        }
    };
    let mut rest = list.iter().enumerate().skip(place + 1);
    rest.find(|(_, (_, p))| keeps(p)).map(|(i, _)| i)
}

fn descending(a: Worth, b: Worth) -> Ordering {
    b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
}

/// Whether nothing that is left could beat what has passed.
fn enough(job: &Job, passed: &[Verified], next: Option<&Next>, top: usize) -> bool {
    let Some(next) = next else { return true };
    if passed.len() < top.max(1) {
        return false;
    }
    let mut worths: Vec<Worth> = passed
        .iter()
        .map(|v| v.worth(job, job.goal.objective))
        .collect();
    worths.sort_by(|a, b| descending(*a, *b));
    let last = worths[top.max(1) - 1].0;
    let hoped = next.worth.0 + next.worth.0.abs() * if next.worth.0 > 0.0 { SLACK } else { 0.0 };
    hoped <= last
}

/// Replays of some deployments, in their order.
fn all(job: &Job, points: &[Point], control: &Control) -> Result<Vec<Verified>> {
    points
        .par_iter()
        .map_init(Space::default, |space, point| {
            control.advance(0)?;
            replay_as(job, point, Mode::Tabulated, space)
        })
        .collect()
}

/// The best under each objective: what has passed, or else the first of its own list that does.
/// Where the search chooses the clients, the fewest GPUs serve nobody in particular.
fn others(
    job: &Job,
    kept: &Kept,
    passed: &mut Vec<Verified>,
    control: &Control,
    replayed: &mut u64,
) -> Result<[Option<Verified>; 3]> {
    let mut best: [Option<Verified>; 3] = Default::default();
    for ((objective, list), own) in Objective::ALL.iter().zip(&kept.objectives).zip(&mut best) {
        if *objective == Objective::Gpus && job.traffic.demand == Demand::Chosen {
            continue;
        }
        let worth = |v: &Verified| v.worth(job, *objective);
        for (hoped, point) in list.iter().take(TRIED) {
            let known = passed.iter().map(worth).max_by(|a, b| a.0.total_cmp(&b.0));
            if known.is_some_and(|known| known.0 + known.0.abs() * SLACK >= hoped.0) {
                break;
            }
            *replayed += 1;
            let one = all(job, &[*point], control)?;
            passed.extend(one.into_iter().filter(|v| v.status == Status::Ok));
        }
        *own = passed
            .iter()
            .min_by(|a, b| descending(worth(a), worth(b)))
            .cloned();
    }
    Ok(best)
}

/// The front as the replays have it: fastest for a user first.
fn front(
    job: &Job,
    kept: &Kept,
    passed: &[Verified],
    control: &Control,
    replayed: &mut u64,
) -> Result<Vec<Verified>> {
    let step = kept.front.len().div_ceil(FRONT).max(1);
    let last = kept.front.len().saturating_sub(1);
    let points: Vec<Point> = kept
        .front
        .iter()
        .enumerate()
        .filter(|(i, _)| i % step == 0 || *i == last)
        .map(|(_, (_, point))| *point)
        .collect();
    *replayed += points.len() as u64;
    let mut found = all(job, &points, control)?;
    found.extend(passed.iter().cloned());
    found.retain(|v| matches!(v.status, Status::Ok | Status::Tpot));
    let limit = job.goal.ttft_limit_s();
    found.retain(|v| Statistic::of(job.goal.at, &v.estimate.outcome.ttft_s) <= limit);
    let dense = |v: &Verified| density(job, v.estimate.outcome.output_tokens_per_s, v.point.gpus());
    found.sort_by(|a, b| {
        let tpot = |v: &Verified| v.estimate.outcome.tpot_s.mean;
        tpot(a)
            .total_cmp(&tpot(b))
            .then(dense(b).total_cmp(&dense(a)))
    });
    let mut most = f64::NEG_INFINITY;
    found.retain(|v| {
        let better = dense(v) > most;
        most = most.max(dense(v));
        better
    });
    Ok(found)
}
