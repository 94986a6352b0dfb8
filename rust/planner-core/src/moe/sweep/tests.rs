use super::*;
use crate::moe::monte_carlo::{Batch, Draw};

fn axes() -> Axes {
    Axes {
        experts: vec![64, 256],
        top_k: vec![1, 8],
        ranks: vec![8, 48],
        nodes: vec![1, 4],
        redundant: vec![0, 32],
        alpha: vec![0.0, 1.0],
        tokens_per_rank: vec![64, 4096],
        capacity_factor: vec![0.0, 1.25],
        capacity_rule: vec![Rule::Megatron],
    }
}

fn column<'a>(table: &'a Table, name: &str) -> &'a Data {
    let i = table
        .columns
        .iter()
        .position(|c| c.name == name)
        .expect("declared");
    &table.data[i]
}

#[test]
fn one_row_a_point_whatever_the_threads() {
    let a = axes().run(1).unwrap();
    let b = axes().run(2).unwrap();
    assert_eq!(a.len(), 1);
    for (x, y) in a[0].data.iter().zip(&b[0].data) {
        assert_eq!(format!("{x:?}"), format!("{y:?}")); // NaN rows included
    }
    assert_eq!(a[0].data[0].len() as u64, axes().rows());
    let Data::Name { codes, .. } = column(&a[0], "status") else {
        panic!("status")
    };
    assert!(codes.contains(&0) && codes.contains(&2));
}

#[test]
fn dropped_is_the_exact_share() {
    let grid = Axes {
        experts: vec![64],
        top_k: vec![1],
        ranks: vec![1],
        nodes: vec![1],
        redundant: vec![0],
        alpha: vec![0.0],
        tokens_per_rank: vec![1024, 4096],
        capacity_factor: vec![1.0, 1.1, 1.25],
        capacity_rule: vec![Rule::Megatron],
    };
    let table = &grid.run(1).unwrap()[0];
    let Data::F64(dropped) = column(table, "dropped_ratio") else {
        panic!("dropped")
    };
    let Data::U64(capacity) = column(table, "capacity_tokens") else {
        panic!("capacity")
    };
    for (i, t) in [
        (0, 1024),
        (1, 1024),
        (2, 1024),
        (3, 4096),
        (4, 4096),
        (5, 4096),
    ] {
        let exact = crate::moe::capacity::dropped_uniform(t, 1, 64, capacity[i]);
        assert!(
            (dropped[i] - exact).abs() < 0.02 * exact + 1e-4,
            "{i}: {} {exact}",
            dropped[i]
        );
    }
}

#[test]
fn balanced_skew_times_noise_is_what_draws_give() {
    // Shares drawn, balanced with 32 spare slots, then routed: within 2 % of the closed form.
    let shape = Shape {
        experts: 256,
        redundant: 32,
        ranks: 32,
        nodes: 1,
        groups: 1,
    };
    let mut sum = 0.0;
    let trials = 12;
    for d in 0..trials {
        let shares = draw_dirichlet(1.0, 256, 8, &mut Pcg64::new(99, d));
        let placement = best(&shares, &shape, &[], false)
            .placement
            .physical_to_logical;
        let batch = Batch {
            routing: Routing::Counts {
                layers: vec![shares],
            },
            experts: 256,
            top_k: 8,
            tokens: 128 * 32,
            ranks: 32,
            nodes: 1,
            group_limit: None,
            placement,
            capacity: None,
        };
        let draw = Draw {
            trials: 20,
            seed: d,
            threads: 1,
        };
        sum += batch.simulate(&draw).unwrap().rank_max_over_mean.mean;
    }
    let drawn = sum / trials as f64;
    let skew = balanced_skew((256, 32, 32, 1.0f64.to_bits()));
    let closed = skew * symmetric(&Routing::Uniform, 256, 8, 128.0, &NormalMax::of(32));
    assert!((closed / drawn - 1.0).abs() < 0.02, "{closed} {drawn}");
}

#[test]
fn axes_that_make_no_sense() {
    assert!(
        Axes {
            experts: Vec::new(),
            ..axes()
        }
        .run(1)
        .is_err()
    );
    assert!(
        Axes {
            ranks: vec![0],
            ..axes()
        }
        .run(1)
        .is_err()
    );
    assert!(
        Axes {
            alpha: vec![-1.0],
            ..axes()
        }
        .run(1)
        .is_err()
    );
    assert!(
        Axes {
            capacity_factor: vec![f64::NAN],
            ..axes()
        }
        .run(1)
        .is_err()
    );
}

#[test]
fn three_rules_of_capacity() {
    let grid = Axes {
        experts: vec![64],
        top_k: vec![1, 8],
        ranks: vec![8],
        nodes: vec![1],
        redundant: vec![0],
        alpha: vec![0.0],
        tokens_per_rank: vec![4096],
        capacity_factor: vec![0.0, 1.1],
        capacity_rule: vec![Rule::Megatron, Rule::Switch, Rule::Tutel],
    };
    let table = &grid.run(1).unwrap()[0];
    let at = |name: &str| table.columns.iter().position(|c| c.name == name).unwrap();
    let (Data::U64(rows), Data::F64(dropped), Data::F64(padded)) = (
        &table.data[at("capacity_tokens")],
        &table.data[at("dropped_ratio")],
        &table.data[at("padded_ratio")],
    ) else {
        panic!("types")
    };
    // k = 1, cf = 0: dropless but for Tutel, which pads to the largest load; then 71, 70 and 70 rows.
    assert_eq!((rows[0], rows[1]), (0, 0));
    assert!(rows[2] > 70 && dropped[2] == 0.0, "{rows:?}");
    assert!((padded[2] - (1.0 - 64.0 / rows[2] as f64)).abs() < 1e-12);
    assert_eq!(rows[3..6], [71, 70, 70]);
    // k = 8, cf = 1.1: Megatron 564, Switch refuses, Tutel 8·70.
    assert_eq!((rows[9], rows[11]), (564, 560));
    assert!(dropped[10].is_nan());
    for i in [3, 4, 5, 9, 11] {
        let k = if i < 6 { 1.0 } else { 8.0 };
        let kept = 4096.0 * k * (1.0 - dropped[i]) / (64.0 * rows[i] as f64);
        assert!((padded[i] - (1.0 - kept)).abs() < 1e-12);
    }
    let negative = Axes {
        capacity_factor: vec![-1.1],
        ..grid.clone()
    };
    assert!(negative.run(1).is_err());
    let tutel = Axes {
        capacity_rule: vec![Rule::Tutel],
        ..negative
    };
    assert!(tutel.run(1).is_ok());
}
