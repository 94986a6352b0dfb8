//! How tokens choose experts: a property of the model and its traffic, not of the GPU.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::moe;

/// What serving costs know of routing. Without a measurement it is the fitted default
/// (`routing.*` of `presets/serving.toml`); a measured routing takes its place: [`Routing::of`].
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

    /// That of a routing model over a layer of `experts`, `top_k` a token; placement is taken to
    /// balance the ranks.
    ///
    /// ```
    /// use planner_core::moe;
    /// use planner_core::serving::routing::Routing;
    /// let routing = moe::Routing::Dirichlet { alpha: 2.0 };
    /// assert_eq!(Routing::of(&routing, 256, 8).unwrap().popularity_spread, 0.5);
    /// ```
    ///
    /// # Errors
    /// A routing that does not fit the layer.
    pub fn of(routing: &moe::Routing, experts: u32, top_k: u32) -> Result<Self> {
        routing.check(experts, top_k)?;
        Ok(Self {
            popularity_spread: routing.squared_variation(experts, top_k),
            imbalance: 1.0,
        })
    }

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

#[cfg(test)]
mod tests {
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
            let routing = Routing::of(&counts(row), row.len() as u32, 1).unwrap();
            routing.popularity_spread
        };
        assert!(spread(&[5.0, 5.0, 5.0, 5.0]) < 1e-12);
        // Shares 1/8 (three times) and 5/8: variance 3/64, mean 1/4.
        assert!((spread(&[1.0, 1.0, 1.0, 5.0]) - 0.75).abs() < 1e-12);
        assert!(Routing::of(&counts(&[1.0]), 4, 1).is_err());
    }
}
