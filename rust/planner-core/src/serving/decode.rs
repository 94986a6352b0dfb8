//! Time of a decode step.
//!
//! ```text
//! t = Σ groups (readᵖ + (n·compute)ᵖ)^(1/p)  p = 3: weights of projections, dense, shared, head
//!   + experts ([awake(n)·read]ᵖ + [rows(n)·compute]ᵖ)^(1/p) + rows(n)·move   of the hottest rank
//!   + core    b·Σ keys(context)·per key
//!   + exchange + N_op·τ + host + b·host per sequence + drafts
//! awake = min(local, a + z√(a(1 − a/local))),  a = local·(1 − (1 + θ·n·p)^(−1/θ)),  p = −ln(1 − k/E)
//! rows  = r + √((x·r)² + z²·r(1 − 1/ep)),  r = n·k/ep,  z mean of the largest of ep standard normals
//! ```
//!
//! n tokens that pass a weight, b sequences of the GPU. Everything that depends on the layout alone
//! is worked out once, so that a step costs a few multiplications.

use super::costs::Context;
use super::exchange;
use super::operators::{Core, Experts, Layer, Matrices};
use crate::moe::extremes::NormalMax;

/// Named terms of a decode step, s; they add up to [`Terms::total_s`].
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Terms {
    /// Projections of attention.
    pub projections_s: f64,
    /// Keys, values and recurrent states.
    pub core_s: f64,
    /// Dense MLPs.
    pub dense_s: f64,
    /// Routed experts.
    pub experts_s: f64,
    /// Shared experts.
    pub shared_s: f64,
    /// LM head.
    pub head_s: f64,
    /// Collectives and pipeline sends.
    pub exchange_s: f64,
    /// Latency floor of the operators.
    pub operators_s: f64,
    /// Host: step, and sequences.
    pub host_s: f64,
    /// Draft tokens.
    pub draft_s: f64,
}

impl Terms {
    /// Sum of all terms, s.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.projections_s
            + self.core_s
            + self.dense_s
            + self.experts_s
            + self.shared_s
            + self.head_s
            + self.exchange_s
            + self.operators_s
            + self.host_s
            + self.draft_s
    }
}

/// Smooth maximum of memory and compute time, (aᵖ + bᵖ)^(1/p) with p = 3.
///
/// ```
/// use planner_core::serving::decode::join;
/// assert_eq!(join(2.0, 0.0), 2.0);
/// assert!((join(1.0, 1.0) - 1.26).abs() < 1e-3);
/// ```
#[must_use]
pub fn join(a: f64, b: f64) -> f64 {
    cube_root(a * a * a + b * b * b)
}

/// Cube root of a number that is not negative, to 14 digits: a third of the exponent, then Halley's
/// steps. A decode step takes several, and the library's is several times slower.
#[inline]
fn cube_root(x: f64) -> f64 {
    if x < f64::MIN_POSITIVE {
        return 0.0;
    }
    let mut y = f64::from_bits(x.to_bits() / 3 + 0x2A9F_7893_7000_0000);
    for _ in 0..3 {
        let cube = y * y * y;
        y *= (cube + 2.0 * x) / (2.0 * cube + x);
    }
    y
}

/// Experts of a rank that a batch of n tokens wakes on average.
///
/// Uniform routing: `local·(1 − e^(−n·p))`, p = −ln(1 − k/E), which is local·(1 − (1 − k/E)^n).
/// With popularities that are gamma distributed around their mean with the squared coefficient of
/// variation θ: `local·(1 − (1 + θ·n·p)^(−1/θ))`, which tends to it for θ → 0.
///
/// ```
/// use planner_core::serving::decode::active;
/// // 32 of 256 experts on a rank, 8 a token, 16 tokens: 12.75 awake; 11.65 of unequal ones.
/// let rate = -(1.0_f64 - 8.0 / 256.0).ln();
/// assert!((active(32.0, rate, 0.0, 16.0) - 12.75).abs() < 0.01);
/// assert!((active(32.0, rate, 0.5, 16.0) - 11.65).abs() < 0.01);
/// ```
#[must_use]
pub fn active(local: f64, rate: f64, spread: f64, tokens: f64) -> f64 {
    let met = rate * tokens;
    let log_asleep = if spread > 1e-6 {
        (spread * met).ln_1p() / spread
    } else {
        met
    };
    -local * (-log_asleep).exp_m1()
}

/// Mean of the largest of R draws with a mean and a variance, by the normal approximation:
/// mean + E[max of R standard normals]·√variance.
///
/// ```
/// use planner_core::serving::decode::{hottest, normal_max};
/// // 8 ranks, on each 20 ± 2: the hottest has 22.8.
/// assert!((hottest(20.0, 4.0, normal_max(8)) - 22.85).abs() < 0.01);
/// assert_eq!(hottest(20.0, 4.0, normal_max(1)), 20.0);
/// ```
#[must_use]
pub fn hottest(mean: f64, variance: f64, largest: f64) -> f64 {
    mean + largest * variance.max(0.0).sqrt()
}

/// Mean load of the fullest of R ranks that share work unequally: what its share of the tokens and
/// what chance put above the mean add up as independent spreads do,
/// mean + √((x·mean)² + z²·variance), x the fullest share over the mean share, less 1.
///
/// Exact for shares drawn from a Dirichlet in the normal approximation, and in both limits.
///
/// ```
/// use planner_core::serving::decode::{fullest, hottest, normal_max};
/// let z = normal_max(8);
/// assert!((fullest(20.0, 4.0, z, 0.0) - hottest(20.0, 4.0, z)).abs() < 1e-12);
/// assert_eq!(fullest(20.0, 0.0, z, 0.5), 30.0);
/// ```
#[must_use]
pub fn fullest(mean: f64, variance: f64, largest: f64, beyond: f64) -> f64 {
    let share = beyond * mean;
    mean + (share * share + largest * largest * variance.max(0.0)).sqrt()
}

/// Mean of the largest of R standard normals, interpolated between powers of two.
#[must_use]
pub fn normal_max(ranks: u32) -> f64 {
    static KNOWN: std::sync::OnceLock<[f64; 14]> = std::sync::OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        std::array::from_fn(|i| {
            if i == 0 {
                0.0
            } else {
                NormalMax::of(1 << i).moments[0]
            }
        })
    });
    let place = f64::from(ranks.clamp(1, 1 << 12)).log2();
    let (low, share) = (place as usize, place.fract());
    known[low] + share * (known[low + 1] - known[low])
}

/// Weights that all layers of a sort read together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Group {
    read_s: f64,
    per_token_s: f64,
}

impl Group {
    fn add(&mut self, layers: f64, m: &Matrices, context: &Context) {
        if m.elements <= 0.0 {
            return;
        }
        self.read_s += layers * m.bytes() / context.read_bytes_per_s(m.dtype);
        self.per_token_s += layers * 2.0 * m.elements / context.decode_flops(m.dtype);
    }

    fn time_s(&self, tokens: f64) -> f64 {
        join(self.read_s, self.per_token_s * tokens)
    }
}

/// Experts of all layers of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ExpertGroup {
    /// Reading one expert of every layer, s.
    pub read_s: f64,
    /// Multiplying one row of every layer, s.
    pub row_s: f64,
    /// Gathering one row of every layer, and adding up its result, s.
    pub move_s: f64,
    local: f64,
    rate: f64,
    spread: f64,
    /// Rows of a rank for a token of the engine.
    rows_per_token: f64,
    /// Share of the fullest rank over the mean, less 1.
    beyond: f64,
    /// Other ranks' share of the rows.
    elsewhere: f64,
    largest: f64,
}

impl ExpertGroup {
    pub(super) fn new(n: f64, e: &Experts, context: &Context, flops: f64) -> Self {
        Self {
            read_s: n * e.slice().bytes() / context.expert_bytes_per_s(e.dtype),
            row_s: n * 2.0 * e.elements / flops,
            move_s: n * context.expert_row_s(e.width),
            local: e.local,
            rate: -(-(e.top_k / e.all).min(1.0 - 1e-12)).ln_1p(),
            spread: context.routing.popularity_spread,
            rows_per_token: e.top_k / e.ranks,
            beyond: context.routing.imbalance - 1.0,
            elsewhere: 1.0 - 1.0 / e.ranks,
            largest: normal_max(e.ranks as u32),
        }
    }

    /// Times to read the awake experts, and to multiply and to move the rows of the hottest rank, s.
    pub(super) fn times(&self, tokens: f64) -> [f64; 3] {
        let mean = active(self.local, self.rate, self.spread, tokens);
        let awake = hottest(mean, mean * (1.0 - mean / self.local), self.largest);
        let rows = self.rows_per_token * tokens;
        let hot = fullest(rows, rows * self.elsewhere, self.largest, self.beyond);
        [
            awake.min(self.local) * self.read_s,
            hot * self.row_s,
            hot * self.move_s,
        ]
    }

    /// The same of a rank that has its even share.
    fn even(&self, tokens: f64) -> [f64; 3] {
        let awake = active(self.local, self.rate, self.spread, tokens);
        let rows = self.rows_per_token * tokens;
        [awake * self.read_s, rows * self.row_s, rows * self.move_s]
    }
}

/// What the fullest expert rank has beyond an even share.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Imbalance {
    /// Rows of the fullest rank over the mean, chance included; 1 without expert parallelism.
    pub rows_ratio: f64,
    /// Experts of that rank that the tokens wake, of a layer; 0 without experts.
    pub active_experts: f64,
    /// Time of the routed experts beyond that of an even rank, s.
    pub beyond_s: f64,
}

impl Imbalance {
    /// Of all layers with experts, where so many tokens pass and `joined` is the time of reading and
    /// multiplying. Ratio and experts are those of the first kind of layer.
    pub(super) fn of(groups: &[ExpertGroup], tokens: f64, joined: fn(f64, f64) -> f64) -> Self {
        let mut found = Self {
            rows_ratio: 1.0,
            active_experts: 0.0,
            beyond_s: 0.0,
        };
        for (i, group) in groups.iter().enumerate() {
            let (hot, even) = (group.times(tokens), group.even(tokens));
            found.beyond_s += joined(hot[0], hot[1]) - joined(even[0], even[1]) + hot[2] - even[2];
            if i == 0 {
                found.rows_ratio = hot[1] / even[1];
                found.active_experts = hot[0] / group.read_s;
            }
        }
        found
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct CoreGroup {
    per_key_s: f64,
    span: f64,
    index_per_key_s: f64,
    state_s: f64,
}

/// A decode step of one engine, worked out for its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Decode {
    projections: Group,
    unquantised: Group,
    dense: Group,
    shared: Group,
    head: Group,
    experts: Vec<ExpertGroup>,
    cores: Vec<CoreGroup>,
    exchange_s: f64,
    exchange_per_token_s: f64,
    operators_s: f64,
    step_s: f64,
    sequence_s: f64,
    attention_dp: f64,
    stages: f64,
    /// Tokens that a sequence brings: one, and its drafts.
    verified: f64,
    drafts: f64,
    draft_overhead_s: f64,
    draft: Option<Box<Decode>>,
}

impl Decode {
    /// Works out the step for layers of an engine.
    #[must_use]
    pub fn new(context: &Context, layers: &[(f64, Layer)], draft: Option<Self>) -> Self {
        let (engine, software) = (context.engine, context.software);
        let verified = 1.0 + f64::from(engine.spec_tokens);
        let mut found = Self {
            projections: Group::default(),
            unquantised: Group::default(),
            dense: Group::default(),
            shared: Group::default(),
            head: Group::default(),
            experts: Vec::new(),
            cores: Vec::new(),
            exchange_s: 0.0,
            exchange_per_token_s: 0.0,
            operators_s: 0.0,
            step_s: software.step_s,
            sequence_s: software.sequence_s,
            attention_dp: f64::from(engine.attention_dp),
            stages: f64::from(engine.pp),
            verified,
            drafts: f64::from(engine.spec_tokens),
            draft_overhead_s: software.draft_s,
            draft: draft.map(Box::new),
        };
        found.head.add(1.0, &context.head(), context);
        for (n, layer) in layers {
            found.add(*n, layer, context);
        }
        found.exchange_s += exchange::pipeline_s(context);
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
                context.decode_expert_flops(experts.dtype),
            ));
        }
        if layer.mixer {
            self.cores
                .push(core_group(n, &layer.core, self.verified, context));
        }
        self.operators_s += n * layer.operators * context.operator_s();
        for exchange in [
            exchange::of_step(context, layer),
            exchange::context_ranks(context, layer),
        ] {
            self.exchange_s += n * exchange.fixed_s;
            self.exchange_per_token_s += n * exchange.per_token_s;
        }
    }

    /// Sequences of a stage: every stage works on its own share.
    fn of_stage(&self, sequences: f64) -> f64 {
        (sequences / self.stages).max(sequences.min(1.0))
    }

    /// What the fullest expert rank has beyond an even share in such a step; part of the terms.
    #[must_use]
    pub fn imbalance(&self, sequences: f64) -> Imbalance {
        let tokens = self.of_stage(sequences) * self.verified;
        Imbalance::of(&self.experts, tokens, join)
    }

    /// Terms of a step of `sequences` requests with a mean of `context` tokens.
    #[must_use]
    pub fn terms(&self, sequences: f64, context: f64) -> Terms {
        let all = self.of_stage(sequences);
        let own = (all / self.attention_dp).max(all.min(1.0));
        let (tokens, own_tokens) = (all * self.verified, own * self.verified);
        let mut terms = Terms {
            projections_s: self.projections.time_s(own_tokens)
                + self.unquantised.time_s(own_tokens),
            dense_s: self.dense.time_s(own_tokens),
            shared_s: self.shared.time_s(own_tokens),
            head_s: self.head.time_s(own_tokens),
            exchange_s: self.exchange_s + self.exchange_per_token_s * own_tokens,
            operators_s: self.operators_s,
            host_s: self.step_s + self.sequence_s * own,
            ..Terms::default()
        };
        for e in &self.experts {
            let [read, multiply, rows] = e.times(tokens);
            terms.experts_s += join(read, multiply) + rows;
        }
        for c in &self.cores {
            let keys = context.min(c.span) * c.per_key_s + context * c.index_per_key_s;
            terms.core_s += own * (keys + c.state_s);
        }
        if self.drafts > 0.0 {
            let layer = self.draft.as_ref().map_or(0.0, |d| {
                let t = d.terms(sequences, context);
                t.total_s() - t.host_s
            });
            terms.draft_s = self.drafts * (layer + self.draft_overhead_s);
        }
        terms
    }
}

fn core_group(n: f64, c: &Core, verified: f64, context: &Context) -> CoreGroup {
    let bandwidth = context.kv_bytes_per_s();
    let rate = context.core_flops(c.latent);
    CoreGroup {
        per_key_s: n * join(
            c.bytes_per_key / bandwidth,
            verified * c.flops_per_key / rate,
        ),
        span: c.span,
        index_per_key_s: n * join(
            c.index_bytes_per_key / bandwidth,
            verified * c.index_flops_per_key / rate,
        ),
        state_s: n * verified * c.state_bytes / bandwidth,
    }
}

#[cfg(test)]
mod tests {
    use super::cube_root;

    #[test]
    fn cube_roots_are_those_of_the_library() {
        for power in -60..60 {
            let x = 1.37 * 10.0_f64.powi(power);
            assert!((cube_root(x) / x.cbrt() - 1.0).abs() < 1e-14, "{x}");
        }
        assert_eq!((cube_root(0.0), cube_root(8.0)), (0.0, 2.0));
    }
}
