//! What the engine replay asks of the cost model.

/// A prefill pass, or the prompt part of a mixed step, of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// New prompt tokens over the whole engine.
    pub tokens: f64,
    /// Prompts (or chunks of prompts) that they belong to.
    pub prompts: f64,
    /// Tokens of each prompt that were computed before: earlier chunks, cached prefixes.
    pub past: f64,
}

/// Time of an engine's steps, s.
pub trait StepTimes {
    /// A step that gives `sequences` requests of the engine one token each (or one verified draft),
    /// their mean context being `context` tokens.
    fn decode_s(&self, sequences: f64, context: f64) -> f64;

    /// A pass over prompts, no decoding beside it.
    fn prefill_s(&self, pass: &Pass) -> f64;
}
