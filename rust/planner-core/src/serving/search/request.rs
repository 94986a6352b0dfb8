//! A search as it is asked for, checked and made ready.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::traffic::Traffic;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::kv::transfer;
use crate::layout::named_enum;
use crate::model::Model;
use crate::moe;
use crate::serving::costs::Setting;
use crate::serving::deployment::{Backend, Precision};
use crate::serving::facts::Facts;
use crate::serving::hardware::Hardware;
use crate::serving::load::{Arrivals, Load};
use crate::serving::memory;
use crate::serving::recorded::Source;
use crate::serving::routing::{Measured, Routing};
use crate::serving::software::Software;
use crate::serving::space::copies::Copies;
use crate::serving::space::{Axes, Defaults, Kind, Mode, Space, axes};
use crate::stats::Quantiles;

named_enum! {
    /// Which value of the requests a limit is on.
    Statistic {
        /// Mean.
        Mean = "mean",
        /// Median.
        P50 = "p50",
        /// 90 % are below.
        P90 = "p90",
        /// 99 % are below.
        P99 = "p99",
    }
}

named_enum! {
    /// What is best.
    Objective {
        /// Most tokens a second and GPU.
        Throughput = "throughput",
        /// Least cost of a token.
        Cost = "cost",
        /// Fewest GPUs.
        Gpus = "gpus",
    }
}

impl Statistic {
    /// The value of a distribution.
    #[must_use]
    pub const fn of(self, q: &Quantiles) -> f64 {
        match self {
            Self::Mean => q.mean,
            Self::P50 => q.p50,
            Self::P90 => q.p90,
            Self::P99 => q.p99,
        }
    }
}

/// Limits, and what is best within them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Longest time to first token, s.
    pub ttft_s: Option<f64>,
    /// Longest time per output token, s.
    pub tpot_s: Option<f64>,
    /// Which value the limits are on.
    pub at: Statistic,
    /// Share of a limit that is kept free.
    pub margin: f64,
    /// What is best.
    pub objective: Objective,
    /// Price of a GPU-hour.
    pub price_per_gpu_hour: Option<f64>,
}

impl Goal {
    /// Longest time to first token that is planned for, s.
    #[must_use]
    pub fn ttft_limit_s(&self) -> f64 {
        self.ttft_s.unwrap_or(f64::INFINITY) * (1.0 - self.margin)
    }

    /// Longest time per output token that is planned for, s.
    #[must_use]
    pub fn tpot_limit_s(&self) -> f64 {
        self.tpot_s.unwrap_or(f64::INFINITY) * (1.0 - self.margin)
    }

    /// Price of a million tokens; NaN without a price.
    ///
    /// ```
    /// use planner_core::serving::search::{Goal, Objective, Statistic};
    /// let goal = Goal {
    ///     ttft_s: None, tpot_s: None, at: Statistic::Mean, margin: 0.0,
    ///     objective: Objective::Cost, price_per_gpu_hour: Some(3.6),
    /// };
    /// assert_eq!(goal.cost_per_million_tokens(8.0, 8000.0), 1.0);
    /// ```
    #[must_use]
    pub fn cost_per_million_tokens(&self, gpus: f64, tokens_per_s: f64) -> f64 {
        self.price_per_gpu_hour
            .map_or(f64::NAN, |price| price / 3600.0 * gpus / tokens_per_s * 1e6)
    }
}

/// Formats and flags of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindSpec {
    /// Software.
    pub backend: Backend,
    /// Formats.
    pub precision: Precision,
    /// Flags where nothing is said.
    pub defaults: Defaults,
}

/// A search.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The model.
    pub model: Model,
    /// The cluster.
    pub cluster: Cluster,
    /// Numbers of the GPU's architecture.
    pub hardware: Hardware,
    /// Numbers of every backend.
    pub software: BTreeMap<Backend, Software>,
    /// How tokens choose experts where nothing was measured.
    pub routing: Routing,
    /// A measured routing, or a model of one, which takes its place.
    #[serde(default)]
    pub measured: Option<moe::Routing>,
    /// Backends and formats.
    pub kinds: Vec<KindSpec>,
    /// GPUs that may be used.
    pub gpus: u32,
    /// Requests.
    pub load: Load,
    /// The trace, where `load` plays one.
    pub recorded: Option<Source>,
    /// The search chooses how many clients there are.
    pub open_concurrency: bool,
    /// Limits.
    pub goal: Goal,
    /// The space.
    pub axes: Axes,
}

/// A search made ready.
#[derive(Clone, Debug)]
pub struct Job {
    /// The model.
    pub model: Model,
    /// The cluster.
    pub cluster: Cluster,
    hardware: Hardware,
    software: BTreeMap<Backend, Software>,
    routing: Routing,
    measured: Option<Measured>,
    /// Backends, formats, defaults.
    pub kinds: Vec<Kind>,
    /// Rules and axes.
    pub space: Space,
    /// Numbers of workers.
    pub copies: Copies,
    /// How prefill and decode share engines.
    pub modes: Vec<Mode>,
    /// Requests as asked.
    pub load: Load,
    /// Requests, as engines see them.
    pub(crate) traffic: Traffic,
    /// Limits.
    pub goal: Goal,
    /// GPUs that may be used.
    pub gpus: u32,
}

impl Request {
    /// Check a request and read its trace.
    ///
    /// # Errors
    /// When an input makes no sense.
    pub fn job(mut self) -> Result<Job> {
        self.model.validate()?;
        self.routing.check()?;
        let routed = self.measured.as_ref();
        let measured = routed.map(|r| Measured::new(r, &self.model)).transpose()?;
        let recorded = match (&self.recorded, &mut self.load.arrivals) {
            (Some(source), Arrivals::Trace { requests }) => {
                let read = source.read()?;
                *requests = read.requests().to_vec();
                Some(read)
            }
            _ => None,
        };
        let facts = Facts::new(&self.model, &self.cluster, &self.load, self.gpus.into())?;
        for kind in &self.kinds {
            if !self.software.contains_key(&kind.backend) {
                return Err(Error::field(
                    "software",
                    format!("{:?}", kind.backend),
                    "is missing",
                ));
            }
        }
        let copies = Copies {
            gpus: self.gpus,
            decode: self.axes.engine.stated_workers(self.gpus)?,
            prefill: self.axes.prefill.stated_workers(self.gpus)?,
        };
        let modes = axes::modes(&self.axes)?;
        let traffic = Traffic::new(
            &self.load,
            recorded.unwrap_or_default(),
            self.open_concurrency,
        );
        let kinds = self.kinds.iter().map(|k| Kind {
            backend: k.backend,
            precision: k.precision,
            defaults: k.defaults,
        });
        Ok(Job {
            kinds: kinds.collect(),
            space: Space {
                facts,
                axes: self.axes,
            },
            model: self.model,
            cluster: self.cluster,
            hardware: self.hardware,
            software: self.software,
            routing: self.routing,
            measured,
            copies,
            modes,
            traffic,
            load: self.load,
            goal: self.goal,
            gpus: self.gpus,
        })
    }
}

impl Job {
    /// Numbers of a backend.
    #[must_use]
    pub fn software(&self, backend: Backend) -> &Software {
        &self.software[&backend]
    }

    /// Numbers of the GPU's architecture.
    #[must_use]
    pub const fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Bytes of the cache of a prompt over the whole model, and of them those of states.
    #[must_use]
    pub fn cache_bytes(&self, kind: &Kind, tokens: f64) -> (f64, f64) {
        let format = memory::kv_format(kind.precision.kv);
        transfer::cache_bytes(&self.model, format, tokens as u64)
    }

    /// What costs of a kind are worked out from.
    #[must_use]
    pub fn setting(&self, kind: &Kind) -> Setting<'_> {
        Setting {
            model: &self.model,
            cluster: &self.cluster,
            hardware: &self.hardware,
            software: self.software(kind.backend),
            backend: kind.backend,
            routing: self.routing,
            measured: self.measured.as_ref(),
        }
    }
}
