use proptest::prelude::*;

use super::kept::{Point, Worth};
use super::request::KindSpec;
use super::verify::Verified;
use super::*;
use crate::layout::axes::Choice;
use crate::model::Model;
use crate::serving::deployment::Backend;
use crate::serving::fixture::{FP8, HARDWARE, SOFTWARE, cluster, dense, latent_moe};
use crate::serving::load::{Arrivals, Lengths, Load};
use crate::serving::routing::Routing;
use crate::serving::space::{Axes, Defaults, EngineAxes, Status};
use crate::table::{Data, Table};

fn load(arrivals: Arrivals) -> Load {
    let lengths = |tokens| Lengths { tokens, low: 0.8 };
    Load {
        arrivals,
        input: lengths(2000),
        output: lengths(300),
        requests: None,
        prefix_hit_ratio: 0.0,
        acceptance: None,
        seed: 1,
    }
}

fn request(model: Model, backend: Backend, gpus: u32) -> Request {
    Request {
        model,
        cluster: cluster(),
        hardware: HARDWARE,
        software: [(backend, SOFTWARE)].into(),
        routing: Routing::UNIFORM,
        measured: None,
        kinds: vec![KindSpec {
            backend,
            precision: FP8,
            defaults: Defaults {
                memory_share: 0.9,
                recv_interval: 1,
                block_tokens: 32,
            },
        }],
        gpus,
        load: load(Arrivals::Closed { concurrency: 1 }),
        recorded: None,
        open_concurrency: true,
        goal: Goal {
            ttft_s: None,
            tpot_s: None,
            at: Statistic::Mean,
            margin: 0.0,
            objective: Objective::Throughput,
            price_per_gpu_hour: Some(2.0),
        },
        axes: Axes {
            modes: Mode::ALL.to_vec(),
            engine: EngineAxes {
                pp: Some(Choice::Pin(1)),
                spec_tokens: Some(Choice::Pin(0)),
                max_batch: Some(Choice::List(vec![4, 16, 64, 128])),
                max_batched_tokens: Some(Choice::List(vec![8192, 16_384, 65_536])),
                ..EngineAxes::default()
            },
            prefill: EngineAxes {
                pp: Some(Choice::Pin(1)),
                max_batched_tokens: Some(Choice::List(vec![8192, 65_536])),
                ..EngineAxes::default()
            },
        },
    }
}

fn run(request: Request, options: Options) -> (Job, Found) {
    let job = request.job().unwrap();
    let found = job.run(&options, &Control::default()).unwrap();
    (job, found)
}

const THREE: Options = Options {
    top: 3,
    exhaustive: false,
    threads: 1,
};

fn best(job: &Job, found: &Found) -> Option<(f64, f64)> {
    let first: &Verified = found.top.first()?;
    Some(first.worth(job, job.goal.objective))
}

fn demands() -> impl Strategy<Value = (Load, bool)> {
    prop_oneof![
        Just((load(Arrivals::Closed { concurrency: 1 }), true)),
        (1_u32..200).prop_map(|c| (load(Arrivals::Closed { concurrency: c }), false)),
        (0.1_f64..40.0).prop_map(|rate_per_s| {
            let arrivals = Arrivals::Open {
                rate_per_s,
                cv: 1.0,
            };
            let mut load = load(arrivals);
            load.requests = Some(200);
            (load, false)
        }),
    ]
}

fn asked(
    which: usize,
    gpus: u32,
    demand: (Load, bool),
    limits: (Option<f64>, Option<f64>),
) -> Request {
    let model = if which.is_multiple_of(2) {
        latent_moe()
    } else {
        dense()
    };
    let backend = [Backend::Vllm, Backend::Sglang, Backend::Trtllm][which / 2];
    let mut request = request(model, backend, gpus);
    (request.load, request.open_concurrency) = demand;
    (request.goal.ttft_s, request.goal.tpot_s) = limits;
    request
}

fn limits() -> impl Strategy<Value = (Option<f64>, Option<f64>)> {
    (
        prop::option::of(0.05_f64..5.0),
        prop::option::of(0.003_f64..0.1),
    )
}

/// Status, tokens a second and GPUs of the rows of a table.
fn told(table: &Table) -> Vec<(Status, f64, u32)> {
    let column = |name: &str| {
        let at = table.columns.iter().position(|c| c.name == name);
        &table.data[at.unwrap()]
    };
    let columns = (column("status"), column("tokens_per_s"), column("gpus"));
    let (Data::Name { codes, .. }, Data::F64(rates), Data::U32(gpus)) = columns else {
        panic!("columns of another kind");
    };
    let statuses = codes.iter().map(|code| Status::ALL[usize::from(*code)]);
    let rest = rates.iter().zip(gpus);
    statuses
        .zip(rest)
        .map(|(status, (rate, gpus))| (status, *rate, *gpus))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every deployment of the space is accounted for once.
    #[test]
    fn the_account_adds_up(
        which in 0_usize..6, gpus in 1_u32..24, demand in demands(), limits in limits(),
        exhaustive in any::<bool>(),
    ) {
        let options = Options { exhaustive, ..THREE };
        let (job, found) = run(asked(which, gpus, demand, limits), options);
        prop_assert!(found.tally.holds(), "{:?}", job.summary(&found));
        prop_assert!(found.tally.total > 0);
        let kept = found.top.iter().all(|v| v.status == Status::Ok);
        prop_assert!(kept);
    }

    /// What bounds skip is never better, under any objective or on the front, than what is found.
    #[test]
    fn pruned_equals_exhaustive(
        which in 0_usize..6, gpus in 1_u32..24, demand in demands(), limits in limits(),
    ) {
        let ranked = |options| {
            let job = asked(which, gpus, demand.clone(), limits).job().unwrap();
            job.ranked(&options, &Control::default()).unwrap()
        };
        let (pruned, counted) = ranked(THREE);
        let (whole, all) = ranked(Options { exhaustive: true, ..THREE });
        let firsts = |kept: &Kept| {
            let first = |list: &Vec<(Worth, Point)>| list.first().map(|(worth, _)| *worth);
            kept.objectives.each_ref().map(first)
        };
        let front = |kept: &Kept| -> Vec<(f64, f64)> {
            kept.front.iter().map(|(dense, point)| (*dense, point.tpot_s)).collect()
        };
        prop_assert_eq!(firsts(&pruned), firsts(&whole));
        prop_assert_eq!(front(&pruned), front(&whole));
        prop_assert_eq!(counted.total, all.total);
    }

    /// The table of every deployment holds the best one, whoever makes it; no row beats it.
    #[test]
    fn the_table_holds_the_best(
        which in 0_usize..6, gpus in 1_u32..24, demand in demands(), limits in limits(),
        threads in 1_usize..4,
    ) {
        let job = std::sync::Arc::new(asked(which, gpus, demand, limits).job().unwrap());
        let options = Options { exhaustive: true, ..THREE };
        let (kept, _) = job.ranked(&options, &Control::default()).unwrap();
        let mut tables = listing::Tables::new(job.clone(), threads).unwrap();
        let mut best = None;
        while let Some(table) = tables.next(&Control::default()).unwrap() {
            for (status, rate, gpus) in told(&table) {
                let dense = kept::density(&job, rate, gpus);
                if status == Status::Ok && best.is_none_or(|most| dense > most) {
                    best = Some(dense);
                }
            }
        }
        let first = kept.objectives[0].first().map(|(worth, _)| worth.0);
        prop_assert_eq!(best, first);
    }

    /// A larger job holds every deployment of a smaller one.
    #[test]
    fn more_gpus_are_never_worse(which in 0_usize..6, nodes in 1_u32..3, limits in limits()) {
        let chosen = || (load(Arrivals::Closed { concurrency: 1 }), true);
        let rate = |gpus| {
            let (job, found) = run(asked(which, gpus, chosen(), limits), THREE);
            best(&job, &found).map_or(0.0, |(worth, _)| worth * f64::from(gpus))
        };
        let (few, many) = (rate(8 * nodes), rate(8 * nodes + 8));
        // Where the fill differs, replays of other numbers of clients differ a little.
        prop_assert!(many >= 0.98 * few, "{few} {many}");
    }

    /// The answer does not depend on the number of threads.
    #[test]
    fn threads_do_not_matter(which in 0_usize..6, demand in demands(), limits in limits()) {
        let ask = || asked(which, 16, demand.clone(), limits);
        let (job, one) = run(ask(), THREE);
        let (_, four) = run(ask(), Options { threads: 4, ..THREE });
        prop_assert_eq!(job.summary(&one), job.summary(&four));
        // As text, since NaN differs from itself.
        prop_assert_eq!(format!("{:?}", job.tables(&one)), format!("{:?}", job.tables(&four)));
    }
}

#[test]
fn the_front_falls_and_holds_the_best() {
    let (job, found) = run(request(latent_moe(), Backend::Sglang, 32), THREE);
    let dense = |v: &Verified| v.worth(&job, Objective::Throughput).0;
    let tpot = |v: &Verified| v.estimate.outcome.tpot_s.mean;
    assert!(found.front.len() > 3);
    for pair in found.front.windows(2) {
        assert!(tpot(&pair[0]) < tpot(&pair[1]) && dense(&pair[0]) < dense(&pair[1]));
    }
    let last = found.front.last().unwrap();
    assert!(dense(last) >= dense(&found.top[0]));
    let [throughput, cost, gpus] = found.best.map(|best| best.is_some());
    assert!(throughput && cost && !gpus, "nobody asked for a rate");
}

#[test]
fn limits_that_nothing_keeps_name_the_nearest_miss() {
    let mut ask = request(dense(), Backend::Vllm, 8);
    (ask.goal.ttft_s, ask.goal.tpot_s) = (Some(10.0), Some(1e-5));
    let (job, found) = run(ask, THREE);
    assert!(found.top.is_empty() && found.tally.holds());
    let nearest = job.summary(&found).nearest;
    assert!(nearest.tpot.unwrap().tpot_s > 1e-5);
}

#[test]
fn a_rate_above_every_capacity_is_told_so() {
    let arrivals = Arrivals::Open {
        rate_per_s: 1e6,
        cv: 1.0,
    };
    let (_, found) = run(asked(0, 8, (load(arrivals), false), (None, None)), THREE);
    assert!(found.top.is_empty());
    assert!(found.tally.statuses[Status::Rate as usize] > 0);
}

#[test]
fn a_stopped_search_says_so() {
    let control = Control::default();
    control.stop();
    let job = request(dense(), Backend::Vllm, 8).job().unwrap();
    assert_eq!(
        job.run(&THREE, &control).err(),
        Some(crate::error::Error::Interrupted)
    );
}
