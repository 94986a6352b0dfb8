//! MoE: expert placement, token-choices, the sweep.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planner_core::moe::Shape;
use planner_core::moe::best::best;
use planner_core::moe::eplb::{eplb, tie_free_loads};
use planner_core::moe::rng::Pcg64;
use planner_core::moe::routing::draw_dirichlet;
use planner_core::moe::sampler::{Alias, Grouped, Histogram, Sampler};
use planner_core::moe::sweep::Axes;
use std::hint::black_box;

const LAYERS: usize = 58;

fn placement(c: &mut Criterion) {
    let loads = tie_free_loads(101, LAYERS * 256);
    let wide: Vec<f64> = loads.iter().map(|x| f64::from(*x)).collect();
    let on_32 = Shape {
        experts: 256,
        redundant: 32,
        ranks: 32,
        nodes: 4,
        groups: 8,
    };
    let on_144 = Shape {
        experts: 256,
        redundant: 32,
        ranks: 144,
        nodes: 18,
        groups: 8,
    };
    for (name, shape) in [("32", on_32), ("144", on_144)] {
        c.bench_function(&format!("moe/eplb-58x256-288-on-{name}"), |b| {
            b.iter(|| eplb(black_box(&loads), &shape));
        });
    }
    for (name, shape) in [("32", on_32), ("144", on_144)] {
        c.bench_function(&format!("moe/best-58x256-288-on-{name}"), |b| {
            b.iter(|| {
                wide.chunks(256)
                    .map(|row| best(row, &shape, &[], false).rank_max_over_mean)
                    .sum::<f64>()
            });
        });
    }
}

fn choices(c: &mut Criterion) {
    const TOKENS: u32 = 100_000;
    let mut group = c.benchmark_group("moe");
    group.throughput(Throughput::Elements(u64::from(TOKENS) * 8));
    let mut rng = Pcg64::new(1, 0);
    let mut histogram = Histogram::new(256);
    group.bench_function("uniform-choices-8-of-256", |b| {
        b.iter(|| Sampler::Uniform.count(TOKENS, 8, &mut histogram, &mut rng));
    });
    let skewed = Sampler::Weighted(Alias::new(&draw_dirichlet(1.3, 256, 8, &mut rng), 8));
    group.bench_function("skewed-choices-8-of-256", |b| {
        b.iter(|| skewed.count(TOKENS, 8, &mut histogram, &mut rng));
    });
    let grouped = Sampler::Grouped(Grouped {
        size: 32,
        keep: 4,
        exponents: Vec::new(),
    });
    group.throughput(Throughput::Elements(u64::from(TOKENS / 10) * 8));
    group.bench_function("group-limited-choices-8-of-256", |b| {
        b.iter(|| grouped.count(TOKENS / 10, 8, &mut histogram, &mut rng));
    });
    group.finish();
}

fn sweep(c: &mut Criterion) {
    let axes = Axes {
        experts: vec![64, 256],
        top_k: vec![2, 8],
        ranks: vec![8, 32],
        nodes: vec![1],
        redundant: vec![0, 32],
        alpha: vec![0.0, 1.3],
        tokens_per_rank: (1..=1000).map(|i| 16 * i).collect(),
        capacity_factor: vec![0.0, 1.25],
        capacity_rule: vec![planner_core::moe::capacity::Rule::Megatron],
    };
    let mut group = c.benchmark_group("moe");
    group.throughput(Throughput::Elements(axes.rows()));
    group.sample_size(10);
    group.bench_function("sweep-64000-points-one-thread", |b| b.iter(|| axes.run(1)));
    group.finish();
}

criterion_group!(benches, placement, choices, sweep);
criterion_main!(benches);
