//! The formulas that engineers quote, as named calculators: `planner calc` and `docs/formulas.md`
//! come from this registry.
//!
//! A calculator adds words to a function of another room; it holds no formula of its own.

mod collectives;
mod kernels;
mod memory;
mod parallelism;
mod reliability;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::{Error, Result};

/// A parameter of a calculator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Name, as on the command line.
    pub name: &'static str,
    /// Letter in the equation.
    pub symbol: &'static str,
    /// Unit: `count`, `number`, `bytes`, `bytes/s`, `s`, `1` (a ratio) or `switch` (0 or 1).
    pub unit: &'static str,
    /// One phrase.
    pub doc: &'static str,
    /// Value when it is not given.
    pub default: Option<f64>,
    /// Least value.
    pub least: f64,
    /// Greatest value.
    pub most: f64,
}

/// A result of a calculator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Name, with its unit as suffix.
    pub name: &'static str,
    /// Unit, as of a [`Parameter`].
    pub unit: &'static str,
    /// One phrase.
    pub doc: &'static str,
}

/// A named formula.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Calculator {
    /// Name, as on the command line.
    pub name: &'static str,
    /// One line.
    pub doc: &'static str,
    /// Equation in the field's letters.
    pub equation: &'static str,
    /// Where the equation comes from.
    pub source: &'static str,
    /// Function of this crate that holds it.
    pub code: &'static str,
    /// Parameters, in order.
    pub parameters: &'static [Parameter],
    /// Results, in order.
    pub results: &'static [Outcome],
    /// Arguments of a worked number, in the order of `parameters`.
    pub example: &'static [f64],
    /// Values in, results out; both in declared order and already checked.
    #[serde(skip)]
    formula: fn(&[f64]) -> Result<Vec<f64>>,
}

/// Calculators of one subject.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Group {
    /// Heading.
    pub title: &'static str,
    /// Its calculators.
    pub calculators: &'static [Calculator],
}

/// Every calculator, by subject.
pub const GROUPS: &[Group] = &[
    collectives::GROUP,
    parallelism::DATA,
    parallelism::TENSOR,
    parallelism::PIPELINE,
    parallelism::EXPERT,
    memory::WEIGHTS,
    memory::KV,
    kernels::GROUP,
    reliability::GROUP,
];

/// Every calculator, in the order of [`GROUPS`].
pub fn calculators() -> impl Iterator<Item = &'static Calculator> {
    GROUPS.iter().flat_map(|group| group.calculators)
}

/// The calculator of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Calculator> {
    calculators().find(|calculator| calculator.name == name)
}

impl Calculator {
    /// Results for named arguments, in declared order.
    ///
    /// # Errors
    /// Every problem at once: unknown and missing names, values outside their range, and what the
    /// formula itself refuses.
    ///
    /// ```
    /// let calculator = planner_core::calc::find("all-reduce").unwrap();
    /// let given = [("ranks".to_owned(), 8.0), ("bytes".to_owned(), 1024.0)].into();
    /// assert_eq!(calculator.call(&given), Ok(vec![1792.0, 14.0]));
    /// assert_eq!(calculator.call(&Default::default()).unwrap_err().len(), 2); // both missing
    /// ```
    pub fn call(&self, given: &BTreeMap<String, f64>) -> std::result::Result<Vec<f64>, Vec<Error>> {
        let mut problems: Vec<Error> = given
            .iter()
            .filter(|(name, _)| self.parameters.iter().all(|p| p.name != name.as_str()))
            .map(|(name, value)| {
                let names: Vec<_> = self.parameters.iter().map(|p| p.name).collect();
                let rule = format!("is not an argument of {}: {}", self.name, names.join(", "));
                Error::field(name, value, rule)
            })
            .collect();
        let mut values = Vec::with_capacity(self.parameters.len());
        for parameter in self.parameters {
            match given.get(parameter.name).copied().or(parameter.default) {
                None => problems.push(Error::Missing {
                    name: parameter.name.to_owned(),
                    hint: format!("{}: {}", parameter.name, parameter.doc),
                }),
                Some(value) => match parameter.check(value) {
                    Ok(()) => values.push(value),
                    Err(problem) => problems.push(problem),
                },
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let results = (self.formula)(&values).map_err(|problem| vec![problem])?;
        match results.iter().all(|result| result.is_finite()) {
            true => Ok(results),
            false => Err(vec![Error::field(
                self.name,
                format!("{results:?}"),
                "is not finite for these arguments",
            )]),
        }
    }
}

impl Parameter {
    fn check(&self, value: f64) -> Result<()> {
        let whole = matches!(self.unit, "count" | "switch");
        let rule = if value.is_nan() || value < self.least || value > self.most {
            format!("must lie between {} and {}", self.least, self.most)
        } else if whole && value.fract() != 0.0 {
            "must be a whole number".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::field(self.name, value, rule))
    }

    const fn or(self, default: f64) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    const fn or_zero(self) -> Self {
        Self { least: 0.0, ..self }
    }
}

/// The largest count and amount that a calculator takes; counts stay exact in f64.
const LARGEST_COUNT: f64 = 9e15;
const LARGEST: f64 = 1e30;
const TINY: f64 = 1e-15;

const fn parameter(
    (name, symbol): (&'static str, &'static str),
    unit: &'static str,
    doc: &'static str,
    (least, most): (f64, f64),
) -> Parameter {
    Parameter {
        name,
        symbol,
        unit,
        doc,
        default: None,
        least,
        most,
    }
}

const fn count(name: &'static str, symbol: &'static str, doc: &'static str) -> Parameter {
    parameter((name, symbol), "count", doc, (1.0, LARGEST_COUNT))
}

const fn bytes(name: &'static str, symbol: &'static str, doc: &'static str) -> Parameter {
    parameter((name, symbol), "bytes", doc, (0.0, LARGEST))
}

const fn seconds(name: &'static str, symbol: &'static str, doc: &'static str) -> Parameter {
    parameter((name, symbol), "s", doc, (0.0, LARGEST))
}

const fn rate(name: &'static str, symbol: &'static str, doc: &'static str) -> Parameter {
    parameter((name, symbol), "bytes/s", doc, (TINY, LARGEST))
}

const fn number(name: &'static str, symbol: &'static str, doc: &'static str) -> Parameter {
    parameter((name, symbol), "number", doc, (0.0, LARGEST))
}

const fn ratio(name: &'static str, symbol: &'static str, doc: &'static str) -> Parameter {
    parameter((name, symbol), "1", doc, (0.0, 1.0))
}

const fn switch(name: &'static str, doc: &'static str) -> Parameter {
    parameter((name, ""), "switch", doc, (0.0, 1.0)).or(0.0)
}

const fn outcome(name: &'static str, unit: &'static str, doc: &'static str) -> Outcome {
    Outcome { name, unit, doc }
}

/// Parameters that many calculators share.
const RANKS: Parameter = count("ranks", "N", "ranks of the group");
const ELEMENT: Parameter = number("element_bytes", "b", "bytes per element").or(2.0);
const LAYERS: Parameter = count("layers", "L", "layers");

#[cfg(test)]
mod tests;
