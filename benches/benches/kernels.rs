//! Time of one kernel and one collective estimate: a sweep's layer table asks for many.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use planner_core::cluster::GemmCurve;
use planner_core::kernels::Rates;
use planner_core::kernels::gemm::{Gemm, gemm_s};

fn kernels(c: &mut Criterion) {
    let rates = Rates {
        peak_flops: 989.4e12,
        memory_bytes_per_s: 3.35e12,
        sms: 132.0,
    };
    let curve = GemmCurve {
        efficiency: 0.903,
        k_half: 138.0,
        wave: 0.29,
        tile_half: 1.8,
        tile_min: 4096.0,
        tile_max: 32768.0,
        split_k: 4930.0,
        throttle: 0.26,
        memory_efficiency: 0.867,
        base_s: 2.83e-6,
        cast_bytes: 0.0,
    };
    c.bench_function("gemm_s", |b| {
        b.iter(|| {
            gemm_s(
                black_box(&Gemm::half(8192.0, 7168.0, 2048.0)),
                &curve,
                &rates,
            )
        });
    });
    c.bench_function("gemm_s, split k", |b| {
        b.iter(|| {
            gemm_s(
                black_box(&Gemm::half(16.0, 2048.0, 16384.0)),
                &curve,
                &rates,
            )
        });
    });
}

criterion_group!(benches, kernels);
criterion_main!(benches);
