//! One sweep, for instruction counts: `sweep_once MODEL GPUS BATCH MODE`, MODE of `index`, `exhaustive`,
//! `pruned`, `pruned-top` (no front), `rows`. `index` is what the others do first: subtract it.
//!
//! ```text
//! cargo build --profile bench --package planner-benches --example sweep_once
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/sweep_once gpt3-175b 1024 1536 exhaustive
//! ```

use std::sync::Arc;

use planner_benches::job;
use planner_core::sweep::Options;
use planner_core::sweep::control::Control;
use planner_core::sweep::rows::Tables;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, gpus, batch, mode] = &arguments[..] else {
        eprintln!("usage: sweep_once MODEL GPUS BATCH index|exhaustive|pruned|pruned-top|rows");
        std::process::exit(2);
    };
    let number = |text: &str| text.parse().expect("a number");
    let job = job(model, number(gpus), number(batch));
    let control = Control::default();
    match mode.as_str() {
        "index" => {}
        "rows" => {
            let mut tables = Tables::new(Arc::new(job), false, 1).expect("threads start");
            while let Ok(Some(table)) = tables.next(&control) {
                std::hint::black_box(table);
            }
        }
        _ => {
            let exhaustive = mode == "exhaustive";
            let pareto = mode != "pruned-top";
            let options = Options {
                pareto,
                exhaustive,
                threads: 1,
                ..Options::default()
            };
            let start = std::time::Instant::now();
            let outcome = job.run(&options, &control).expect("nobody stops it");
            println!(
                "{} layouts, {} fit, {} pruned, {} over memory, {:?}",
                job.index.len(),
                outcome.evaluated,
                outcome.pruned,
                outcome.over_memory,
                start.elapsed()
            );
        }
    }
    eprintln!("{} done", control.done());
}
