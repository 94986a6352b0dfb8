//! How tokens choose experts: a property of the model and its traffic, not of the GPU.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::deployment::Engine;
use crate::error::{Error, Result};
use crate::model::{FeedForward, Model};
use crate::moe::{self, Shape, eplb::eplb};

/// What serving costs know of routing. Without a measurement it is the fitted default
/// (`routing.*` of `presets/serving.toml`); a measured routing takes its place: [`Measured`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routing {
    /// Squared coefficient of variation of the experts' popularity: with more, a batch wakes fewer.
    pub popularity_spread: f64,
    /// Rows of the hottest expert rank over the mean, chance apart (1: no more than chance).
    pub imbalance: f64,
}

impl Routing {
    /// Every expert equally popular.
    pub const UNIFORM: Self = Self {
        popularity_spread: 0.0,
        imbalance: 1.0,
    };

    /// Checks the numbers.
    ///
    /// # Errors
    /// A spread outside [0, 10⁴] or an imbalance outside [1, 10⁴].
    pub fn check(&self) -> Result<()> {
        for (field, value, low) in [
            ("routing.popularity_spread", self.popularity_spread, 0.0),
            ("routing.imbalance", self.imbalance, 1.0),
        ] {
            if !(low..=1e4).contains(&value) {
                let rule = format!("must lie in [{low}, 10⁴]");
                return Err(Error::field(field, value, rule));
            }
        }
        Ok(())
    }
}

/// Tokens of a rank at which chance no longer weighs.
const MANY_TOKENS: f64 = 1e9;

/// A measured routing, or a model of one, over the experts of a model: how much fuller than the mean
/// the fullest rank is, by its share of the tokens alone. Each degree of expert parallelism and
/// number of copies is worked out once.
///
/// Without copies experts lie on the ranks in their order, as engines put them. Where there are
/// copies, experts and copies are placed by EPLB for these very loads.
///
/// ```
/// use planner_core::moe;
/// use planner_core::serving::routing::Measured;
/// let skewed = Measured::over(&moe::Routing::Dirichlet { alpha: 1.3 }, 256, 8).unwrap();
/// let (plain, copies) = (skewed.imbalance(32, 0), skewed.imbalance(32, 32));
/// assert!(plain > 1.6 && copies < 1.1, "{plain} {copies}");
/// assert_eq!(skewed.imbalance(1, 0), 1.0);
/// ```
#[derive(Clone, Debug)]
pub struct Measured {
    routing: moe::Routing,
    experts: u32,
    top_k: u32,
    spread: f64,
    known: Arc<Mutex<BTreeMap<(u32, u32), f64>>>,
}

impl Measured {
    /// That of a routing over the layers of a model.
    ///
    /// # Errors
    /// A model without experts, or a routing that does not fit its layers.
    pub fn new(routing: &moe::Routing, model: &Model) -> Result<Self> {
        let layers = model
            .kinds
            .iter()
            .filter_map(|kind| match &kind.feed_forward {
                Some(FeedForward::Moe(m)) => Some((m.experts as u32, m.top_k as u32)),
                _ => None,
            });
        let Some((experts, top_k)) = layers.into_iter().next() else {
            let rule = format!("{} has no experts", model.name);
            return Err(Error::field("routing", "given", rule));
        };
        Self::over(routing, experts, top_k)
    }

    /// That of a routing over layers of `experts`, `top_k` a token.
    ///
    /// # Errors
    /// A routing that does not fit such a layer.
    pub fn over(routing: &moe::Routing, experts: u32, top_k: u32) -> Result<Self> {
        routing.check(experts, top_k)?;
        Ok(Self {
            routing: routing.clone(),
            experts,
            top_k,
            spread: routing.squared_variation(experts, top_k),
            known: Arc::default(),
        })
    }

    /// What an engine sees of it.
    #[must_use]
    pub fn of(&self, engine: &Engine) -> Routing {
        Routing {
            popularity_spread: self.spread,
            imbalance: self.imbalance(engine.ep, engine.redundant_experts),
        }
    }

    /// Share of the fullest of `ep` ranks over the mean, with so many copies of experts.
    #[must_use]
    pub fn imbalance(&self, ep: u32, copies: u32) -> f64 {
        if ep <= 1 {
            return 1.0;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.entry((ep, copies));
        *found.or_insert_with(|| self.worked_out(ep, copies))
    }

    fn worked_out(&self, ep: u32, copies: u32) -> f64 {
        let (experts, top_k) = (self.experts, self.top_k);
        let shape = Shape {
            experts,
            redundant: copies,
            ranks: ep,
            nodes: 1,
            groups: 1,
        };
        if copies == 0 || shape.check().is_err() {
            return moe::imbalance(&self.routing, experts, top_k, ep, MANY_TOKENS);
        }
        let rows = self.routing.shares(experts, top_k);
        let fullest = rows.iter().map(|row| {
            let loads: Vec<f32> = row.iter().map(|share| *share as f32).collect();
            eplb(&loads, &shape)[0].max_over_mean(row, ep)
        });
        (fullest.sum::<f64>() / rows.len().max(1) as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_named() {
        assert!(Routing::UNIFORM.check().is_ok());
        for (popularity_spread, imbalance) in [(-0.1, 1.0), (f64::NAN, 1.0), (0.0, 0.9)] {
            let routing = Routing {
                popularity_spread,
                imbalance,
            };
            let error = routing.check().unwrap_err().to_string();
            assert!(error.contains("routing."), "{error}");
        }
    }

    #[test]
    fn even_counts_have_no_spread_and_skewed_ones_some() {
        let counts = |row: &[f64]| moe::Routing::Counts {
            layers: vec![row.to_vec()],
        };
        let spread = |row: &[f64]| {
            let measured = Measured::over(&counts(row), row.len() as u32, 1).unwrap();
            measured.spread
        };
        assert!(spread(&[5.0, 5.0, 5.0, 5.0]) < 1e-12);
        // Shares 1/8 (three times) and 5/8: variance 3/64, mean 1/4.
        assert!((spread(&[1.0, 1.0, 1.0, 5.0]) - 0.75).abs() < 1e-12);
        assert!(Measured::over(&counts(&[1.0]), 4, 1).is_err());
    }

    /// What a step adds up from the share of the fullest rank and from chance is what the closed form
    /// of the routing room says for the tokens of the step.
    #[test]
    fn shares_and_chance_add_up_to_the_closed_form() {
        for (alpha, ep) in [(0.8, 8), (1.3, 32), (9.0, 64)] {
            let routing = moe::Routing::Dirichlet { alpha };
            let beyond = Measured::over(&routing, 256, 8).unwrap().imbalance(ep, 0) - 1.0;
            for tokens in [4.0, 32.0, 256.0] {
                let exact = moe::imbalance(&routing, 256, 8, ep, tokens);
                let (rows, elsewhere) = (tokens * 8.0, 1.0 - 1.0 / f64::from(ep));
                let own =
                    decode::fullest(rows, rows * elsewhere, decode::normal_max(ep), beyond) / rows;
                assert!(
                    (own / exact - 1.0).abs() < 0.03,
                    "{alpha} {ep} {tokens}: {own} {exact}"
                );
            }
        }
    }

    #[test]
    fn copies_take_skew_off_and_more_ranks_have_more() {
        for routing in [
            moe::Routing::Uniform,
            moe::Routing::Dirichlet { alpha: 1.3 },
            moe::Routing::Zipf { s: 0.6 },
        ] {
            let measured = Measured::over(&routing, 256, 8).unwrap();
            let ranks = [1, 8, 32, 64].map(|ep| measured.imbalance(ep, 0));
            assert!(ranks.windows(2).all(|w| w[0] <= w[1] + 1e-12), "{ranks:?}");
            let copies = [0, 32, 64].map(|n| measured.imbalance(32, n));
            assert!(
                copies[1] <= copies[0] + 0.01 && copies[2] <= copies[1] + 0.01,
                "{copies:?}"
            );
        }
    }
}
