//! Time of a pass over prompts.
//!
//! ```text
//! t  = √(gpu² + launch²) + host
//! gpu = Σ groups √((T·flops/rate)² + read²) + pairs·flops/rate + exchange + T·passes·H·2 B / HBM
//! launch = N_op · time of a launch
//! ```
//!
//! T tokens of the GPU: with attention data-parallel ranks, a prompt is not split over them, so
//! T = max(T_all / ranks, longest prompt); c prefill context ranks each take a c-th of it, pairs
//! too, and gather the keys of the others. Experts see all tokens.

use super::costs::Context;
use super::decode::{ExpertGroup, Imbalance};
use super::exchange;
use super::operators::{Core, Layer, Matrices};
use super::steps::Pass;

/// Named terms of a pass, s. `launch_s` is what launching adds to the GPU's time; they add up to
/// [`Terms::total_s`].
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Terms {
    /// Projections of attention.
    pub projections_s: f64,
    /// Attention over all pairs of tokens.
    pub core_s: f64,
    /// Dense MLPs.
    pub dense_s: f64,
    /// Routed experts.
    pub experts_s: f64,
    /// Shared experts.
    pub shared_s: f64,
    /// LM head, one token a prompt.
    pub head_s: f64,
    /// Collectives.
    pub exchange_s: f64,
    /// Norms, residuals, activations, copies.
    pub elementwise_s: f64,
    /// What launches add.
    pub launch_s: f64,
    /// Host time of the pass.
    pub host_s: f64,
}

impl Terms {
    /// Time of the GPU, launches apart, s.
    #[must_use]
    pub fn gpu_s(&self) -> f64 {
        self.projections_s
            + self.core_s
            + self.dense_s
            + self.experts_s
            + self.shared_s
            + self.head_s
            + self.exchange_s
            + self.elementwise_s
    }

    /// Sum of all terms, s.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.gpu_s() + self.launch_s + self.host_s
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Group {
    read_s: f64,
    per_token_s: f64,
}

impl Group {
    fn add(&mut self, layers: f64, m: &Matrices, context: &Context) {
        if m.elements > 0.0 {
            self.read_s += layers * m.bytes() / context.read_bytes_per_s(m.dtype);
            self.per_token_s += layers * 2.0 * m.elements / context.prefill_flops(m.dtype);
        }
    }

    fn time_s(&self, tokens: f64) -> f64 {
        self.read_s.hypot(self.per_token_s * tokens)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct CoreGroup {
    per_pair_s: f64,
    index_per_pair_s: f64,
    per_token_s: f64,
    span: f64,
}

/// Query–key pairs of q new tokens after p old ones, each seeing at most `span`: q·p + q²/2 without
/// a bound.
///
/// ```
/// use planner_core::serving::prefill::pairs;
/// assert_eq!(pairs(1000.0, 0.0, f64::INFINITY), 500_000.0);
/// assert_eq!(pairs(1000.0, 2000.0, f64::INFINITY), 2_500_000.0);
/// assert_eq!(pairs(1000.0, 2000.0, 128.0), 128_000.0);
/// assert_eq!(pairs(1000.0, 0.0, 200.0), 180_000.0); // 200²/2 + 800·200
/// ```
#[must_use]
pub fn pairs(queries: f64, past: f64, span: f64) -> f64 {
    let rising = (span - past).clamp(0.0, queries);
    let seen = past.min(span);
    let flat = queries - rising;
    let bound = if flat > 0.0 { flat * span } else { 0.0 };
    rising * (seen + rising / 2.0) + bound
}

/// A prefill pass of one engine, worked out for its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefill {
    projections: Group,
    unquantised: Group,
    dense: Group,
    shared: Group,
    head: Group,
    experts: Vec<ExpertGroup>,
    cores: Vec<CoreGroup>,
    exchange_per_token_s: f64,
    elementwise_per_token_s: f64,
    launch_s: f64,
    pass_s: f64,
    attention_dp: f64,
    pcp: f64,
}

impl Prefill {
    /// Works out the pass for layers of an engine.
    #[must_use]
    pub fn new(context: &Context, layers: &[(f64, Layer)]) -> Self {
        let mut found = Self {
            projections: Group::default(),
            unquantised: Group::default(),
            dense: Group::default(),
            shared: Group::default(),
            head: Group::default(),
            experts: Vec::new(),
            cores: Vec::new(),
            exchange_per_token_s: 0.0,
            elementwise_per_token_s: 0.0,
            launch_s: 0.0,
            pass_s: context.software.pass_s,
            attention_dp: f64::from(context.engine.attention_dp),
            pcp: f64::from(context.engine.pcp),
        };
        found.head.add(1.0, &context.head(), context);
        for (n, layer) in layers {
            found.add(*n, layer, context);
        }
        found
    }

    fn add(&mut self, n: f64, layer: &Layer, context: &Context) {
        self.projections.add(n, &layer.projections, context);
        self.unquantised.add(n, &layer.unquantised, context);
        self.dense.add(n, &layer.dense, context);
        self.shared.add(n, &layer.shared, context);
        if let Some(experts) = &layer.experts {
            self.experts.push(ExpertGroup::new(
                n,
                experts,
                context,
                context.prefill_expert_flops(experts.dtype),
            ));
        }
        if layer.mixer {
            self.cores.push(core_group(n, &layer.core, context));
        }
        self.exchange_per_token_s += n * exchange::of_pass(context, layer);
        self.elementwise_per_token_s += n * context.elementwise_s();
        self.launch_s += n * layer.operators * context.software.launch_s;
    }

    /// What the fullest expert rank has beyond an even share in a pass; part of the terms.
    #[must_use]
    pub fn imbalance(&self, pass: &Pass) -> Imbalance {
        Imbalance::of(&self.experts, pass.tokens, f64::hypot)
    }

    /// Terms of a pass.
    #[must_use]
    pub fn terms(&self, pass: &Pass) -> Terms {
        if pass.tokens <= 0.0 {
            return Terms::default();
        }
        let prompts = pass.prompts.max(1.0);
        let queries = pass.tokens / prompts;
        let own = (pass.tokens / self.attention_dp).max(queries) / self.pcp;
        let own_prompts = own / queries;
        let mut terms = Terms {
            projections_s: self.projections.time_s(own) + self.unquantised.time_s(own),
            dense_s: self.dense.time_s(own),
            shared_s: self.shared.time_s(own),
            head_s: self.head.time_s(own_prompts),
            exchange_s: self.exchange_per_token_s * own,
            elementwise_s: self.elementwise_per_token_s * own,
            host_s: self.pass_s,
            ..Terms::default()
        };
        for e in &self.experts {
            let [read, multiply, rows] = e.times(pass.tokens);
            terms.experts_s += read.hypot(multiply) + rows;
        }
        let all = pairs(queries, pass.past, f64::INFINITY);
        for c in &self.cores {
            let seen = if c.span.is_finite() {
                pairs(queries, pass.past, c.span)
            } else {
                all
            };
            let per_prompt = seen * c.per_pair_s + all * c.index_per_pair_s;
            terms.core_s += own_prompts * per_prompt + own * c.per_token_s;
        }
        let gpu = terms.gpu_s();
        terms.launch_s = gpu.hypot(self.launch_s) - gpu;
        terms
    }
}

fn core_group(n: f64, c: &Core, context: &Context) -> CoreGroup {
    let rate = context.prefill_attention_flops();
    CoreGroup {
        per_pair_s: n * c.prefill_flops_per_pair / rate,
        index_per_pair_s: n * c.index_flops_per_key / rate,
        per_token_s: n * c.prefill_flops_per_token / rate,
        span: c.span,
    }
}
