//! The event replay of a pipeline, beside the closed form that it generalises.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planner_core::layout::Schedule;
use planner_core::pipeline::bubble::{PassTimes, pipeline_time_s};
use planner_core::pipeline::replay::{ChunkTimes, Plan, replay};

const STAGES: usize = 16;
const MICRO_BATCHES: usize = 128;

fn schedules(c: &mut Criterion) {
    let mut group = c.benchmark_group("pipeline");
    let whole = PassTimes {
        forward_s: 1.0,
        backward_s: 2.0,
        weight_s: 1.0,
        overlapped_s: 3.0,
    };
    for (schedule, v) in [
        (Schedule::OneFOneB, 1),
        (Schedule::ZbH1, 1),
        (Schedule::Interleaved, 4),
    ] {
        let plan = Plan {
            schedule,
            stages: STAGES,
            micro_batches: MICRO_BATCHES,
            forward_delay_s: 0.01,
            backward_delay_s: 0.01,
        };
        let chunks: Vec<_> = (0..STAGES * v)
            .map(|k| ChunkTimes {
                forward_s: 1.0 + k as f64 / 100.0,
                backward_input_s: 1.0,
                weight_s: 1.0,
            })
            .collect();
        // Forwards and backwards.
        group.throughput(Throughput::Elements(
            (2 * STAGES * v * MICRO_BATCHES) as u64,
        ));
        group.bench_function(format!("replay/{}", schedule.name()), |b| {
            b.iter(|| replay(black_box(&plan), black_box(&chunks)));
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("closed/{}", schedule.name()), |b| {
            b.iter(|| pipeline_time_s(schedule, 16, v as u32, black_box(128), black_box(whole)));
        });
    }
    group.finish();
}

criterion_group!(benches, schedules);
criterion_main!(benches);
