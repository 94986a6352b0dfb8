//! The public tie-free EPLB vectors, map for map. Skipped where the shared data is not mounted.

use planner_core::moe::eplb::{eplb, tie_free_loads};
use planner_core::moe::{Placement, Shape};
use serde_json::Value;

fn shared(path: &str) -> Option<Value> {
    let root = std::env::var("PLANNER_SHARED").unwrap_or_else(|_| "../../../shared".into());
    let file = format!("{root}/{path}");
    let Ok(text) = std::fs::read_to_string(&file) else {
        assert!(std::env::var("CI").is_err(), "{file} is missing");
        eprintln!("skipped: {file} is not there");
        return None;
    };
    Some(serde_json::from_str(&text).expect("the vectors are JSON"))
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array()
        .expect("an array")
        .iter()
        .map(|x| x.as_f64().expect("a number"))
        .collect()
}

#[test]
fn tie_free_maps_are_identical() {
    let Some(file) = shared("truth/moe/eplb_vectors_tiefree.json") else {
        return;
    };
    let cases = file["cases"].as_array().expect("cases");
    assert!(cases.len() >= 18);
    for case in cases {
        let name = case["name"].as_str().unwrap_or_default();
        let a = numbers(&case["args"]);
        let experts = case["experts"].as_u64().expect("experts") as u32;
        let layers = case["layers"].as_u64().expect("layers") as usize;
        let shape = Shape {
            experts,
            redundant: a[0] as u32 - experts,
            groups: a[1] as u32,
            nodes: a[2] as u32,
            ranks: a[3] as u32,
        };
        shape.check().unwrap_or_else(|e| panic!("{name}: {e}"));
        let loads = tie_free_loads(
            case["seed"].as_u64().expect("seed"),
            layers * experts as usize,
        );
        let first: Vec<f64> = loads.iter().take(8).map(|x| f64::from(*x)).collect();
        assert_eq!(first, numbers(&case["first8_loads"]), "{name}");
        let placed = eplb(&loads, &shape);
        check(name, &placed, &loads, &shape, case);
    }
}

fn check(name: &str, placed: &[Placement], loads: &[f32], shape: &Shape, case: &Value) {
    let map: Vec<f64> = placed[0]
        .physical_to_logical
        .iter()
        .map(|x| f64::from(*x))
        .collect();
    assert_eq!(map, numbers(&case["phy2log_layer0"]), "{name}");
    let experts = shape.experts as usize;
    for (i, expected) in numbers(&case["imb_per_layer"]).iter().enumerate() {
        let row: Vec<f64> = loads[i * experts..][..experts]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        let got = placed[i].max_over_mean(&row, shape.ranks);
        assert!(
            (got - expected).abs() < 1e-6,
            "{name} layer {i}: {got} {expected}"
        );
    }
}
