use super::*;
use crate::layout::axes::{Axes, Choice};
use crate::layout::space::Group;
use crate::layout::{Framework, Schedule};
use crate::model::Model;
use crate::training::workload::Training;

macro_rules! fixture {
    ($name:literal) => {
        serde_json::from_str(include_str!(concat!("../../fixtures/", $name, ".json"))).unwrap()
    };
}

/// A job on the fixtures' cluster.
pub(crate) fn job(
    model: Model,
    gpus: u64,
    framework: Framework,
    axes: &Axes,
    change: impl FnOnce(&mut Training),
) -> Job {
    let (cluster, mut training) = (fixture!("h100"), fixture!("training"));
    change(&mut training);
    let space = Space::new(&model, &cluster, &training, framework, gpus, axes).unwrap();
    let est = Estimator::new(model, cluster, training, fixture!("software"), gpus).unwrap();
    Job::new(est, space)
}

pub(crate) fn small_moe(gpus: u64) -> Job {
    job(
        fixture!("small-moe"),
        gpus,
        Framework::Generic,
        &Axes::default(),
        |t| t.global_batch = 48,
    )
}

fn small_dense(gpus: u64, batch: u64) -> Job {
    let axes = Axes {
        micro_batch: Some(Choice::List(vec![1, 2, 4])),
        ..Axes::default()
    };
    job(
        fixture!("small-dense"),
        gpus,
        Framework::Generic,
        &axes,
        |t| t.global_batch = batch,
    )
}

fn run(job: &Job, options: Options) -> Outcome {
    job.run(&options, &Control::default()).unwrap()
}

/// Keys by the road of a single row, one layout after another.
fn by_rows(job: &Job, top: usize) -> (Vec<(u64, f64)>, u64) {
    let (mut keys, mut over) = (Vec::new(), 0);
    for id in 0..job.index.len() {
        let row = job
            .estimator
            .row(&job.index.layout(&job.space, id).unwrap())
            .unwrap();
        if row.status == crate::layout::Status::Ok {
            keys.push((id, row.step_time_s));
        } else {
            over += 1;
        }
    }
    keys.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    keys.truncate(top);
    (keys, over)
}

/// A small space with every schedule, DualPipe too.
fn every_schedule() -> Job {
    let axes = Axes {
        pp: Some(Choice::List(vec![1, 2, 4])),
        tp: Some(Choice::List(vec![1, 2])),
        schedule: Some(Schedule::ALL.to_vec()),
        ..Axes::default()
    };
    let job = job(fixture!("small-moe"), 8, Framework::Generic, &axes, |t| {
        t.global_batch = 32
    });
    let dual = |id| job.index.layout(&job.space, id).unwrap().schedule == Schedule::DualPipe;
    assert!((0..job.index.len()).any(dual));
    job
}

#[test]
fn the_hot_path_and_the_row_agree_to_the_bit() {
    for job in [small_moe(8), small_dense(12, 12), every_schedule()] {
        let outcome = run(
            &job,
            Options {
                exhaustive: true,
                top: 100,
                ..Options::default()
            },
        );
        let (keys, over) = by_rows(&job, 100);
        let found: Vec<_> = outcome.top.iter().map(|r| (r.id, r.step_s)).collect();
        assert_eq!(found, keys);
        assert_eq!(outcome.over_memory, over);
        for r in outcome
            .top
            .iter()
            .chain(&outcome.pareto)
            .chain(&outcome.leanest)
        {
            let row = job.estimator.row(&r.layout).unwrap();
            assert_eq!(row.peak_memory_bytes, r.peak_bytes);
            assert_eq!(row.step_time_s, r.step_s);
        }
    }
}

#[test]
fn pruning_changes_nothing_but_the_work() {
    let deepseek = |gpus, batch| {
        let axes = Axes {
            tp: Some(Choice::List(vec![1, 4])),
            cp: Some(Choice::List(vec![1, 2])),
            etp: Some(Choice::Pin(1)),
            micro_batch: Some(Choice::List(vec![1, 2])),
            ..Axes::default()
        };
        job(
            fixture!("deepseek-v3"),
            gpus,
            Framework::Megatron,
            &axes,
            |t| t.global_batch = batch,
        )
    };
    let no_overlap = job(
        fixture!("small-moe"),
        16,
        Framework::Generic,
        &Axes::default(),
        |t| {
            t.global_batch = 32;
            t.overlap.dp = false;
            t.overlap.ep = true;
        },
    );
    let jobs = [
        small_moe(16),
        small_dense(96, 192),
        deepseek(1024, 15_360),
        deepseek(98_304, 294_912),
        no_overlap,
    ];
    for job in jobs {
        for pareto in [true, false] {
            let all = run(
                &job,
                Options {
                    exhaustive: true,
                    pareto,
                    ..Options::default()
                },
            );
            let few = run(
                &job,
                Options {
                    pareto,
                    ..Options::default()
                },
            );
            assert!(!all.top.is_empty() && all.pareto.is_empty() != pareto);
            assert_eq!(few.top, all.top);
            assert_eq!(few.pareto, all.pareto);
            assert_eq!(
                (all.evaluated + all.over_memory, all.pruned),
                (all.counts.feasible, 0)
            );
            assert_eq!(
                few.counts.total,
                few.evaluated + few.pruned + few.over_memory + few.counts.all_rejected()
            );
            let share = if pareto { 1 } else { 2 };
            assert!(
                few.evaluated < all.evaluated / share,
                "{} of {}",
                few.evaluated,
                all.evaluated
            );
        }
    }
}

#[test]
fn bounds_hold_for_every_layout_of_every_cell() {
    for job in [small_moe(16), small_dense(24, 48), every_schedule()] {
        let scan = Scan::new(&job);
        let (mut cells, mut scratch) = (0, Scratch::default());
        for (number, group) in job.index.groups.iter().enumerate() {
            let mut layers = scan::Layers::new(scan, group);
            for (i, prefix) in group.prefixes.iter().enumerate() {
                let work = scan.prefix(number, i);
                for micro in 0..prefix.micro.len() {
                    for sequence in 0..prefix.sequence.len() {
                        layers.fill(prefix.micro[micro].micro_batch, prefix.sequence[sequence]);
                        for cell in scan.cells(&work, &layers, micro, sequence) {
                            let (step_s, bytes) = prune::bound(&job, &cell);
                            let mut best = Best::new(&Options {
                                top: 1,
                                ..Options::default()
                            });
                            scan.cell(&cell, &mut best, &mut scratch);
                            let lean = best.leanest.unwrap();
                            assert!(job.estimator.peak_bytes(bytes) <= lean.peak_bytes);
                            let top = best.top.sorted();
                            assert!(top.iter().all(|f| step_s <= f.step_s), "{step_s} {top:?}");
                            cells += 1;
                        }
                    }
                }
            }
        }
        assert!(cells > 200, "{cells}");
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let job = small_moe(16);
    for exhaustive in [true, false] {
        let one = run(
            &job,
            Options {
                threads: 1,
                exhaustive,
                ..Options::default()
            },
        );
        for threads in [2, 3, 8] {
            assert_eq!(
                run(
                    &job,
                    Options {
                        threads,
                        exhaustive,
                        ..Options::default()
                    }
                ),
                one
            );
        }
    }
}

#[test]
fn a_sweep_stops_when_asked_and_counts_what_it_did() {
    let job = small_moe(8);
    let control = Control::default();
    job.run(&Options::default(), &control).unwrap();
    assert_eq!(control.done(), job.index.len());
    control.stop();
    assert_eq!(
        job.run(&Options::default(), &control),
        Err(Error::Interrupted)
    );
}

#[test]
fn nothing_that_fits_names_the_leanest() {
    let axes = Axes {
        tp: Some(Choice::Pin(1)),
        pp: Some(Choice::Pin(1)),
        schedule: Some(vec![Schedule::OneFOneB]),
        ..Axes::default()
    };
    let job = job(fixture!("gpt3-175b"), 8, Framework::Generic, &axes, |t| {
        t.global_batch = 8
    });
    let outcome = run(&job, Options::default());
    assert!(outcome.top.is_empty() && outcome.pareto.is_empty());
    assert_eq!(
        (outcome.evaluated, outcome.over_memory),
        (0, outcome.counts.feasible)
    );
    assert!(outcome.leanest.unwrap().peak_bytes > 80e9);
}

#[test]
fn numbers_find_their_layouts() {
    let job = small_moe(8);
    let size: u64 = job.index.groups.iter().map(Group::size).sum();
    assert_eq!(size, job.index.len());
    let mut last = None;
    for id in 0..size {
        let layout = job.index.layout(&job.space, id).unwrap();
        assert_ne!(Some(layout), last);
        last = Some(layout);
    }
    assert_eq!(job.index.layout(&job.space, size), None);
}

#[test]
fn tables_hold_every_row_in_layout_order() {
    use std::sync::Arc;
    for job in [small_moe(8), small_dense(8, 16), every_schedule()] {
        let job = Arc::new(job);
        let mut expected = crate::training::row::Rows::default();
        for id in 0..job.index.len() {
            let layout = job.index.layout(&job.space, id).unwrap();
            expected.push(&job.estimator.row(&layout).unwrap());
        }
        let expected = expected.into_table();
        for threads in [1, 3] {
            let control = Control::default();
            let mut tables = rows::Tables::new(Arc::clone(&job), false, threads).unwrap();
            let mut rows = 0;
            while let Some(table) = tables.next(&control).unwrap() {
                for (got, want) in table.data.iter().zip(&expected.data) {
                    assert_same(got, want, rows);
                }
                rows += table.data[0].len();
            }
            assert_eq!(rows as u64, job.index.len());
            assert_eq!(control.done(), job.index.len());
        }
        let mut tables = rows::Tables::new(Arc::clone(&job), true, 2).unwrap();
        let mut rows = 0;
        while let Some(table) = tables.next(&Control::default()).unwrap() {
            rows += table.data[0].len() as u64;
        }
        let outcome = run(
            &job,
            Options {
                exhaustive: true,
                ..Options::default()
            },
        );
        assert_eq!(rows, outcome.evaluated);
    }
}

/// A part of a column equals the column from `start` on, to the bit.
fn assert_same(part: &crate::table::Data, whole: &crate::table::Data, start: usize) {
    use crate::table::Data;
    match (part, whole) {
        (Data::F64(a), Data::F64(b)) => {
            assert!(
                a.iter()
                    .zip(&b[start..])
                    .all(|(x, y)| x.to_bits() == y.to_bits())
            );
        }
        (Data::U32(a), Data::U32(b)) => assert_eq!(a[..], b[start..start + a.len()]),
        (Data::U64(a), Data::U64(b)) => assert_eq!(a[..], b[start..start + a.len()]),
        (Data::Bool(a), Data::Bool(b)) => assert_eq!(a[..], b[start..start + a.len()]),
        (Data::Name { codes: a, .. }, Data::Name { codes: b, .. }) => {
            assert_eq!(a[..], b[start..start + a.len()]);
        }
        _ => panic!("columns of different types"),
    }
}

#[test]
fn an_estimate_that_is_not_a_number_is_an_error() {
    for exhaustive in [true, false] {
        let mut job = small_moe(4);
        job.estimator.software.step_s = f64::NAN;
        let found = job.run(
            &Options {
                exhaustive,
                ..Options::default()
            },
            &Control::default(),
        );
        assert!(matches!(found, Err(Error::Field { field, .. }) if field == "estimate"));
    }
}
