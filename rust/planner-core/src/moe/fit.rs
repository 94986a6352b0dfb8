//! What recorded loads look like, and which routing model says so.

use super::closed::symmetric;
use super::extremes::NormalMax;
use super::routing::Routing;
use super::shape::{max_over_mean, quantiles};
use serde::Serialize;

/// Dirichlet concentration of an unknown model, with the range of the recorded ones: OLMoE-1B-7B
/// and gpt-oss-20b lie around 1.3 per expert (single domains 0.5 to 9); Mixtral-8x7B is far more
/// even (14 to 513).
pub const DEFAULT_ALPHA: (f64, f64, f64) = (1.3, 0.5, 9.3);

/// Spread and peak of one layer of one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Standard deviation of the loads over their mean.
    pub cv: f64,
    /// Fullest expert over the mean.
    pub max_over_mean: f64,
    /// Median, 90th and 99th percentile of the experts over the mean.
    pub quantiles_over_mean: [f64; 3],
    /// Dirichlet concentration per expert, method of moments, sampling noise taken off.
    pub alpha: f64,
    /// Exponent of Zipf's law fitted to the sorted loads, and the R² of that fit.
    pub zipf: (f64, f64),
}

/// Describes one row of counts.
///
/// ```text
/// Dirichlet–multinomial:  CV² = (E−1)/(E·α+1) + (E−1)/N      N token-choices
/// ```
///
/// ```
/// let s = planner_core::moe::fit::spread(&[10.0, 20.0, 30.0, 40.0]);
/// assert!((s.cv - 0.4472).abs() < 1e-4);
/// assert_eq!(s.max_over_mean, 1.6);
/// ```
#[must_use]
pub fn spread(counts: &[f64]) -> Spread {
    let e = counts.len() as f64;
    let total: f64 = counts.iter().sum();
    let mean = total / e;
    let variance = counts.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>() / e;
    let cv2 = if mean > 0.0 {
        variance / (mean * mean)
    } else {
        0.0
    };
    let skew = (cv2 - (e - 1.0) / total.max(1.0)).max(1e-9);
    let alpha = (((e - 1.0) / skew - 1.0) / e).clamp(1e-3, 1e9);
    Spread {
        cv: cv2.sqrt(),
        max_over_mean: max_over_mean(counts),
        quantiles_over_mean: quantiles(&mut counts.to_vec())
            .map(|q| if mean > 0.0 { q / mean } else { 1.0 }),
        alpha,
        zipf: zipf(counts),
    }
}

/// Slope and R² of ln load against ln rank.
fn zipf(counts: &[f64]) -> (f64, f64) {
    let mut sorted: Vec<f64> = counts.iter().copied().filter(|c| *c > 0.0).collect();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let points: Vec<(f64, f64)> = sorted
        .iter()
        .enumerate()
        .map(|(i, c)| (((i + 1) as f64).ln(), c.ln()))
        .collect();
    let n = points.len() as f64;
    let (mx, my) = (
        points.iter().map(|p| p.0).sum::<f64>() / n,
        points.iter().map(|p| p.1).sum::<f64>() / n,
    );
    let sxy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    let sxx: f64 = points.iter().map(|p| (p.0 - mx) * (p.0 - mx)).sum();
    let syy: f64 = points.iter().map(|p| (p.1 - my) * (p.1 - my)).sum();
    if sxx <= 1e-20 || syy <= 1e-20 {
        return (0.0, 1.0);
    }
    (-sxy / sxx, sxy * sxy / (sxx * syy))
}

/// One layer over all snapshots.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerFit {
    /// Index of the layer in the input.
    pub layer: u32,
    /// Each snapshot.
    pub snapshots: Vec<Spread>,
    /// Concentration of the layer: that of the mean squared CV.
    pub alpha: f64,
    /// 95 % interval of `alpha` from the scatter of the snapshots; absent with one snapshot.
    pub alpha_ci95: Option<(f64, f64)>,
    /// Mean of the fullest expert over the mean.
    pub max_over_mean: f64,
    /// Means of the median, 90th and 99th percentile of the experts over the mean.
    pub quantiles_over_mean: [f64; 3],
    /// `max_over_mean` as Dirichlet(alpha) has it.
    pub dirichlet_max_over_mean: f64,
    /// (max/mean − 1)/CV: how far the peak stands out of the spread.
    pub peak: f64,
    /// For each snapshot, 1 + CV·peak with the peak of the other snapshots, over the recorded
    /// max/mean, minus 1; empty with one snapshot.
    pub held_out_error: Vec<f64>,
    /// For each snapshot, the mean max/mean of the others over the recorded one, minus 1.
    pub unseen_error: Vec<f64>,
}

/// Fits every layer; `snapshots` are matrices of layers × experts of one shape.
#[must_use]
pub fn fit(snapshots: &[Vec<Vec<f64>>], top_k: u32) -> Vec<LayerFit> {
    let layers = snapshots.first().map_or(0, Vec::len);
    (0..layers)
        .map(|layer| {
            let rows: Vec<&[f64]> = snapshots.iter().map(|s| s[layer].as_slice()).collect();
            fit_layer(layer as u32, &rows, top_k)
        })
        .collect()
}

fn fit_layer(layer: u32, rows: &[&[f64]], top_k: u32) -> LayerFit {
    let snapshots: Vec<Spread> = rows.iter().map(|r| spread(r)).collect();
    let experts = rows[0].len() as u32;
    let logs: Vec<f64> = snapshots.iter().map(|s| s.alpha.ln()).collect();
    let n = logs.len() as f64;
    let mean_log = logs.iter().sum::<f64>() / n;
    let alpha = mean_log.exp();
    let alpha_ci95 = (logs.len() > 1).then(|| {
        let sd = (logs.iter().map(|x| (x - mean_log).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let half = student(logs.len() - 1) * sd / n.sqrt();
        ((mean_log - half).exp(), (mean_log + half).exp())
    });
    let peaks: Vec<f64> = snapshots
        .iter()
        .map(|s| (s.max_over_mean - 1.0) / s.cv.max(1e-12))
        .collect();
    let without = |values: &[f64], i: usize| {
        (values.iter().sum::<f64>() - values[i]) / (values.len() as f64 - 1.0)
    };
    let maxima: Vec<f64> = snapshots.iter().map(|s| s.max_over_mean).collect();
    let several = snapshots.len() > 1;
    let per = |f: &dyn Fn(usize) -> f64| {
        if several {
            (0..snapshots.len())
                .map(|i| f(i) / maxima[i] - 1.0)
                .collect()
        } else {
            Vec::new()
        }
    };
    let batch = rows.iter().map(|r| r.iter().sum::<f64>()).sum::<f64>() / n;
    let tokens_per_expert = batch / f64::from(top_k) / f64::from(experts);
    let quantile = |i: usize| {
        snapshots
            .iter()
            .map(|s| s.quantiles_over_mean[i])
            .sum::<f64>()
            / n
    };
    LayerFit {
        quantiles_over_mean: [quantile(0), quantile(1), quantile(2)],
        layer,
        alpha,
        alpha_ci95,
        max_over_mean: maxima.iter().sum::<f64>() / n,
        dirichlet_max_over_mean: symmetric(
            &Routing::Dirichlet { alpha },
            experts,
            top_k,
            tokens_per_expert,
            &NormalMax::of(experts),
        ),
        peak: peaks.iter().sum::<f64>() / n,
        held_out_error: per(&|i| 1.0 + snapshots[i].cv * without(&peaks, i)),
        unseen_error: per(&|i| without(&maxima, i)),
        snapshots,
    }
}

/// 97.5 % quantile of Student's t.
fn student(freedom: usize) -> f64 {
    const T: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    T.get(freedom - 1)
        .copied()
        .unwrap_or(1.96 + 2.5 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::rng::Pcg64;

    /// OLMoE-1B-7B, arXiv, layer 0 has CV 0.9506: α per expert 1.0738 (method of moments).
    #[test]
    fn concentration_of_a_known_spread() {
        let e = 64.0;
        let alpha0 = (e - 1.0) / (0.950_582_854_f64).powi(2) - 1.0;
        assert!((alpha0 / e - 1.073_758).abs() < 1e-4);
    }

    #[test]
    fn a_drawn_concentration_is_found_again() {
        let mut rng = Pcg64::new(3, 0);
        let snapshots: Vec<Vec<Vec<f64>>> = (0..40)
            .map(|_| vec![(0..256).map(|_| 1e4 * rng.gamma(1.5)).collect()])
            .collect();
        let fitted = &fit(&snapshots, 1)[0];
        let (low, high) = fitted.alpha_ci95.unwrap();
        assert!(low < 1.6 && high > 1.4, "{low} {high}");
        assert!((fitted.dirichlet_max_over_mean / fitted.max_over_mean - 1.0).abs() < 0.08);
        assert_eq!(fitted.held_out_error.len(), 40);
    }

    #[test]
    fn even_loads_have_no_spread() {
        let s = spread(&[5.0; 8]);
        assert_eq!((s.cv, s.max_over_mean, s.zipf), (0.0, 1.0, (0.0, 1.0)));
        assert!(s.alpha > 1e6);
    }
}
