//! The public MoE routing vectors. Skipped where the shared data is not mounted; the same formulas
//! are tested on numbers of our own beside the code.

use planner_core::collectives::expert_parallel::{distinct_nodes, misses_probability};
use planner_core::moe::balance::contiguous;
use planner_core::moe::capacity::{dropped_uniform, megatron, switch, tutel};
use planner_core::moe::fit::spread;
use planner_core::moe::monte_carlo::{Batch, Draw};
use planner_core::moe::shape::max_over_mean;
use planner_core::moe::{Routing, imbalance};
use serde_json::Value;

fn shared(path: &str) -> Option<String> {
    let root = std::env::var("PLANNER_SHARED").unwrap_or_else(|_| "../../../shared".into());
    let file = format!("{root}/{path}");
    match std::fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(_) => {
            assert!(std::env::var("CI").is_err(), "{file} is missing");
            eprintln!("skipped: {file} is not there");
            None
        }
    }
}

fn section(name: &str) -> Vec<Value> {
    let Some(text) = shared("truth/moe/moe_vectors.json") else {
        return Vec::new();
    };
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let rows = file[name].as_array().expect("an array").clone();
    assert!(!rows.is_empty(), "{name} has no row");
    rows
}

fn number(row: &Value, key: &str) -> f64 {
    row[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} in {row}"))
}

fn count(row: &Value, key: &str) -> u32 {
    number(row, key) as u32
}

fn batch(row: &Value) -> Batch {
    Batch {
        routing: Routing::Uniform,
        experts: count(row, "E"),
        top_k: count(row, "k"),
        tokens: count(row, "T"),
        ranks: count(row, "EP"),
        nodes: 1,
        group_limit: None,
        placement: Vec::new(),
        capacity: None,
    }
}

#[test]
fn uniform_draws_and_closed_forms() {
    for row in section("uniform") {
        let b = batch(&row);
        let trials = if b.tokens > 2000 { 150 } else { 600 };
        let out = b
            .simulate(&Draw {
                trials,
                seed: 7,
                threads: 2,
            })
            .expect("a batch");
        for (got, mean, ci) in [
            (
                out.expert_max_over_mean,
                "expert_max_over_mean",
                "expert_ci95",
            ),
            (out.rank_max_over_mean, "rank_max_over_mean", "rank_ci95"),
        ] {
            let apart = (got.mean - number(&row, mean)).abs();
            assert!(
                apart < 1.5 * (got.ci95 + number(&row, ci)),
                "{mean} {got:?} {row}"
            );
        }
        let closed = |ranks: u32| {
            imbalance(
                &Routing::Uniform,
                b.experts,
                b.top_k,
                ranks,
                f64::from(b.tokens) / f64::from(ranks),
            )
        };
        let within = |x: f64, key: &str, ci: &str| {
            let truth = number(&row, key);
            assert!(
                (x - truth).abs() < number(&row, ci) + 0.012 * truth,
                "{x} {row}"
            );
        };
        within(closed(b.experts), "expert_max_over_mean", "expert_ci95");
        within(closed(b.ranks), "rank_max_over_mean", "rank_ci95");
        if let Some(truth) = row["rank_dedup_max_over_mean"].as_f64() {
            deduplicated(&b, truth, number(&row, "rank_ci95"));
        }
    }
}

/// Different tokens on the fullest rank over the mean.
fn deduplicated(b: &Batch, truth: f64, ci: f64) {
    let trials = if b.tokens > 2000 { 60 } else { 300 };
    let sum: f64 = (0..trials)
        .map(|seed| {
            let matrix = b.traffic(seed).expect("a matrix");
            let columns: Vec<f64> = (0..b.ranks as usize)
                .map(|c| matrix.iter().map(|r| f64::from(r[c])).sum())
                .collect();
            max_over_mean(&columns)
        })
        .sum();
    let mean = sum / trials as f64;
    assert!(
        (mean - truth).abs() < 4.0 * ci + 0.01,
        "{mean} {truth} {b:?}"
    );
}

#[test]
fn locality() {
    for row in section("locality") {
        let (e, k, r) = (
            number(&row, "E") as u64,
            number(&row, "k") as u64,
            number(&row, "ranks") as u64,
        );
        let touch = 1.0 - misses_probability(e, e / r, k);
        assert!(
            (touch - number(&row, "p_touch_given_rank")).abs() < 1e-12,
            "{row}"
        );
        let distinct = distinct_nodes(e, k, r);
        assert!(
            (distinct - number(&row, "expected_distinct_ranks")).abs() < 1e-9,
            "{row}"
        );
        assert!(
            (k as f64 / distinct - number(&row, "dedup_factor")).abs() < 1e-9,
            "{row}"
        );
    }
}

#[test]
fn capacities() {
    for row in section("capacity") {
        let (t, e, k) = (
            number(&row, "T") as u64,
            number(&row, "E") as u64,
            number(&row, "k") as u64,
        );
        let cf = number(&row, "cf");
        let ours = megatron(t, k, e, cf, 0);
        assert_eq!(ours, number(&row, "cap_megatron") as u64, "{row}");
        assert_eq!(
            tutel(t, k, e, cf, (0, 1)),
            number(&row, "cap_tutel") as u64,
            "{row}"
        );
        if let Some(rows) = row["cap_switch_int"].as_u64() {
            assert_eq!(switch(t, e, cf), rows, "{row}");
        }
        for (capacity, key) in [
            (ours, "drop_frac_uniform_megatron"),
            (tutel(t, k, e, cf, (0, 1)), "drop_frac_uniform_tutel"),
        ] {
            let got = dropped_uniform(t, k, e, capacity);
            assert!((got - number(&row, key)).abs() < 1e-9, "{got} {key} {row}");
        }
    }
}

#[test]
fn group_limited_routing() {
    for row in section("node_limited") {
        let (groups, keep) = (count(&row, "groups"), count(&row, "group_topk"));
        let b = Batch {
            routing: Routing::Uniform,
            experts: count(&row, "E"),
            top_k: count(&row, "k"),
            tokens: 256,
            ranks: groups,
            nodes: groups,
            group_limit: Some((groups, keep)),
            placement: Vec::new(),
            capacity: None,
        };
        let out = b
            .simulate(&Draw {
                trials: 60,
                seed: 7,
                threads: 2,
            })
            .expect("a batch");
        let apart = (out.distinct_nodes.mean - number(&row, "mean_distinct_groups")).abs();
        assert!(
            apart < 1.5 * (out.distinct_nodes.ci95 + number(&row, "ci95")),
            "{out:?} {row}"
        );
    }
}

#[test]
fn four_nodes_gain_little_from_four_groups_and_eight_nodes_do() {
    let nodes = |ranks: u32, nodes: u32| {
        let b = Batch {
            routing: Routing::Uniform,
            experts: 256,
            top_k: 8,
            tokens: 256,
            ranks,
            nodes,
            group_limit: Some((8, 4)),
            placement: Vec::new(),
            capacity: None,
        };
        b.simulate(&Draw {
            trials: 40,
            seed: 1,
            threads: 2,
        })
        .expect("a batch")
        .distinct_nodes
        .mean
    };
    assert!(nodes(32, 4) <= 3.1429 + 0.01); // 3.6142 without the limit
    assert!((distinct_nodes(256, 8, 8) / nodes(64, 8) - 1.34).abs() < 0.01);
}

#[test]
fn recorded_loads() {
    for row in section("real") {
        let (model, domain, layer) = (
            row["model"].as_str().unwrap_or(""),
            row["domain"].as_str().unwrap_or(""),
            count(&row, "layer"),
        );
        let file = if model == "olmoe" {
            "olmoe_1b_7b"
        } else {
            "mixtral_8x7b"
        };
        let Some(counts) = recorded(file, domain, layer) else {
            continue;
        };
        let got = spread(&counts);
        assert!(
            (got.max_over_mean - number(&row, "max_over_mean")).abs() < 1e-6,
            "{row}"
        );
        assert!((got.cv - number(&row, "cv")).abs() < 1e-6, "{row}");
        assert!(
            (got.alpha / number(&row, "dm_alpha_per_expert") - 1.0).abs() < 0.02,
            "{got:?} {row}"
        );
        assert!(
            (got.zipf.0 - number(&row, "zipf_s")).abs() < 0.02,
            "{got:?} {row}"
        );
        for ep in [2u32, 4, 8, 16] {
            if let Some(truth) = row[format!("ep{ep}_contig")].as_f64() {
                assert!(
                    (contiguous(&counts, ep) - truth).abs() < 1e-6,
                    "EP{ep} {row}"
                );
            }
        }
    }
}

fn recorded(file: &str, domain: &str, layer: u32) -> Option<Vec<f64>> {
    let text = shared(&format!("truth/moe/loads/olmoe/{file}_expert_counts.csv"))?;
    let line = text.lines().find(|l| {
        let cells: Vec<&str> = l.split(',').collect();
        !cells[0].contains('-')
            && cells[1] == "expert_counts"
            && cells[2] == domain
            && cells[3] == layer.to_string()
    })?;
    Some(
        line.split(',')
            .skip(5)
            .map(|x| x.parse().expect("a count"))
            .collect(),
    )
}
