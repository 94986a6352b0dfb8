//! Costs of one engine: the layout worked out once, then steps at a few tens of nanoseconds.

use super::decode::{self, Decode};
use super::deployment::{Backend, Engine, Precision};
use super::hardware::Hardware;
use super::operators::{Cut, Layer, Matrices};
use super::prefill::{self, Prefill};
use super::routing::{Measured, Routing};
use super::software::Software;
use super::steps::{Pass, StepTimes};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::kernels::Rates;
use crate::model::{FeedForward, Mixer, Model};
use crate::units::Dtype;

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Prefills and decodes.
    Both,
    /// Only prefills.
    Prefill,
    /// Only decodes.
    Decode,
}

/// What costs are worked out from, the layout apart.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The model.
    pub model: &'a Model,
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// Numbers of the GPU's architecture.
    pub hardware: &'a Hardware,
    /// Numbers of the backend.
    pub software: &'a Software,
    /// The backend.
    pub backend: Backend,
    /// How tokens choose experts where nothing was measured.
    pub routing: Routing,
    /// A measured routing, which takes its place.
    pub measured: Option<&'a Measured>,
}

/// A setting with a layout: rates that formulas ask for.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The model.
    pub model: &'a Model,
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// Numbers of the GPU's architecture.
    pub hardware: &'a Hardware,
    /// Numbers of the backend.
    pub software: &'a Software,
    /// Layout and flags.
    pub engine: &'a Engine,
    /// How tokens choose experts.
    pub routing: Routing,
    /// bf16 peak, FLOP/s.
    bf16: Rates,
    /// Rate of a prefill-only engine over that of a mixed one.
    prefill_ratio: f64,
}

impl Context<'_> {
    /// Peak of the operands that weights of a format are multiplied with: 8-bit activations beside
    /// MXFP4, 16-bit ones where weights are only stored in their format.
    fn peak(&self, dtype: Dtype) -> f64 {
        if self.weight_only(dtype) {
            return self.bf16.peak_flops * self.hardware.weight_only_rate;
        }
        let operands = match dtype {
            Dtype::Int8 => Dtype::Bf16,
            Dtype::Mxfp4 => Dtype::Fp8,
            other => other,
        };
        let native = self.cluster.device.peak_flops.get(&operands);
        native.copied().unwrap_or(self.bf16.peak_flops)
    }

    /// Whether weights of a format are widened before they are multiplied.
    fn weight_only(&self, dtype: Dtype) -> bool {
        dtype.bytes() < 1.0
            && (dtype == Dtype::Int4 || !self.cluster.device.peak_flops.contains_key(&dtype))
    }

    /// Bandwidth at which decode reads weights of a format, bytes/s.
    #[must_use]
    pub fn read_bytes_per_s(&self, dtype: Dtype) -> f64 {
        let h = self.hardware;
        let ratio = match dtype.bytes() {
            b if b >= 2.0 => h.weight_read_16_bit,
            b if b < 1.0 => h.weight_read_4_bit,
            _ => 1.0,
        };
        self.bf16.memory_bytes_per_s * h.weight_read * self.software.weight_read * ratio
    }

    /// Bandwidth at which experts of a format are read, bytes/s.
    #[must_use]
    pub fn expert_bytes_per_s(&self, dtype: Dtype) -> f64 {
        let h = self.hardware;
        let share = if self.weight_only(dtype) {
            h.expert_read_weight_only
        } else if dtype.bytes() < 1.0 {
            h.expert_read * h.expert_read_4_bit
        } else {
            h.expert_read
        };
        self.bf16.memory_bytes_per_s * share * self.software.expert_read
    }

    /// Bandwidth at which keys and values are read, bytes/s.
    #[must_use]
    pub fn kv_bytes_per_s(&self) -> f64 {
        self.bf16.memory_bytes_per_s * self.hardware.kv_read * self.software.kv_read
    }

    /// Rate of decode GEMMs, FLOP/s.
    #[must_use]
    pub fn decode_flops(&self, dtype: Dtype) -> f64 {
        self.peak(dtype) * self.hardware.gemm_rate
    }

    /// Rate of the experts of decode, FLOP/s.
    #[must_use]
    pub fn decode_expert_flops(&self, dtype: Dtype) -> f64 {
        self.peak(dtype) * self.hardware.expert_rate
    }

    /// Rate of decode attention, FLOP/s.
    #[must_use]
    pub fn core_flops(&self, latent: bool) -> f64 {
        let share = if latent {
            self.hardware.latent_rate
        } else {
            self.hardware.gemm_rate
        };
        self.bf16.peak_flops * share
    }

    /// Rate of the GEMMs of a pass, FLOP/s.
    #[must_use]
    pub fn prefill_flops(&self, dtype: Dtype) -> f64 {
        self.peak(dtype)
            * self.hardware.prefill_gemm_rate
            * self.prefill_ratio
            * narrow(dtype, self.hardware.prefill_4_bit)
    }

    /// Rate of the experts of a pass, FLOP/s.
    #[must_use]
    pub fn prefill_expert_flops(&self, dtype: Dtype) -> f64 {
        self.peak(dtype)
            * self.hardware.prefill_expert_rate
            * self.prefill_ratio
            * match dtype {
                Dtype::Fp8 | Dtype::Fp8Block => self.hardware.prefill_expert_8_bit,
                _ => 1.0,
            }
    }

    /// Rate of prefill attention, FLOP/s.
    #[must_use]
    pub fn prefill_attention_flops(&self) -> f64 {
        self.bf16.peak_flops * self.hardware.prefill_attention_rate * self.prefill_ratio
    }

    /// Time of an operator of a decode step, s.
    #[must_use]
    pub fn operator_s(&self) -> f64 {
        self.software.operator_s * self.hardware.operator_ratio
    }

    /// Element-wise time of a token in a layer of a pass, s.
    #[must_use]
    pub fn elementwise_s(&self) -> f64 {
        self.hardware.elementwise_passes * self.model.hidden as f64 * 2.0
            / self.bf16.memory_bytes_per_s
    }

    /// Traffic of a row of an expert in a layer, s.
    #[must_use]
    pub fn expert_row_s(&self, width: f64) -> f64 {
        self.hardware.expert_row_passes * width * 2.0 / self.bf16.memory_bytes_per_s
    }

    /// LM head on one GPU.
    #[must_use]
    pub fn head(&self) -> Matrices {
        Matrices {
            elements: self.model.hidden as f64 * self.model.vocab as f64
                / f64::from(self.engine.attention_tp()),
            dtype: Dtype::Bf16,
        }
    }
}

/// A ratio that only 4-bit formats have.
const fn narrow(dtype: Dtype, ratio: f64) -> f64 {
    if dtype.bytes() < 1.0 { ratio } else { 1.0 }
}

/// Costs of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    decode: Decode,
    prefill: Prefill,
}

impl Costs {
    /// Works out the costs of a layout.
    ///
    /// # Errors
    /// When the layout does not multiply out, or the device lacks a bf16 peak.
    pub fn new(
        setting: &Setting,
        precision: &Precision,
        engine: &Engine,
        role: Role,
    ) -> Result<Self> {
        check(setting.model, engine)?;
        let software = setting.software;
        let apart = if role == Role::Prefill {
            software.disaggregated_prefill_rate
        } else {
            1.0
        };
        let context = Context {
            model: setting.model,
            cluster: setting.cluster,
            hardware: setting.hardware,
            software,
            engine,
            routing: setting.measured.map_or(setting.routing, |m| m.of(engine)),
            bf16: Rates::of(&setting.cluster.device, Dtype::Bf16)?,
            prefill_ratio: software.prefill_rate * apart,
        };
        let cut = Cut {
            hidden: setting.model.hidden as f64,
            engine,
            precision,
            operators: &setting.hardware.operators,
            peaks: &setting.cluster.device.peak_flops,
        };
        let layers = layers(setting.model, &cut);
        let draft = (engine.spec_tokens > 0)
            .then(|| draft(setting.model, &cut, &context))
            .flatten();
        Ok(Self {
            decode: Decode::new(&context, &layers, draft),
            prefill: Prefill::new(&context, &layers),
        })
    }

    /// Terms of a decode step.
    #[must_use]
    pub fn decode_terms(&self, sequences: f64, context: f64) -> decode::Terms {
        self.decode.terms(sequences, context)
    }

    /// What the fullest expert rank has beyond an even share: in a decode step of one engine, and in a
    /// pass of one that prefills.
    #[must_use]
    pub fn imbalance(
        decode: &Self,
        sequences: f64,
        first: &Self,
        pass: &Pass,
    ) -> [decode::Imbalance; 2] {
        [
            decode.decode.imbalance(sequences),
            first.prefill.imbalance(pass),
        ]
    }

    /// Terms of a prefill pass.
    #[must_use]
    pub fn prefill_terms(&self, pass: &Pass) -> prefill::Terms {
        self.prefill.terms(pass)
    }
}

impl StepTimes for Costs {
    fn decode_s(&self, sequences: f64, context: f64) -> f64 {
        self.decode.terms(sequences, context).total_s()
    }

    fn prefill_s(&self, pass: &Pass) -> f64 {
        self.prefill.terms(pass).total_s()
    }
}

/// Layers of the model by kind, with their number.
fn layers(model: &Model, cut: &Cut) -> Vec<(f64, Layer)> {
    let mut counts = vec![0.0; model.kinds.len()];
    for &kind in &model.layers {
        counts[kind] += 1.0;
    }
    let mut found: Vec<(f64, Layer)> = Vec::with_capacity(counts.len());
    for (kind, n) in model.kinds.iter().zip(counts).filter(|(_, n)| *n > 0.0) {
        let layer = cut.layer(kind);
        match found.iter_mut().find(|(_, l)| *l == layer) {
            Some((count, _)) => *count += n,
            None => found.push((n, layer)),
        }
    }
    found
}

/// The model's own prediction head as a step of its own.
fn draft(model: &Model, cut: &Cut, context: &Context) -> Option<Decode> {
    let head = model.mtp.first()?;
    let engine = Engine {
        spec_tokens: 0,
        pp: 1,
        ..*context.engine
    };
    let alone = Cut {
        engine: &engine,
        ..*cut
    };
    let mut layer = alone.layer(&model.kinds[head.kind]);
    layer.unquantised.elements += head.projection_params as f64;
    let one = Context {
        engine: &engine,
        ..*context
    };
    Some(Decode::new(&one, &[(1.0, layer)], None))
}

fn check(model: &Model, engine: &Engine) -> Result<()> {
    let rule = |field: &str, value: u32, rule: &str| Err(Error::field(field, value, rule));
    let degrees = [
        engine.tp,
        engine.pp,
        engine.attention_dp,
        engine.pcp,
        engine.dcp,
    ];
    if degrees.contains(&0) {
        return rule(
            "tp",
            engine.tp,
            "tp, pp, attention_dp, pcp and dcp must be at least 1",
        );
    }
    if !engine.tp.is_multiple_of(engine.attention_dp) {
        return rule("attention_dp", engine.attention_dp, "must divide tp");
    }
    if !(engine.tp / engine.attention_dp).is_multiple_of(engine.pcp) {
        return rule("pcp", engine.pcp, "must divide tp / attention_dp");
    }
    if u64::from(engine.pp) > model.layers.len() as u64 {
        return rule("pp", engine.pp, "the model has fewer layers");
    }
    let moe = model
        .kinds
        .iter()
        .any(|k| matches!(k.feed_forward, Some(FeedForward::Moe(_))));
    if moe && engine.ep * engine.moe_tp != engine.tp {
        return rule("ep", engine.ep, "ep · moe_tp must be tp");
    }
    let latent = |m: &Option<Mixer>| matches!(m, Some(Mixer::Mla(_)));
    if engine.dcp > engine.tp && !model.kinds.iter().any(|k| latent(&k.mixer)) {
        return rule("dcp", engine.dcp, "must not exceed tp");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
