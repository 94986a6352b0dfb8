//! The sweep engine: keys, rows, pruning. Throughput is in layouts.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planner_benches::job;
use planner_core::sweep::control::Control;
use planner_core::sweep::rows::Tables;
use planner_core::sweep::{Job, Options};

fn run(job: &Job, exhaustive: bool, pareto: bool, threads: usize) -> u64 {
    let options = Options {
        exhaustive,
        pareto,
        threads,
        top: 10,
    };
    let outcome = job
        .run(&options, &Control::default())
        .expect("nobody stops it");
    outcome.evaluated
}

fn keys(c: &mut Criterion) {
    for (model, gpus, batch) in [("gpt3-175b", 1024, 1536), ("deepseek-v3", 1024, 15_360)] {
        let job = job(model, gpus, batch);
        let mut group = c.benchmark_group(format!("sweep/{model}/{gpus}"));
        group
            .sample_size(10)
            .measurement_time(Duration::from_secs(10));
        group.throughput(Throughput::Elements(job.index.len()));
        for threads in [1, 2] {
            group.bench_function(format!("exhaustive/{threads}-thread"), |b| {
                b.iter(|| run(&job, true, true, threads));
            });
        }
        group.bench_function("pruned/top", |b| b.iter(|| run(&job, false, false, 0)));
        group.bench_function("pruned/top-and-front", |b| {
            b.iter(|| run(&job, false, true, 0))
        });
        group.finish();
    }
}

fn rows(c: &mut Criterion) {
    let job = Arc::new(job("gpt3-175b", 1024, 1536));
    let bytes = {
        let mut tables = Tables::new(Arc::clone(&job), false, 1).expect("threads start");
        let table = tables
            .next(&Control::default())
            .expect("nobody stops it")
            .expect("a table");
        let size = table
            .data
            .iter()
            .map(planner_core::table::Data::bytes)
            .sum::<usize>();
        size as u64 / table.data[0].len() as u64 * job.index.len()
    };
    let mut group = c.benchmark_group("sweep/rows");
    group.sample_size(10).throughput(Throughput::Bytes(bytes));
    group.bench_function("gpt3-175b/1-thread", |b| {
        b.iter(|| {
            let mut tables = Tables::new(Arc::clone(&job), false, 1).expect("threads start");
            while let Ok(Some(table)) = tables.next(&Control::default()) {
                std::hint::black_box(table);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, keys, rows);
criterion_main!(benches);
