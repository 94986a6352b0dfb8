//! What a scheduled trace looked like: per request, over time, and in sum.

use serde::Serialize;

use crate::stats::Quantiles;
use crate::table::{Column, Data, Table};

/// Columns of the frame of requests.
pub const COLUMNS: &[Column] = &[
    Column {
        name: "request",
        unit: "",
        doc: "Place in the trace, from 0.",
    },
    Column {
        name: "arrival_s",
        unit: "s",
        doc: "Arrival after the first request.",
    },
    Column {
        name: "input_tokens",
        unit: "tokens",
        doc: "Prompt.",
    },
    Column {
        name: "output_tokens",
        unit: "tokens",
        doc: "Answer.",
    },
    Column {
        name: "hit_tokens",
        unit: "tokens",
        doc: "Prompt tokens found in the prefix cache at first admission.",
    },
    Column {
        name: "queue_s",
        unit: "s",
        doc: "From arrival to first admission.",
    },
    Column {
        name: "ttft_s",
        unit: "s",
        doc: "From arrival to the first token of the answer.",
    },
    Column {
        name: "tpot_s",
        unit: "s",
        doc: "Mean time of each further token.",
    },
    Column {
        name: "finish_s",
        unit: "s",
        doc: "End, after the first request's arrival.",
    },
    Column {
        name: "preemptions",
        unit: "1",
        doc: "Times that the request lost its blocks.",
    },
    Column {
        name: "rejected",
        unit: "",
        doc: "It can never fit the pool.",
    },
];

/// Columns of the frame over time.
pub const TIMELINE: &[Column] = &[
    Column {
        name: "time_s",
        unit: "s",
        doc: "After the first request's arrival.",
    },
    Column {
        name: "running",
        unit: "1",
        doc: "Requests that hold blocks.",
    },
    Column {
        name: "waiting",
        unit: "1",
        doc: "Requests that wait.",
    },
    Column {
        name: "used_blocks",
        unit: "1",
        doc: "Blocks in use.",
    },
    Column {
        name: "occupancy_ratio",
        unit: "1",
        doc: "Blocks in use over all.",
    },
];

/// Most points of the timeline; beyond, every other is dropped.
const MAX_POINTS: usize = 1 << 13;

/// A request that can never fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Place in the trace.
    pub request: u64,
    /// Blocks of prompt and answer.
    pub blocks: u64,
    /// More than the pool has.
    pub shortfall_blocks: u64,
}

/// The trace in sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests read.
    pub requests: u64,
    /// Those that finished.
    pub finished: u64,
    /// Those that can never fit.
    pub rejected: u64,
    /// The first of them.
    pub first_rejected: Option<Rejected>,
    /// From the first arrival to the last token, s.
    pub makespan_s: f64,
    /// Engine steps.
    pub steps: u64,
    /// Tokens of answers over the makespan.
    pub output_tokens_per_s: f64,
    /// Prompt tokens computed, recomputation included.
    pub computed_tokens: u64,
    /// Prompt tokens found in the prefix cache, at first admission only: what a preempted request
    /// finds again of its own is not a hit.
    pub hit_tokens: u64,
    /// Over all prompt tokens.
    pub hit_ratio: f64,
    /// Times that a request lost its blocks.
    pub preemptions: u64,
    /// Most requests that ran at once.
    pub peak_running: u64,
    /// Most requests that waited.
    pub peak_waiting: u64,
    /// Highest share of the pool in use.
    pub peak_occupancy_ratio: f64,
    /// Share of the pool in use, mean over time.
    pub mean_occupancy_ratio: f64,
    /// Share of steps in which something was preempted or nothing could be admitted for lack of
    /// blocks.
    pub full_steps_ratio: f64,
    /// Arrival of the request at whose service preemption began, if it did.
    pub first_preemption_s: Option<f64>,
    /// Waiting time.
    pub queue_s: Quantiles,
    /// Time to first token.
    pub ttft_s: Quantiles,
    /// Time per further token.
    pub tpot_s: Quantiles,
}

/// Everything that was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// In sum.
    pub summary: Summary,
    /// Per request, columns [`COLUMNS`].
    pub requests: Table,
    /// Over time, columns [`TIMELINE`].
    pub timeline: Table,
}

/// One request's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub arrival_s: f64,
    pub input: u32,
    pub output: u32,
    pub hit: u32,
    pub queue_s: f64,
    pub ttft_s: f64,
    pub finish_s: f64,
    pub preemptions: u32,
    pub rejected: bool,
}

impl Record {
    fn tpot_s(&self) -> f64 {
        let further = self.output.saturating_sub(1).max(1);
        (self.finish_s - self.arrival_s - self.ttft_s).max(0.0) / f64::from(further)
    }
}

pub(super) fn request_table(records: &[Record]) -> Table {
    let real = |f: fn(&Record) -> f64| Data::F64(records.iter().map(f).collect());
    let count = |f: fn(&Record) -> u32| Data::U32(records.iter().map(f).collect());
    Table {
        columns: COLUMNS.to_vec(),
        data: vec![
            Data::U64((0..records.len() as u64).collect()),
            real(|r| r.arrival_s),
            count(|r| r.input),
            count(|r| r.output),
            count(|r| r.hit),
            real(|r| r.queue_s),
            real(|r| r.ttft_s),
            real(Record::tpot_s),
            real(|r| r.finish_s),
            count(|r| r.preemptions),
            Data::Bool(records.iter().map(|r| r.rejected).collect()),
        ],
    }
}

/// Latencies of finished requests.
pub(super) fn latencies(records: &[Record], summary: &mut Summary) {
    let done = || records.iter().filter(|r| !r.rejected);
    summary.queue_s = Quantiles::of(done().map(|r| r.queue_s).collect());
    summary.ttft_s = Quantiles::of(done().map(|r| r.ttft_s).collect());
    summary.tpot_s = Quantiles::of(
        done()
            .filter(|r| r.output > 1)
            .map(Record::tpot_s)
            .collect(),
    );
}

/// State after a step.
#[derive(Clone, Copy)]
struct Point {
    time_s: f64,
    running: u32,
    waiting: u32,
    used: u32,
}

/// State after each step, thinned evenly where it grows too long.
#[derive(Default)]
pub(super) struct Timeline {
    points: Vec<Point>,
    every: u64,
    seen: u64,
}

impl Timeline {
    pub(super) fn push(&mut self, time_s: f64, running: u32, waiting: u32, used: u32) {
        self.every = self.every.max(1);
        if self.seen.is_multiple_of(self.every) {
            self.points.push(Point {
                time_s,
                running,
                waiting,
                used,
            });
            if self.points.len() >= MAX_POINTS {
                let mut index = 0;
                self.points.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every *= 2;
            }
        }
        self.seen += 1;
    }

    pub(super) fn table(&self, blocks: u64) -> Table {
        let count = |f: fn(&Point) -> u32| Data::U32(self.points.iter().map(f).collect());
        let share = |p: &Point| f64::from(p.used) / blocks.max(1) as f64;
        Table {
            columns: TIMELINE.to_vec(),
            data: vec![
                Data::F64(self.points.iter().map(|p| p.time_s).collect()),
                count(|p| p.running),
                count(|p| p.waiting),
                count(|p| p.used),
                Data::F64(self.points.iter().map(share).collect()),
            ],
        }
    }
}
