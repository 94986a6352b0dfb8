//! One KV job over a trace, for instruction counts: `kv_once TRACE JOB`, JOB of `ids` (read and number
//! the blocks), `direct` (and replay 10,000 blocks), `curve` (and all capacities). Subtract `ids`.
//!
//! ```text
//! cargo build --release --package planner-benches --example kv_once
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/kv_once trace.jsonl direct
//! ```

use std::path::Path;

use planner_core::kv::prefix::{Counted, Curve, Intern, Lru, Order};
use planner_core::kv::trace::{Format, Options, Reader, Request, Unordered};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [trace, job] = &arguments[..] else {
        eprintln!("usage: kv_once TRACE ids|direct|curve");
        std::process::exit(2);
    };
    let options = Options {
        format: Format::Mooncake,
        block_tokens: 512,
        trace_block_tokens: None,
        skip_bad: 0,
        unordered: Unordered::Reject,
        regrid: false,
    };
    let mut reader = Reader::open(Path::new(trace), options).expect("a trace");
    let (mut request, mut intern, mut ids) =
        (Request::default(), Intern::default(), Vec::<u32>::new());
    let mut pool = Lru::new(10_000, Order::TailFirst);
    let mut curve = Curve::new(&[]);
    let (mut touches, mut hits) = (0, 0);
    while reader.next(&mut request).expect("a request") {
        ids.clear();
        ids.extend(request.keys.iter().map(|key| intern.id(*key)));
        touches += ids.len();
        match job.as_str() {
            "direct" => hits += pool.request(&ids, usize::MAX),
            "curve" => curve.request(&ids, Counted::ALL),
            _ => {}
        }
    }
    if job == "curve" {
        hits = curve.into_hits().hit_blocks[9_999] as usize;
    }
    println!("{touches} touches, {} distinct, {hits} hits", intern.len());
}
