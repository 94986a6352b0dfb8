use super::*;
use crate::collectives::expert_parallel::{active_experts, distinct_nodes};
use crate::moe::imbalance;

fn batch(routing: Routing, (experts, top_k, tokens, ranks): (u32, u32, u32, u32)) -> Batch {
    Batch {
        routing,
        experts,
        top_k,
        tokens,
        ranks,
        nodes: 1,
        group_limit: None,
        placement: Vec::new(),
        capacity: None,
    }
}

const DRAW: Draw = Draw {
    trials: 1000,
    seed: 20_261_129,
    threads: 2,
};

#[test]
fn same_bytes_at_any_thread_count() {
    let b = batch(Routing::Dirichlet { alpha: 1.0 }, (64, 8, 256, 8));
    let one = b
        .simulate(&Draw {
            threads: 1,
            trials: 50,
            ..DRAW
        })
        .unwrap();
    let two = b
        .simulate(&Draw {
            threads: 2,
            trials: 50,
            ..DRAW
        })
        .unwrap();
    assert_eq!(one, two);
    assert_ne!(
        one,
        b.simulate(&Draw {
            seed: 1,
            trials: 50,
            ..DRAW
        })
        .unwrap()
    );
}

#[test]
fn popular_experts_lie_anywhere() {
    // The mean over 20,000 random placements of 64 Zipf shares on 8 ranks, in numpy: 1.540.
    let zipf = Routing::Zipf { s: 0.6 };
    let drawn = batch(zipf.clone(), (64, 6, 4096, 8))
        .simulate(&DRAW)
        .unwrap();
    let rank = drawn.rank_max_over_mean;
    assert!(
        (rank.mean - 1.540).abs() < 1.5 * rank.ci95 + 0.005,
        "{rank:?}"
    );
    let closed = imbalance(&zipf, 64, 6, 8, 512.0);
    assert!((closed - 1.540).abs() < 0.05, "{closed}");
}

#[test]
fn closed_forms_and_draws_agree() {
    for shape in [
        (8, 2, 128, 8),
        (64, 8, 1024, 8),
        (256, 8, 128, 32),
        (384, 8, 512, 32),
    ] {
        let (e, k, t, r) = shape;
        let out = batch(Routing::Uniform, shape).simulate(&DRAW).unwrap();
        let closed = imbalance(&Routing::Uniform, e, k, r, f64::from(t) / f64::from(r));
        let rank = out.rank_max_over_mean;
        assert!(
            (rank.mean - closed).abs() < 2.0 * rank.ci95 + 0.003,
            "{shape:?} {rank:?} {closed}"
        );
        let distinct = distinct_nodes(u64::from(e), u64::from(k), u64::from(r));
        assert!((out.distinct_ranks.mean - distinct).abs() < 4.0 * out.distinct_ranks.ci95 + 1e-9);
        let active = active_experts(u64::from(e), u64::from(k), u64::from(t));
        assert!((out.active_experts.mean / active - 1.0).abs() < 0.002);
    }
}

#[test]
fn skewed_closed_form_within_three_percent() {
    for alpha in [0.5, 1.0, 5.0] {
        for shape in [(64, 8, 4096, 8), (256, 8, 4096, 32), (32, 4, 512, 8)] {
            let (e, k, t, r) = shape;
            let routing = Routing::Dirichlet { alpha };
            let out = batch(routing.clone(), shape).simulate(&DRAW).unwrap();
            let closed = imbalance(&routing, e, k, r, f64::from(t) / f64::from(r));
            let rank = out.rank_max_over_mean;
            assert!(
                (closed / rank.mean - 1.0).abs() < 0.03,
                "{alpha} {shape:?} {rank:?} {closed}"
            );
        }
    }
}

#[test]
fn full_skew_conserves_choices() {
    // All tokens on the same experts: the ranks still receive T·k choices together.
    let mut row = vec![0.0; 16];
    row[0] = 1.0;
    row[1] = 1.0;
    let out = batch(Routing::Counts { layers: vec![row] }, (16, 2, 2304, 4))
        .simulate(&Draw { trials: 5, ..DRAW });
    let out = out.unwrap();
    assert_eq!(out.rank_max_over_mean.mean, 4.0);
    assert_eq!(out.active_on_fullest_rank.mean, 2.0);
}

#[test]
fn a_batch_that_makes_no_sense() {
    let good = batch(Routing::Uniform, (8, 2, 16, 4));
    assert!(good.check().is_ok());
    assert!(
        Batch {
            ranks: 3,
            ..good.clone()
        }
        .check()
        .is_err()
    );
    assert!(
        Batch {
            nodes: 3,
            ..good.clone()
        }
        .check()
        .is_err()
    );
    assert!(
        Batch {
            top_k: 9,
            ..good.clone()
        }
        .check()
        .is_err()
    );
    assert!(
        Batch {
            placement: vec![0; 8],
            ..good.clone()
        }
        .check()
        .is_err()
    );
    assert!(
        Batch {
            placement: vec![9; 8],
            ..good.clone()
        }
        .check()
        .is_err()
    );
    assert!(
        Batch {
            group_limit: Some((8, 1)),
            ..good.clone()
        }
        .check()
        .is_err()
    );
    assert!(good.simulate(&Draw { trials: 0, ..DRAW }).is_err());
}
