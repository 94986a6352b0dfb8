//! What benchmarks share. The benchmarks themselves are in `benches/`, one file an engine.

use planner_core::cluster::Cluster;
use planner_core::layout::Framework;
use planner_core::layout::axes::Axes;
use planner_core::layout::space::Space;
use planner_core::model::Model;
use planner_core::sweep::Job;
use planner_core::training::Estimator;
use planner_core::training::workload::Training;

/// Rows of the buffers that are filled: 8 MiB of `f64`, more than a second-level cache holds.
pub const FILL_ROWS: usize = 1 << 20;

/// Fill `columns` row by row with plain stores: the rate that no engine can beat on this machine.
pub fn fill(columns: &mut [Vec<f64>]) {
    for (index, column) in columns.iter_mut().enumerate() {
        let start = index as f64;
        for (row, value) in column.iter_mut().enumerate() {
            *value = start + row as f64;
        }
    }
}

/// A fixture of `rust/planner-core/fixtures`, parsed.
fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = format!(
        "{}/../rust/planner-core/fixtures/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).expect("the fixture is there");
    serde_json::from_str(&text).expect("the fixture fits the types")
}

/// A model of the fixtures on GPUs of the fixtures' cluster, every axis open.
pub fn job(model: &str, gpus: u64, global_batch: u64) -> Job {
    let model: Model = fixture(model);
    let cluster: Cluster = fixture("h100");
    let training = Training {
        global_batch,
        ..fixture("training")
    };
    let axes = Axes::default();
    let space = Space::new(&model, &cluster, &training, Framework::Generic, gpus, &axes);
    let estimator = Estimator::new(model, cluster, training, fixture("software"), gpus);
    Job::new(
        estimator.expect("numbers are there"),
        space.expect("axes are open"),
    )
}
