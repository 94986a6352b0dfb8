//! The plain-store fill rate: the yardstick for engines that write every column.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planner_benches::{FILL_ROWS, fill};

fn plain_store(c: &mut Criterion) {
    let mut group = c.benchmark_group("fill");
    for columns in [1, 16] {
        let mut buffers = vec![vec![0.0; FILL_ROWS]; columns];
        group.throughput(Throughput::Bytes((columns * FILL_ROWS * 8) as u64));
        group.bench_function(format!("plain-store/{columns}"), |b| {
            b.iter(|| fill(std::hint::black_box(&mut buffers)));
        });
    }
    group.finish();
}

criterion_group!(benches, plain_store);
criterion_main!(benches);
