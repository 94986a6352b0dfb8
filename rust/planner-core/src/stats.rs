//! Mean and quantiles of a sample.

use serde::Serialize;

/// Mean and quantiles (linear interpolation) over requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 % are below.
    pub p90: f64,
    /// 99 % are below.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Quantiles {
    /// Of some values; zeros if there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        let Some(last) = values.len().checked_sub(1) else {
            return Self::default();
        };
        values.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let place = q * last as f64;
            let (low, high) = (
                values[place.floor() as usize],
                values[place.ceil() as usize],
            );
            low + (high - low) * place.fract()
        };
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: values[last],
        }
    }

    /// The same by selection, without a full sort and without memory of its own; the values, none
    /// negative, are left in some other order. `sum` is theirs.
    ///
    /// ```
    /// use planner_core::stats::Quantiles;
    /// let mut v = vec![3.0, 1.0, 2.0, 10.0];
    /// assert_eq!(Quantiles::select(&mut v, 16.0), Quantiles::of(vec![3.0, 1.0, 2.0, 10.0]));
    /// ```
    #[must_use]
    pub fn select(values: &mut [f64], sum: f64) -> Self {
        let Some(last) = values.len().checked_sub(1) else {
            return Self::default();
        };
        let mean = sum / values.len() as f64;
        let mut rest: &mut [f64] = values;
        let mut before = 0;
        let mut found = [0.0; 3];
        for (q, out) in [0.5, 0.9, 0.99].iter().zip(&mut found) {
            let place = q * last as f64;
            let low = place.floor() as usize - before;
            let (_, at, above) = rest.select_nth_unstable_by_key(low, |v| v.to_bits());
            let high = if above.is_empty() { *at } else { least(above) };
            *out = *at + (high - *at) * place.fract();
            rest = &mut rest[low..];
            before += low;
        }
        Self {
            mean,
            p50: found[0],
            p90: found[1],
            p99: found[2],
            max: rest.iter().copied().fold(0.0, f64::max),
        }
    }

    /// Of values that stand for different numbers of requests: `(value, weight)`, quantile `q` at
    /// the first value below which weight reaches q of the whole.
    #[must_use]
    pub fn weighted(values: &mut [(f64, f64)]) -> Self {
        values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let all: f64 = values.iter().map(|v| v.1).sum();
        if all <= 0.0 {
            return Self::default();
        }
        let at = |q: f64| {
            let mut below = 0.0;
            let reaches = |v: &&(f64, f64)| {
                below += v.1;
                below >= q * all * (1.0 - 1e-12)
            };
            values.iter().find(reaches).map_or(f64::NAN, |v| v.0)
        };
        Self {
            mean: values.iter().map(|v| v.0 * v.1).sum::<f64>() / all,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: values.last().map_or(0.0, |v| v.0),
        }
    }
}

/// The smallest, found in lanes.
fn least(values: &[f64]) -> f64 {
    let smaller = |a: f64, b: f64| if b < a { b } else { a };
    let mut lanes = [f64::INFINITY; 8];
    let (chunks, tail) = values.as_chunks::<8>();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = smaller(*lane, *v);
        }
    }
    let whole = lanes.into_iter().fold(f64::INFINITY, smaller);
    tail.iter().copied().fold(whole, smaller)
}

#[cfg(test)]
mod tests {
    use super::Quantiles;
    use crate::moe::rng::Pcg64;

    #[test]
    fn selection_is_sorting() {
        let mut rng = Pcg64::new(1, 0);
        for n in [1, 2, 3, 10, 101, 640] {
            let v: Vec<f64> = (0..n).map(|_| rng.uniform()).collect();
            let (a, b) = (
                Quantiles::of(v.clone()),
                Quantiles::select(&mut v.clone(), v.iter().sum()),
            );
            assert_eq!((a.p50, a.p90, a.p99, a.max), (b.p50, b.p90, b.p99, b.max));
            assert!((a.mean - b.mean).abs() < 1e-12);
        }
    }

    #[test]
    fn weights() {
        let q = Quantiles::weighted(&mut [(1.0, 9.0), (5.0, 1.0)]);
        assert_eq!(
            (q.mean, q.p50, q.p90, q.p99, q.max),
            (1.4, 1.0, 1.0, 5.0, 5.0)
        );
        assert_eq!(Quantiles::weighted(&mut []), Quantiles::default());
    }
}
