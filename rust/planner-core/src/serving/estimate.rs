//! One deployment under one load: memory, times of steps, replay or closed form.

use serde::{Deserialize, Serialize};

use super::closed;
use super::costs::{Costs, Role, Setting};
use super::decode;
use super::deployment::{Backend, Deployment, Engine, Pool};
use super::disagg::{self, Link, Sending, Split};
use super::engine::policy::Policy;
use super::engine::replica::{Job, Rules};
use super::engine::table::{Nodes, Range};
use super::engine::{self, Settings, Workspace, requests};
use super::exchange;
use super::hardware::Hardware;
use super::load::{Arrivals, Load};
use super::memory;
use super::outcome::{Limits, Outcome, Scratch, Share};
use super::prefill;
use super::routing::Routing;
use super::software::Software;
use super::steps::{Pass, StepTimes};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::kv::transfer::{cache_bytes, unique_slices};
use crate::model::{Mixer, Model};

/// Decode steps after which TensorRT-LLM's attention replicas no longer wait for each other
/// (`attention_dp_config.timeout_iters` of the published recipes).
pub const DP_WAIT_STEPS: u32 = 60;

/// How latencies are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Replay, every step asked of the cost model.
    #[default]
    Replay,
    /// Replay over tabulated step times, within 1 % of the other.
    Tabulated,
    /// Closed form: means only.
    Mean,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Model, cluster, numbers.
    pub setting: Setting<'a>,
    /// Engines.
    pub deployment: &'a Deployment,
    /// Requests.
    pub load: &'a Load,
    /// Service level that goodput counts.
    pub limits: Limits,
    /// How.
    pub mode: Mode,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Latencies and rates. Nothing was played where the deployment does not fit.
    pub outcome: Outcome,
    /// Weights fit and the pool holds a mean request.
    pub fits: bool,
    /// Terms of a decode step at the mean number of running requests and their mean context.
    pub decode: decode::Terms,
    /// Terms of the pass of one mean prompt.
    pub prefill: prefill::Terms,
    /// Memory of an engine that decodes.
    pub memory: memory::Terms,
    /// Memory of an engine that only prefills, where there are such.
    pub prefill_memory: Option<memory::Terms>,
    /// Share of time that prefill engines compute, where there are such.
    pub prefill_busy_ratio: Option<f64>,
    /// What the fullest expert rank has beyond an even share: in that decode step, in that pass.
    pub imbalance: [decode::Imbalance; 2],
}

/// Memory of estimates, used again and again.
#[derive(Debug, Default)]
pub struct Space {
    engine: Workspace,
    split: disagg::Space,
    nodes: [Nodes; 2],
    draws: requests::Draws,
    jobs: Vec<Job>,
    scratch: Scratch,
}

impl Space {
    /// Requests of the last replay.
    #[must_use]
    pub fn jobs(&self, deployment: &Deployment) -> &[Job] {
        match deployment.prefill {
            Some(_) => &self.jobs,
            None => self.engine.jobs(),
        }
    }
}

/// Share of time that prefill engines compute above which a closed loop counts as saturated.
const PREFILL_BUSY: f64 = 0.9;

/// Estimates a deployment by replay.
///
/// # Errors
/// A layout that does not multiply out, or a load that makes no sense.
pub fn estimate(
    model: &Model,
    cluster: &Cluster,
    hardware: &Hardware,
    software: &Software,
    routing: Routing,
    deployment: &Deployment,
    load: &Load,
) -> Result<Estimate> {
    let setting = Setting {
        model,
        cluster,
        hardware,
        software,
        backend: deployment.backend,
        routing,
        measured: None,
    };
    let question = Question {
        setting,
        deployment,
        load,
        limits: Limits::NONE,
        mode: Mode::Replay,
    };
    answer(&question, &mut Space::default())
}

/// Answers a question.
///
/// # Errors
/// As [`estimate`].
pub fn answer(q: &Question<'_>, space: &mut Space) -> Result<Estimate> {
    requests::check(q.load)?;
    q.setting.routing.check()?;
    let lengths = Lengths::of(q.load);
    let split = q.deployment.prefill.as_ref();
    let role = if split.is_some() {
        Role::Decode
    } else {
        Role::Both
    };
    let pool = &q.deployment.decode;
    let decode = Side::new(q, pool, role, &lengths)?;
    let prefill = split
        .map(|p| Side::new(q, p, Role::Prefill, &lengths))
        .transpose()?;
    let fits = decode.fits(&lengths) && prefill.as_ref().is_none_or(|p| p.fits(&lengths));
    let mut busy = None;
    let outcome = match (&prefill, fits) {
        (_, false) => Outcome::default(),
        (None, true) => decode.aggregated(q, &lengths, space)?,
        (Some(prefill), true) => {
            let (outcome, ratio) = disaggregated(q, prefill, &decode, &lengths, space);
            busy = Some(ratio);
            outcome
        }
    };
    let first = prefill.as_ref().unwrap_or(&decode);
    let (running, pass) = (outcome.mean_running.max(1.0), lengths.pass());
    let context = lengths.input + lengths.output / 2.0;
    Ok(Estimate {
        outcome,
        fits,
        decode: decode.costs.decode_terms(running, context),
        prefill: first.costs.prefill_terms(&pass),
        imbalance: Costs::imbalance(&decode.costs, running, &first.costs, &pass),
        memory: decode.memory,
        prefill_memory: prefill.as_ref().map(|p| p.memory),
        prefill_busy_ratio: busy,
    })
}

/// Mean lengths of a load, tokens.
struct Lengths {
    input: f64,
    hit: f64,
    output: f64,
}

impl Lengths {
    fn of(load: &Load) -> Self {
        let Arrivals::Trace { requests } = &load.arrivals else {
            let input = load.input.mean();
            return Self {
                input,
                hit: (load.prefix_hit_ratio * input).min(input - 1.0).max(0.0),
                output: load.output.mean(),
            };
        };
        let mean = |f: fn(&super::load::Request) -> u32| {
            requests.iter().map(|r| f64::from(f(r))).sum::<f64>() / requests.len() as f64
        };
        Self {
            input: mean(|r| r.input),
            hit: mean(|r| r.hit),
            output: mean(|r| r.output),
        }
    }

    fn pass(&self) -> Pass {
        Pass {
            tokens: self.input - self.hit,
            prompts: 1.0,
            past: self.hit,
        }
    }
}

/// A pool with its costs.
struct Side<'a> {
    workers: u32,
    engine: &'a Engine,
    costs: Costs,
    memory: memory::Terms,
    policy: Policy,
}

impl<'a> Side<'a> {
    fn new(q: &Question<'_>, pool: &'a Pool, role: Role, lengths: &Lengths) -> Result<Self> {
        let precision = &q.deployment.precision;
        let tokens = lengths.input + lengths.output;
        let memory = memory::terms(&q.setting, precision, &pool.engine, role, tokens);
        let policy = policy(
            &q.setting,
            &pool.engine,
            role,
            memory.kv_tokens,
            q.load.acceptance,
        );
        policy.check()?;
        Ok(Self {
            workers: pool.workers,
            engine: &pool.engine,
            costs: Costs::new(&q.setting, precision, &pool.engine, role)?,
            memory,
            policy,
        })
    }

    fn fits(&self, lengths: &Lengths) -> bool {
        self.memory.available_bytes > 0.0 && self.memory.kv_tokens >= lengths.input + lengths.output
    }

    fn range(&self, load: &Load) -> Range {
        engine::range(&self.policy, load)
    }

    fn aggregated(
        &self,
        q: &Question<'_>,
        lengths: &Lengths,
        space: &mut Space,
    ) -> Result<Outcome> {
        if q.mode == Mode::Mean {
            let mean = mean(q.load, lengths, self.workers);
            let steady = closed::steady(&self.policy, &self.costs, &mean);
            return Ok(steady.outcome(&mean, self.workers));
        }
        let settings = Settings {
            workers: self.workers,
            routing: engine::drive::Routing::LeastLoaded,
            tabulate: q.mode == Mode::Tabulated,
        };
        let space = &mut space.engine;
        engine::play(
            &self.policy,
            &self.costs,
            q.load,
            &settings,
            &q.limits,
            space,
        )
    }
}

/// Scheduling of an engine: its flags, and the numbers of its backend.
#[must_use]
pub fn policy(
    setting: &Setting<'_>,
    engine: &Engine,
    role: Role,
    kv_tokens: f64,
    acceptance: Option<f64>,
) -> Policy {
    let software = setting.software;
    let acceptance = acceptance.unwrap_or(software.acceptance);
    let apart = role != Role::Both;
    let speculative_s = if engine.spec_tokens > 0 {
        software.speculative_ttft_s
    } else {
        0.0
    };
    Policy {
        block_tokens: engine.block_tokens,
        recv_interval: engine.recv_interval,
        decode_share: software.mixed_decode_share,
        latency_s: speculative_s
            + if apart {
                software.disaggregated_ttft_s
            } else {
                software.ttft_s
            },
        token_latency_s: software.ttft_per_token_s,
        tokens_per_step: tokens_per_step(acceptance, engine.spec_tokens),
        step_tokens: 1 + engine.spec_tokens,
        attention_dp: arrivals_for_each(engine.attention_dp),
        dp_wait_steps: if setting.backend == Backend::Trtllm {
            DP_WAIT_STEPS
        } else {
            0
        },
        ..Policy::new(
            setting.backend,
            engine.max_batch,
            engine.max_batched_tokens,
            kv_tokens.max(0.0) as u64,
        )
    }
}

/// Arrivals until each of n ranks has one, on average: n·(1 + 1/2 + … + 1/n), since a request goes to
/// the rank where one ended, whichever that is.
///
/// ```
/// use planner_core::serving::estimate::arrivals_for_each;
/// assert_eq!([1, 2, 4, 8].map(arrivals_for_each), [1, 3, 8, 22]);
/// ```
#[must_use]
pub fn arrivals_for_each(ranks: u32) -> u32 {
    let n = f64::from(ranks);
    (1..=ranks).map(|i| n / f64::from(i)).sum::<f64>().round() as u32
}

/// Tokens that a verified draft gives on average, (1 − pⁿ⁺¹)/(1 − p).
///
/// ```
/// use planner_core::serving::estimate::tokens_per_step;
/// assert!((tokens_per_step(0.75, 3) - 2.734).abs() < 1e-3);
/// assert_eq!(tokens_per_step(0.75, 0), 1.0);
/// assert_eq!(tokens_per_step(1.0, 3), 4.0);
/// ```
#[must_use]
pub fn tokens_per_step(acceptance: f64, drafts: u32) -> f64 {
    (0..=drafts as i32).map(|i| acceptance.powi(i)).sum()
}

/// Mean arrivals at one of `workers` engines.
fn mean(load: &Load, lengths: &Lengths, workers: u32) -> closed::Mean {
    let workers = f64::from(workers);
    let arrivals = match &load.arrivals {
        Arrivals::Closed { concurrency } => {
            closed::Arrivals::Clients((f64::from(*concurrency) / workers).max(1.0))
        }
        Arrivals::Open { rate_per_s, cv } => closed::Arrivals::Rate(rate_per_s / workers, *cv),
        Arrivals::Trace { requests } => {
            let span_s = requests.last().map_or(0.0, |r| r.arrival_s) - requests[0].arrival_s;
            let rate = requests.len() as f64 / span_s.max(1e-3);
            closed::Arrivals::Rate(rate / workers, 1.0)
        }
    };
    closed::Mean {
        input: lengths.input,
        hit: lengths.hit,
        output: lengths.output,
        arrivals,
    }
}

/// Links between the workers of the two pools: those of the domain where all GPUs share one, else
/// NICs; a request moves over those of its attention ranks, at most at the rate of the backend.
fn link(q: &Question<'_>, prefill: &Side<'_>, decode: &Side<'_>, lengths: &Lengths) -> Link {
    let (software, model) = (q.setting.software, q.setting.model);
    let format = memory::kv_format(q.deployment.precision.kv);
    let (all, state_bytes) = cache_bytes(model, format, lengths.input as u64);
    let heads = model.kinds.iter().filter_map(|k| match &k.mixer {
        Some(Mixer::Attention(a)) => Some(a.kv_heads),
        _ => None,
    });
    let tp = decode
        .engine
        .attention_tp()
        .min(prefill.engine.attention_tp());
    let links = unique_slices(heads.max().unwrap_or(1), u64::from(tp)) as f64;
    let gpu = exchange::Link::of(
        q.setting.cluster,
        q.deployment.gpus(),
        q.setting.hardware.link_rate,
    );
    Link {
        fixed_s: software.transfer_s + gpu.extra_s,
        token_bytes: (all - state_bytes) / lengths.input.max(1.0),
        state_bytes,
        bytes_per_s: (links * gpu.bytes_per_s).min(software.transfer_bytes_per_s),
        sources: prefill.engine.attention_dp,
        sinks: decode.engine.attention_dp,
        layer_groups: 1,
    }
}

/// Outcome, and the share of time that prefill workers compute.
fn disaggregated(
    q: &Question<'_>,
    prefill: &Side<'_>,
    decode: &Side<'_>,
    lengths: &Lengths,
    space: &mut Space,
) -> (Outcome, f64) {
    let link = link(q, prefill, decode, lengths);
    if q.mode == Mode::Mean {
        let split = closed::Split {
            prefill_policy: &prefill.policy,
            prefill_times: &prefill.costs,
            prefill_workers: prefill.workers,
            decode_policy: &decode.policy,
            decode_times: &decode.costs,
            decode_workers: decode.workers,
            link,
        };
        let mean = mean(q.load, lengths, 1);
        let (steady, busy) = split.steady(&mean);
        let mut out = steady.outcome(&mean, 1);
        out.mean_running /= f64::from(decode.workers);
        return (out, busy);
    }
    let mut nodes = std::mem::take(&mut space.nodes);
    let [first, second] = &mut nodes;
    let played = if q.mode == Mode::Tabulated {
        let a = first.over(&prefill.costs, prefill.range(q.load));
        let b = second.over(&decode.costs, decode.range(q.load));
        replay(q, (prefill, &a), (decode, &b), link, space)
    } else {
        replay(
            q,
            (prefill, &prefill.costs),
            (decode, &decode.costs),
            link,
            space,
        )
    };
    space.nodes = nodes;
    played
}

fn replay<P: StepTimes, D: StepTimes>(
    q: &Question<'_>,
    (prefill, prefill_times): (&Side<'_>, &P),
    (decode, decode_times): (&Side<'_>, &D),
    link: Link,
    space: &mut Space,
) -> (Outcome, f64) {
    let rules = Rules {
        policy: &decode.policy,
        times: decode_times,
        decode_only: true,
    };
    let split = Split {
        prefill_policy: &prefill.policy,
        prefill_times,
        prefill_workers: prefill.workers,
        decode: &rules,
        decode_workers: decode.workers,
        link,
    };
    requests::fill(q.load, &mut space.draws, &mut space.jobs);
    let sending = match q.load.arrivals {
        Arrivals::Closed { concurrency } => Sending::Clients(concurrency),
        _ => Sending::Timed,
    };
    let busy = disagg::play(&split, sending, &mut space.jobs, &mut space.split);
    let closed = matches!(sending, Sending::Clients(_));
    let mut out = if let Sending::Clients(clients) = sending {
        let share = Share {
            jobs: &space.jobs,
            clients,
            engines: 1,
        };
        Outcome::closed(&[share], &q.limits, &mut space.scratch)
    } else {
        Outcome::open(&space.jobs, &q.limits, &mut space.scratch)
    };
    let books = space.split.replicas.iter().map(|r| &r.books);
    out.book(books, decode.policy.kv_tokens, closed);
    out.saturated |= closed && busy > PREFILL_BUSY;
    (out, busy)
}

#[cfg(test)]
mod tests;
