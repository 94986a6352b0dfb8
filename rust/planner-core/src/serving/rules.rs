//! What an engine accepts, as data: one table, read by the space, by its count, by the explanation
//! of a rejection and by the documentation.
//!
//! The rules of a backend were read in its source, in the versions that [`TESTED`] names.

use crate::units::Dtype;

use super::deployment::{Backend, Engine, Precision};
use super::facts::Facts;
use super::space::{Side, Status};

mod table;

pub use table::RULES;

/// Release of each backend whose rules these are.
pub const TESTED: &[(Backend, &str)] = &[
    (Backend::Vllm, "0.33.0"),
    (Backend::Sglang, "0.5.23"),
    (Backend::Trtllm, "1.2"),
];

/// An engine and what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Software.
    pub backend: Backend,
    /// Formats.
    pub precision: &'a Precision,
    /// What the engine does.
    pub side: Side,
    /// The engine.
    pub engine: &'a Engine,
}

impl Candidate<'_> {
    /// Experts have one scale per block of 128.
    #[must_use]
    pub fn blocked(&self) -> bool {
        self.precision.experts == Dtype::Fp8Block
    }
}

/// How much of an engine is known when a rule is checked; the order of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// tp, pp, attention DP, prefill context, ep, expert TP, decode context, copies of experts, drafts.
    Layout,
    /// Also slots, token budget and block.
    Flags,
}

/// Where a rule is kept.
#[derive(Clone, Copy)]
pub enum Check {
    /// By this predicate: true where the engine obeys.
    Engine(Level, fn(&Facts, &Candidate<'_>) -> bool),
    /// Not by an engine: this sentence says by whom.
    Elsewhere(&'static str),
}

/// One rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Short name: `G` generic, `V` vLLM, `S` SGLang, `R` TensorRT-LLM.
    pub id: &'static str,
    /// Status of a deployment that breaks it.
    pub status: Status,
    /// Whose rule it is; none: it binds every engine.
    pub backend: Option<Backend>,
    /// The rule, with `{field}` where the value of a fact or of the engine is shown.
    pub text: &'static str,
    /// Where it is kept.
    pub check: Check,
}

impl Rule {
    /// Whether the rule binds engines of a backend.
    #[must_use]
    pub fn binds(&self, backend: Backend) -> bool {
        self.backend.is_none_or(|own| own == backend)
    }

    /// The sentence with the values of one job and engine.
    #[must_use]
    pub fn render(&self, facts: &Facts, candidate: &Candidate<'_>) -> String {
        let mut out = String::new();
        let mut rest = self.text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, tail)) = after.split_once('}') else {
                break;
            };
            out.push_str(before);
            out.push_str(&value(name, facts, candidate.engine));
            rest = tail;
        }
        out.push_str(rest);
        out
    }
}

/// Index in [`RULES`] of the first rule of a level that an engine breaks.
#[must_use]
pub fn first_broken(facts: &Facts, level: Level, candidate: &Candidate<'_>) -> Option<usize> {
    RULES.iter().position(|rule| match rule.check {
        Check::Engine(at, holds) => {
            at == level && rule.binds(candidate.backend) && !holds(facts, candidate)
        }
        Check::Elsewhere(_) => false,
    })
}

/// The value that a rule's sentence names.
fn value(name: &str, f: &Facts, e: &Engine) -> String {
    if let Some(said) = f.shape.said(name) {
        return said;
    }
    let number: u64 = match name {
        "node" => f.node,
        "gpus" => f.gpus,
        "input" => f.input,
        "clients" => f.clients.unwrap_or(0),
        "tp" => e.tp.into(),
        "pp" => e.pp.into(),
        "attention_dp" => e.attention_dp.into(),
        "attention_tp" => e.attention_tp().into(),
        "ep" => e.ep.into(),
        "moe_tp" => e.moe_tp.into(),
        "pcp" => e.pcp.into(),
        "dcp" => e.dcp.into(),
        "redundant_experts" => e.redundant_experts.into(),
        "spec_tokens" => e.spec_tokens.into(),
        "max_batch" => e.max_batch.into(),
        "max_batched_tokens" => e.max_batched_tokens.into(),
        "block_tokens" => e.block_tokens.into(),
        _ => return format!("{{{name}}}"),
    };
    number.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_every_placeholder_has_a_value() {
        let facts = Facts {
            shape: crate::layout::shape::Shape::default(),
            gpus: 8,
            node: 8,
            latent: false,
            windowed: false,
            draft_heads: 0,
            input: 1,
            context: 2,
            clients: None,
        };
        let engine = super::super::space::tests::engine(8, 1);
        let precision = super::super::space::tests::BF16;
        let candidate = Candidate {
            backend: Backend::Vllm,
            precision: &precision,
            side: Side::Mixed,
            engine: &engine,
        };
        let mut seen = std::collections::BTreeSet::new();
        for rule in RULES {
            assert!(seen.insert(rule.id), "{} twice", rule.id);
            assert!(
                !rule.render(&facts, &candidate).contains('{'),
                "{}",
                rule.id
            );
        }
    }
}
