//! What became of requests, as tables: one row a request, and the deployment over time.

use super::engine::replica::Job;
use crate::table::{Column, Data, Table};

/// Columns of the table of requests.
pub const REQUESTS: &[Column] = &[
    Column {
        name: "send_s",
        unit: "s",
        doc: "Sent by the client.",
    },
    Column {
        name: "input_tokens",
        unit: "tokens",
        doc: "Prompt.",
    },
    Column {
        name: "hit_tokens",
        unit: "tokens",
        doc: "Prompt tokens found in the prefix cache.",
    },
    Column {
        name: "output_tokens",
        unit: "tokens",
        doc: "Answer.",
    },
    Column {
        name: "queue_s",
        unit: "s",
        doc: "From send to admission.",
    },
    Column {
        name: "ttft_s",
        unit: "s",
        doc: "From send to first token.",
    },
    Column {
        name: "tpot_s",
        unit: "s",
        doc: "Mean time of each further token.",
    },
    Column {
        name: "finish_s",
        unit: "s",
        doc: "Last token; not a number where the request fits no pool.",
    },
    Column {
        name: "preemptions",
        unit: "1",
        doc: "Times that the request lost its blocks.",
    },
];

/// Requests as a table, columns [`REQUESTS`].
#[must_use]
pub fn request_table(jobs: &[Job]) -> Table {
    let real = |f: fn(&Job) -> f64| Data::F64(jobs.iter().map(f).collect());
    let count = |f: fn(&Job) -> u32| Data::U32(jobs.iter().map(f).collect());
    Table {
        columns: REQUESTS.to_vec(),
        data: vec![
            real(|j| j.send_s),
            count(|j| j.input),
            count(|j| j.hit),
            count(|j| j.output),
            real(|j| j.start_s - j.send_s),
            real(Job::ttft_s),
            real(Job::tpot_s),
            real(|j| j.finish_s),
            count(|j| j.preemptions),
        ],
    }
}

/// Columns of the deployment over time.
pub const TIMELINE: &[Column] = &[
    Column {
        name: "time_s",
        unit: "s",
        doc: "After the first send.",
    },
    Column {
        name: "waiting",
        unit: "1",
        doc: "Requests sent and not admitted.",
    },
    Column {
        name: "prefilling",
        unit: "1",
        doc: "Requests admitted that have no token yet.",
    },
    Column {
        name: "decoding",
        unit: "1",
        doc: "Requests between their first and last token.",
    },
    Column {
        name: "held_tokens",
        unit: "tokens",
        doc: "Tokens of admitted requests, prompts and answers so far.",
    },
];

/// Most rows of the table over time; beyond, every other is dropped.
const MOST: usize = 1 << 13;

/// The deployment over time, columns [`TIMELINE`]: a row wherever a request is sent, is admitted, has
/// its first or its last token. Answers grow evenly; requests that fit no pool are left out.
#[must_use]
pub fn timeline_table(jobs: &[Job]) -> Table {
    let first_s = jobs.iter().map(|j| j.send_s).fold(f64::INFINITY, f64::min);
    let mut events: Vec<(f64, u8, u32)> = Vec::with_capacity(4 * jobs.len());
    for (i, job) in jobs
        .iter()
        .enumerate()
        .filter(|(_, j)| j.finish_s.is_finite())
    {
        let times = [job.send_s, job.start_s, job.first_s, job.finish_s];
        events.extend(
            (0..)
                .zip(times)
                .map(|(what, t)| (t - first_s, what, i as u32)),
        );
    }
    events.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let every = events.len().div_ceil(MOST).max(1);
    let mut state = State::default();
    let mut columns: [Vec<u32>; 3] = Default::default();
    let (mut times, mut held) = (Vec::new(), Vec::new());
    for (i, (time_s, what, job)) in events.iter().enumerate() {
        state.step(&jobs[*job as usize], *what, first_s);
        let last_of_its_time = events.get(i + 1).is_none_or(|next| next.0 > *time_s);
        if i % every == 0 && last_of_its_time || i + 1 == events.len() {
            times.push(*time_s);
            for (column, n) in columns.iter_mut().zip(state.counts) {
                column.push(n as u32);
            }
            held.push((state.tokens + state.tokens_per_s * time_s).max(0.0));
        }
    }
    let [waiting, prefilling, decoding] = columns.map(Data::U32);
    Table {
        columns: TIMELINE.to_vec(),
        data: vec![
            Data::F64(times),
            waiting,
            prefilling,
            decoding,
            Data::F64(held),
        ],
    }
}

/// Requests by what they do, and their tokens as a line over time.
#[derive(Default)]
struct State {
    counts: [i64; 3],
    tokens: f64,
    tokens_per_s: f64,
}

impl State {
    fn step(&mut self, job: &Job, what: u8, from_s: f64) {
        let rate = f64::from(job.output) / (job.finish_s - job.first_s).max(1e-9);
        let first_s = job.first_s - from_s;
        let at = what as usize;
        if at < 3 {
            self.counts[at] += 1;
        }
        if at > 0 {
            self.counts[at - 1] -= 1;
        }
        match what {
            1 => self.tokens += f64::from(job.input),
            2 => {
                self.tokens_per_s += rate;
                self.tokens -= rate * first_s;
            }
            3 => {
                self.tokens_per_s -= rate;
                self.tokens -= f64::from(job.input) - rate * first_s;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{request_table, timeline_table};
    use crate::serving::engine::replica::Job;
    use crate::table::Data;

    #[test]
    fn a_request_waits_prefills_decodes_and_goes() {
        let mut job = Job::new(1.0, 100, 0, 50);
        (job.start_s, job.first_s, job.finish_s) = (2.0, 3.0, 5.0);
        let mut late = job;
        (late.start_s, late.first_s, late.finish_s) = (f64::NAN, f64::NAN, f64::NAN);
        let table = timeline_table(&[job, late]);
        let counts = |i: usize| match &table.data[i] {
            Data::U32(v) => v.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(table.data[0], Data::F64(vec![0.0, 1.0, 2.0, 4.0]));
        assert_eq!(counts(1), [1, 0, 0, 0]);
        assert_eq!(counts(2), [0, 1, 0, 0]);
        assert_eq!(counts(3), [0, 0, 1, 0]);
        assert_eq!(table.data[4], Data::F64(vec![0.0, 100.0, 100.0, 0.0]));
        assert_eq!(request_table(&[job, late]).data[0].len(), 2);
    }
}
