//! Lower bounds on the fullest rank.

use super::counts::greedy_counts;
use super::shape::Shape;

/// No placement has a rank cost (load over speed) below this.
///
/// ```text
/// mean:     Σw / Σspeed
/// replica:  min over counts of max w_e/c_e, over the fastest rank; greedy replication attains it
/// ```
///
/// Unit: that of the loads.
#[must_use]
pub fn lower_bound(loads: &[f64], shape: &Shape, speeds: &[f64]) -> f64 {
    let mean = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>();
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let counts = greedy_counts(loads, shape.slots());
    let replica = loads
        .iter()
        .zip(&counts)
        .map(|(w, c)| w / f64::from(*c))
        .fold(0.0, f64::max);
    mean.max(replica / fastest)
}
