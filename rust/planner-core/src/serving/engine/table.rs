//! Step times tabulated as a replay asks for them.
//!
//! Decode: per number of sequences a line over the context, from nodes at four numbers an octave
//! (exact up to 8, linear between). Prefill: nodes at 1 and 1.5 times each power of two of tokens,
//! each a line over the mean context of a token; linear between. Nodes are asked for when first
//! needed, so a replay of 640 requests costs the cost model a few dozen calls.

use std::cell::Cell;

use crate::serving::steps::{Pass, StepTimes};

/// Nodes of a table; kept and reset between replays.
#[derive(Debug, Default)]
pub struct Nodes {
    lines: Vec<[Cell<f64>; 2]>,
    decode: Vec<Cell<[f64; 2]>>,
    prefill: Vec<[Cell<f64>; 3]>,
}

/// Where a table looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Most sequences of a decode step.
    pub sequences: u32,
    /// Shortest and longest context of the two points of a line, tokens.
    pub context: [f64; 2],
    /// Longest prompt, tokens.
    pub prompt: f64,
}

/// Step times from a table over other step times.
#[derive(Debug)]
pub struct Tabulated<'a, T: ?Sized> {
    times: &'a T,
    nodes: &'a Nodes,
    range: Range,
}

const DECODE_NODES: usize = 4 * 32;
const PREFILL_NODES: usize = 2 * 34;

impl Nodes {
    /// Clears the table and looks at `times` over `range`.
    pub fn over<'a, T: StepTimes + ?Sized>(
        &'a mut self,
        times: &'a T,
        range: Range,
    ) -> Tabulated<'a, T> {
        let empty = Cell::new([f64::NAN; 2]);
        self.lines.clear();
        let unknown = || Cell::new(f64::NAN);
        self.lines
            .resize_with(range.sequences as usize + 1, || [unknown(), unknown()]);
        self.decode.clear();
        self.decode.resize(DECODE_NODES, empty);
        self.prefill.clear();
        self.prefill
            .resize_with(PREFILL_NODES, || [unknown(), unknown(), unknown()]);
        Tabulated {
            times,
            nodes: self,
            range,
        }
    }
}

/// Place of `value` ≥ 1 on a grid of 2^bits nodes an octave: node below, and the share of the way to
/// the next one.
#[inline]
fn place(value: f64, bits: u32) -> (usize, f64) {
    let shift = 52 - bits;
    let raw = value.to_bits();
    let node = (raw >> shift) - (1023 << bits);
    let rest = raw & ((1 << shift) - 1);
    (node as usize, rest as f64 / (1u64 << shift) as f64)
}

/// Value of a node, the inverse of [`place`].
fn value(node: usize, bits: u32) -> f64 {
    f64::from_bits(((node as u64) + (1023 << bits)) << (52 - bits))
}

/// Cells of their own, so that each number is read straight into its register.
fn set<const N: usize>(cells: &[Cell<f64>; N], values: [f64; N]) {
    for (cell, value) in cells.iter().zip(values) {
        cell.set(value);
    }
}

impl<T: StepTimes + ?Sized> Tabulated<'_, T> {
    #[cold]
    fn line(&self, sequences: usize) {
        let (node, share) = place(sequences.max(1) as f64, 2);
        let [a, b] = self.decode_node(node);
        let line = if share > 0.0 {
            let [c, d] = self.decode_node(node + 1);
            [a + (c - a) * share, b + (d - b) * share]
        } else {
            [a, b]
        };
        set(&self.nodes.lines[sequences], line);
    }

    fn decode_node(&self, node: usize) -> [f64; 2] {
        let known = self.nodes.decode[node].get();
        if !known[0].is_nan() {
            return known;
        }
        let n = value(node, 2);
        let [low, high] = self.range.context;
        let t = self.times.decode_s(n, low);
        let slope = if high > low {
            (self.times.decode_s(n, high) - t) / (high - low)
        } else {
            0.0
        };
        let line = [t - slope * low, slope];
        self.nodes.decode[node].set(line);
        line
    }

    /// Time, mean context of a token and slope over it at a node.
    #[inline]
    fn prefill_node(&self, node: usize) -> [f64; 3] {
        let known = &self.nodes.prefill[node];
        if known[0].get().is_nan() {
            self.ask_prefill(node)
        } else {
            [known[0].get(), known[1].get(), known[2].get()]
        }
    }

    #[cold]
    fn ask_prefill(&self, node: usize) -> [f64; 3] {
        let tokens = value(node, 1);
        let prompts = (tokens / self.range.prompt).ceil().max(1.0);
        let mut pass = Pass {
            tokens,
            prompts,
            past: 0.0,
        };
        let t = self.times.prefill_s(&pass);
        pass.past = self.range.prompt;
        let slope = (self.times.prefill_s(&pass) - t) / self.range.prompt;
        let entry = [t, tokens / prompts / 2.0, slope];
        set(&self.nodes.prefill[node], entry);
        entry
    }
}

impl<T: StepTimes + ?Sized> StepTimes for Tabulated<'_, T> {
    #[inline]
    fn decode_s(&self, sequences: f64, context: f64) -> f64 {
        let at = sequences as u32 as usize;
        let Some(cell) = self.nodes.lines.get(at) else {
            return self.times.decode_s(sequences, context);
        };
        if cell[0].get().is_nan() {
            self.line(at);
        }
        cell[0].get() + cell[1].get() * context
    }

    #[inline]
    fn prefill_s(&self, pass: &Pass) -> f64 {
        let (node, share) = place(pass.tokens.max(1.0), 1);
        let below = self.prefill_node(node);
        let above = self.prefill_node(node + 1);
        let mix = |i: usize| below[i] + (above[i] - below[i]) * share;
        let context = pass.past + pass.tokens / pass.prompts / 2.0;
        (mix(0) + mix(2) * (context - mix(1))).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Nodes, Range, place, value};
    use crate::serving::steps::{Pass, StepTimes};

    struct Curved;

    impl StepTimes for Curved {
        fn decode_s(&self, n: f64, c: f64) -> f64 {
            0.005 + 0.02 * (1.0 - 0.97_f64.powf(n)) + 1e-9 * n * c
        }
        fn prefill_s(&self, p: &Pass) -> f64 {
            let gpu = 1e-5 * p.tokens + 1e-10 * p.tokens * (p.past + p.tokens / p.prompts / 2.0);
            gpu.hypot(0.02)
        }
    }

    #[test]
    fn places() {
        for v in [1.0, 1.25, 3.0, 7.0, 4096.0, 5120.0] {
            assert_eq!(value(place(v, 2).0, 2), v);
        }
        assert_eq!(place(5.5, 2), (9, 0.5));
    }

    #[test]
    fn the_table_is_the_model() {
        let mut nodes = Nodes::default();
        let range = Range {
            sequences: 300,
            context: [1000.0, 3000.0],
            prompt: 1000.0,
        };
        let table = nodes.over(&Curved, range);
        for n in 1..=300u32 {
            let (n, c) = (f64::from(n), 1500.0);
            let (a, b) = (Curved.decode_s(n, c), table.decode_s(n, c));
            assert!((a / b - 1.0).abs() < 0.005, "{n}: {a} {b}");
        }
        for (tokens, prompts) in [(900.0, 1.0), (1800.0, 2.0), (5000.0, 5.5), (64.0, 1.0)] {
            let pass = Pass {
                tokens,
                prompts,
                past: 0.0,
            };
            let (a, b) = (Curved.prefill_s(&pass), table.prefill_s(&pass));
            assert!((a / b - 1.0).abs() < 0.01, "{tokens}: {a} {b}");
        }
    }
}
