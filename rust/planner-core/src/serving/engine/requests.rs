//! Requests of a load: lengths and arrivals, drawn once per load and seed.

use super::replica::Job;
use crate::error::{Error, Result};
use crate::moe::rng::Pcg64;
use crate::serving::load::{Arrivals, Lengths, Load, Request};

/// Most requests of one replay.
pub const MAX_REQUESTS: u32 = 1 << 24;
/// Requests per client of a closed loop unless the load says otherwise.
pub const PER_CLIENT: u32 = 10;
/// Requests of an open loop unless the load says otherwise.
pub const OPEN_REQUESTS: u32 = 4000;

/// Requests drawn for a load; drawn anew only when the load changes.
#[derive(Debug, Default)]
pub struct Draws {
    jobs: Vec<Job>,
    of: Option<(Lengths, Lengths, f64, u64, u32)>,
}

impl Lengths {
    /// A length, uniform over the integers from low · tokens to tokens.
    fn draw(&self, rng: &mut Pcg64) -> u32 {
        let least = ((f64::from(self.tokens) * self.low) as u32).clamp(1, self.tokens);
        least + rng.below(self.tokens - least + 1)
    }
}

impl Draws {
    /// `count` requests of a load, sent at 0. Lengths do not depend on how requests arrive, so that
    /// loads and deployments are compared on the same requests.
    pub fn lengths(&mut self, load: &Load, count: u32) -> &[Job] {
        let of = Some((
            load.input,
            load.output,
            load.prefix_hit_ratio,
            load.seed,
            count,
        ));
        if self.of != of {
            let mut rng = Pcg64::new(load.seed, 0);
            self.jobs.clear();
            self.jobs.extend((0..count).map(|_| {
                let (input, output) = (load.input.draw(&mut rng), load.output.draw(&mut rng));
                let hit = (load.prefix_hit_ratio * f64::from(input)) as u32;
                Job::new(0.0, input, hit.min(input - 1), output)
            }));
            self.of = of;
        }
        &self.jobs
    }
}

/// Sends requests at gamma distributed gaps.
pub fn send_open(jobs: &mut [Job], rate_per_s: f64, cv: f64, seed: u64) {
    let mut rng = Pcg64::new(seed, 1);
    let shape = 1.0 / (cv * cv);
    let mut now_s = 0.0;
    for job in jobs {
        job.send_s = now_s;
        let gap = if cv > 0.0 {
            rng.gamma(shape) / shape
        } else {
            1.0
        };
        now_s += gap / rate_per_s;
    }
}

/// Requests of a load: those of its trace, or as many as it asks for, with their times of sending
/// where these do not depend on answers.
pub fn fill(load: &Load, draws: &mut Draws, jobs: &mut Vec<Job>) {
    jobs.clear();
    match &load.arrivals {
        Arrivals::Closed { concurrency } => {
            let count = load.requests.unwrap_or(PER_CLIENT * concurrency);
            jobs.extend_from_slice(draws.lengths(load, count));
        }
        Arrivals::Open { rate_per_s, cv } => {
            let count = load.requests.unwrap_or(OPEN_REQUESTS);
            jobs.extend_from_slice(draws.lengths(load, count));
            send_open(jobs, *rate_per_s, *cv, load.seed);
        }
        Arrivals::Trace { requests } => {
            let count = load.requests.map_or(requests.len(), |n| n as usize);
            let job =
                |r: &Request| Job::new(r.arrival_s, r.input, r.hit.min(r.input - 1), r.output);
            jobs.extend(requests.iter().take(count).map(job));
        }
    }
}

/// Checks a load.
///
/// # Errors
/// The first field that makes no sense.
pub fn check(load: &Load) -> Result<()> {
    let trace = matches!(load.arrivals, Arrivals::Trace { .. });
    for (field, lengths) in [("input", load.input), ("output", load.output)] {
        if lengths.tokens == 0 && !trace {
            return Err(Error::field(field, 0, "must be at least 1 token"));
        }
        if !(lengths.low > 0.0 && lengths.low <= 1.0) {
            return Err(Error::field(
                format!("{field}.low"),
                lengths.low,
                "above 0 and up to 1",
            ));
        }
    }
    if !(0.0..=1.0).contains(&load.prefix_hit_ratio) {
        return Err(Error::field(
            "prefix_hit_ratio",
            load.prefix_hit_ratio,
            "a share from 0 to 1",
        ));
    }
    if let Some(n) = load.requests
        && !(1..=MAX_REQUESTS).contains(&n)
    {
        return Err(Error::field(
            "requests",
            n,
            format!("from 1 to {MAX_REQUESTS}"),
        ));
    }
    match &load.arrivals {
        Arrivals::Closed { concurrency } => {
            if !(1..=MAX_REQUESTS / PER_CLIENT).contains(concurrency) {
                let most = MAX_REQUESTS / PER_CLIENT;
                return Err(Error::field(
                    "concurrency",
                    concurrency,
                    format!("from 1 to {most}"),
                ));
            }
        }
        Arrivals::Open { rate_per_s, cv } => {
            if !(*rate_per_s > 0.0 && rate_per_s.is_finite()) {
                return Err(Error::field("rate", rate_per_s, "above 0 requests/s"));
            }
            if !(0.0..=10.0).contains(cv) {
                return Err(Error::field("cv", cv, "from 0 to 10"));
            }
        }
        Arrivals::Trace { requests } => {
            let bad = |r: &Request| {
                r.input == 0 || r.output == 0 || r.hit > r.input || !r.arrival_s.is_finite()
            };
            let disorder = requests.windows(2).any(|w| w[0].arrival_s > w[1].arrival_s);
            if requests.is_empty() || requests.iter().any(bad) || disorder {
                let rule = "at least one request, in order of arrival, lengths of at least 1, hits within the prompt";
                return Err(Error::field("trace", requests.len(), rule));
            }
        }
    }
    Ok(())
}
