//! Exact event replay of a pipeline schedule, for stages that differ.
//!
//! Each stage runs its passes in the fixed order of its schedule; a pass starts when the stage is
//! free and what it needs has arrived:
//!
//! ```text
//! start(F, k, μ) = max(stage free, end(F, k−1, μ) + d_f)
//! start(B, k, μ) = max(stage free, end(B, k+1, μ) + d_b)     the last k: end(F, k, μ)
//! start(W, k, μ) = stage free
//! ```
//!
//! k is a chunk in model order (chunk c of stage i is k = c·p + i), μ a micro-batch, d the
//! point-to-point delay between stages. The delay is latency on the edge: it does not occupy a
//! stage. Orders: GPipe; 1F1B and interleaved 1F1B as Megatron-Core's `schedules.py` issues them
//! (warm-up p−i−1, or 2(p−i−1) + (v−1)p chunks); ZB-H1 as PyTorch's zero-bubble schedule does with
//! one stage a rank (W lags B by i micro-batches).

use crate::error::{Error, Result};
use crate::layout::Schedule;

/// Times of one micro-batch in one chunk, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChunkTimes {
    /// Forward.
    pub forward_s: f64,
    /// Backward with respect to the input; without ZB-H1, `weight_s` follows it at once.
    pub backward_input_s: f64,
    /// Backward with respect to the weights.
    pub weight_s: f64,
}

/// What is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Schedule.
    pub schedule: Schedule,
    /// Stages p.
    pub stages: usize,
    /// Micro-batches m.
    pub micro_batches: usize,
    /// Delay of activations to the next stage, s.
    pub forward_delay_s: f64,
    /// Delay of gradients to the previous stage, s.
    pub backward_delay_s: f64,
}

/// Outcome of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// From the first forward to the end of the last pass, s.
    pub makespan_s: f64,
    /// Time in which each stage computes nothing, s.
    pub idle_s: Vec<f64>,
    /// Most chunk activations that each stage holds at once (forward begun, input gradient not done).
    pub in_flight_chunks: Vec<u32>,
    /// As above, held until the weight gradient is done: what ZB-H1 keeps in part.
    pub held_chunks: Vec<u32>,
}

/// One pass of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
    Weight,
}

/// Where a stage is in its order of passes.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    forwards: usize,
    backwards: usize,
    weights: usize,
    free_s: f64,
    busy_s: f64,
}

impl Cursor {
    /// The next pass of stage i, of `total` forwards.
    fn next(&self, plan: &Plan, i: usize, v: usize, total: usize) -> Option<Pass> {
        let (f, b, w) = (self.forwards, self.backwards, self.weights);
        let after = plan.stages - i - 1;
        let (warm_up, lag) = match plan.schedule {
            Schedule::GPipe => (total, None),
            Schedule::Interleaved => (2 * after + (v - 1) * plan.stages, None),
            Schedule::ZbH1 => (after, Some(i)),
            Schedule::OneFOneB | Schedule::DualPipe => (after, None),
        };
        if lag.is_some_and(|lag| b > w + lag) {
            Some(Pass::Weight)
        } else if f < total && f <= b + warm_up {
            Some(Pass::Forward)
        } else if b < total {
            Some(Pass::Backward)
        } else if lag.is_some() && w < total {
            Some(Pass::Weight)
        } else {
            None
        }
    }
}

/// The n-th chunk and micro-batch that a stage runs forward: groups of p micro-batches, chunk by
/// chunk (for one chunk a stage, simply micro-batch n).
const fn nth(n: usize, p: usize, v: usize) -> (usize, usize) {
    let (group, rest) = (n / (p * v), n % (p * v));
    (rest / p, group * p + rest % p)
}

/// State of a replay in progress.
struct Run<'a> {
    plan: &'a Plan,
    chunks: &'a [ChunkTimes],
    v: usize,
    /// End of each forward and backward, by chunk in model order and micro-batch; NaN: not yet.
    forward_end: Vec<f64>,
    backward_end: Vec<f64>,
    cursors: Vec<Cursor>,
    out: Replay,
}

impl Run<'_> {
    /// Run stage i as far as its inputs allow.
    fn advance(&mut self, i: usize) -> bool {
        let total = self.plan.micro_batches * self.v;
        let mut moved = false;
        while let Some(pass) = self.cursors[i].next(self.plan, i, self.v, total) {
            let done = match pass {
                Pass::Forward => self.forward(i),
                Pass::Backward => self.backward(i),
                Pass::Weight => self.weight(i),
            };
            if !done {
                break;
            }
            moved = true;
        }
        moved
    }

    fn forward(&mut self, i: usize) -> bool {
        let (p, m) = (self.plan.stages, self.plan.micro_batches);
        let (c, micro) = nth(self.cursors[i].forwards, p, self.v);
        let k = c * p + i;
        let ready = if k == 0 {
            0.0
        } else {
            self.forward_end[(k - 1) * m + micro] + self.hop(self.plan.forward_delay_s)
        };
        if ready.is_nan() {
            return false;
        }
        self.forward_end[k * m + micro] = self.occupy(i, ready, self.chunks[k].forward_s);
        self.cursors[i].forwards += 1;
        let cursor = self.cursors[i];
        let live = (cursor.forwards - cursor.backwards) as u32;
        let held = (cursor.forwards - cursor.weights) as u32;
        self.out.in_flight_chunks[i] = self.out.in_flight_chunks[i].max(live);
        self.out.held_chunks[i] = self.out.held_chunks[i].max(held);
        true
    }

    fn backward(&mut self, i: usize) -> bool {
        let (p, m) = (self.plan.stages, self.plan.micro_batches);
        let (reversed, micro) = nth(self.cursors[i].backwards, p, self.v);
        let k = (self.v - 1 - reversed) * p + i;
        let ready = if k + 1 == p * self.v {
            self.forward_end[k * m + micro]
        } else {
            self.backward_end[(k + 1) * m + micro] + self.hop(self.plan.backward_delay_s)
        };
        if ready.is_nan() {
            return false;
        }
        let chunk = self.chunks[k];
        let split = self.plan.schedule == Schedule::ZbH1;
        let weight_s = if split { 0.0 } else { chunk.weight_s };
        self.backward_end[k * m + micro] = self.occupy(i, ready, chunk.backward_input_s + weight_s);
        self.cursors[i].backwards += 1;
        if !split {
            self.cursors[i].weights += 1;
        }
        true
    }

    fn weight(&mut self, i: usize) -> bool {
        self.occupy(i, 0.0, self.chunks[i].weight_s);
        self.cursors[i].weights += 1;
        true
    }

    /// Delay between neighbours: none when all chunks sit on one stage.
    const fn hop(&self, delay_s: f64) -> f64 {
        if self.plan.stages == 1 { 0.0 } else { delay_s }
    }

    fn occupy(&mut self, i: usize, ready_s: f64, time_s: f64) -> f64 {
        let cursor = &mut self.cursors[i];
        cursor.free_s = cursor.free_s.max(ready_s) + time_s;
        cursor.busy_s += time_s;
        cursor.free_s
    }
}

/// Replay a schedule from the times of its chunks, given in model order.
///
/// One chunk a stage, except interleaved: v = chunks / p. A ZB-H1 stage may hold activations beyond
/// `in_flight_chunks` until its weight gradients are done: see `held_chunks`.
///
/// # Errors
/// When the chunks do not fill the stages, a time is negative or not finite, an interleaved
/// schedule's micro-batches are not a multiple of p, or the schedule is DualPipe, which has only a
/// closed form here.
///
/// ```
/// use planner_core::{layout::Schedule, pipeline::replay::{replay, ChunkTimes, Plan}};
/// let equal = ChunkTimes { forward_s: 1.0, backward_input_s: 1.0, weight_s: 1.0 };
/// let mut plan = Plan {
///     schedule: Schedule::OneFOneB,
///     stages: 4,
///     micro_batches: 8,
///     forward_delay_s: 0.0,
///     backward_delay_s: 0.0,
/// };
/// assert_eq!(replay(&plan, &[equal; 4]).unwrap().makespan_s, 33.0); // (8 + 3)·(1 + 2)
/// plan.schedule = Schedule::ZbH1;
/// assert_eq!(replay(&plan, &[equal; 4]).unwrap().makespan_s, 27.0); // 24 + 3·(3 − 2)
/// ```
pub fn replay(plan: &Plan, chunks: &[ChunkTimes]) -> Result<Replay> {
    let v = check(plan, chunks)?;
    let (p, m) = (plan.stages, plan.micro_batches);
    let mut run = Run {
        plan,
        chunks,
        v,
        forward_end: vec![f64::NAN; p * v * m],
        backward_end: vec![f64::NAN; p * v * m],
        cursors: vec![Cursor::default(); p],
        out: Replay {
            makespan_s: 0.0,
            idle_s: vec![0.0; p],
            in_flight_chunks: vec![0; p],
            held_chunks: vec![0; p],
        },
    };
    let mut waiting: Vec<usize> = (0..p).rev().collect();
    while let Some(i) = waiting.pop() {
        if run.advance(i) && p > 1 {
            // Its neighbours, around the ring that chunks make, may now go on.
            waiting.push((i + p - 1) % p);
            waiting.push((i + 1) % p);
        }
    }
    let end = run.cursors.iter().map(|c| c.free_s).fold(0.0, f64::max);
    if run.cursors.iter().any(|c| c.backwards < m * v) {
        let rule = "the order of passes waits for itself";
        return Err(Error::field("schedule", plan.schedule.name(), rule));
    }
    for (idle, cursor) in run.out.idle_s.iter_mut().zip(&run.cursors) {
        *idle = end - cursor.busy_s;
    }
    run.out.makespan_s = end;
    Ok(run.out)
}

/// Check a plan and return v.
fn check(plan: &Plan, chunks: &[ChunkTimes]) -> Result<usize> {
    let (p, m) = (plan.stages, plan.micro_batches);
    if p == 0 || m == 0 {
        return Err(Error::field(
            "stages · micro_batches",
            p * m,
            "must be at least 1",
        ));
    }
    if plan.schedule == Schedule::DualPipe {
        let rule = "has a closed form only (pipeline::bubble)";
        return Err(Error::field("schedule", "dualpipe", rule));
    }
    let v = chunks.len() / p;
    let interleaved = plan.schedule == Schedule::Interleaved;
    if v == 0 || v * p != chunks.len() || (v > 1 && !interleaved) {
        let rule = format!("must be {p} (a multiple of it when interleaved)");
        return Err(Error::field("chunks", chunks.len(), rule));
    }
    if v > 1 && !m.is_multiple_of(p) {
        let rule = format!("must be a multiple of the {p} stages when interleaved");
        return Err(Error::field("micro_batches", m, rule));
    }
    let delays = [plan.forward_delay_s, plan.backward_delay_s];
    let times = chunks
        .iter()
        .flat_map(|c| [c.forward_s, c.backward_input_s, c.weight_s]);
    for time in times.chain(delays) {
        if !(time.is_finite() && time >= 0.0) {
            return Err(Error::field(
                "time",
                time,
                "must be finite and not negative",
            ));
        }
    }
    Ok(v)
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
