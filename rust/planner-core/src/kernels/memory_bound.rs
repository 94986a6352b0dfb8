//! Operators whose time is the bytes they move: norms, activations, casts, optimizer.

/// Time of a memory-bound pass, s: `t = r·B / HBM`.
///
/// B ideally fused bytes; r what the software really moves over B at nominal bandwidth (0.9 for
/// hand-fused kernels of 2021, 2–4 for compositions of framework operators; accuracy study);
/// HBM nominal bandwidth, bytes/s.
///
/// ```
/// use planner_core::kernels::memory_bound::memory_bound_s;
/// // 67 MB twice at 3.35 TB/s.
/// assert!((memory_bound_s(67e6, 2.0, 3.35e12) - 40e-6).abs() < 1e-12);
/// ```
#[must_use]
pub fn memory_bound_s(bytes: f64, ratio: f64, memory_bytes_per_s: f64) -> f64 {
    ratio * bytes / memory_bytes_per_s
}

#[cfg(test)]
mod tests {
    use super::memory_bound_s;

    #[test]
    fn nothing_moved_takes_no_time_and_time_is_linear() {
        assert_eq!(memory_bound_s(0.0, 2.3, 2e12), 0.0);
        assert_eq!(memory_bound_s(2e12, 1.0, 2e12), 1.0);
        assert_eq!(memory_bound_s(2e12, 3.0, 2e12), 3.0);
    }
}
