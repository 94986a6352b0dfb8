//! Kernel launches: a phase cannot run faster than the CPU enqueues its kernels.

/// Time of a phase, s: `t = (gpuⁿ + cpuⁿ)^(1/n)`, a smooth maximum of GPU and CPU time.
///
/// gpu: sum of kernel times, s; cpu: kernels × time per launch, s; n: 3.4 ± 0.4 (accuracy study).
///
/// ```
/// use planner_core::kernels::launch::phase_s;
/// // 94 kernels at 22.6 µs against 1.5 ms of GPU time: the CPU decides.
/// let t = phase_s(1.5e-3, 94.0 * 22.6e-6, 3.4);
/// assert!(t > 2.12e-3 && t < 2.35e-3);
/// ```
#[must_use]
pub fn phase_s(gpu_s: f64, cpu_s: f64, n: f64) -> f64 {
    let (large, small) = if gpu_s >= cpu_s {
        (gpu_s, cpu_s)
    } else {
        (cpu_s, gpu_s)
    };
    // Below a fiftieth the correction is under 1e-6: skip two powers on the hot path.
    if small <= 0.02 * large {
        return large;
    }
    large * (1.0 + (small / large).powf(n)).powf(1.0 / n)
}

#[cfg(test)]
mod tests {
    use super::phase_s;
    use proptest::prelude::*;

    #[test]
    fn limits() {
        assert_eq!(phase_s(1.0, 0.0, 3.4), 1.0);
        assert_eq!(phase_s(0.0, 0.0, 3.4), 0.0);
        assert!((phase_s(1.0, 1.0, 2.0) - std::f64::consts::SQRT_2).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn between_maximum_and_sum(gpu in 0.0..1.0_f64, cpu in 0.0..1.0_f64, n in 1.0..8.0_f64) {
            let t = phase_s(gpu, cpu, n);
            prop_assert!(t >= gpu.max(cpu) && t <= gpu + cpu + 1e-12);
        }
    }
}
