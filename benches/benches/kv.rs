//! Trace replay against a plain Python `OrderedDict` in the same run, and what it scales to.
//!
//! With `PLANNER_SHARED` set the trace is the Mooncake conversation trace; otherwise one of its size
//! is made up. Ratios and counts are the result; times are reported only.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planner_core::kv::format::KvFormat;
use planner_core::kv::fragment::Lengths;
use planner_core::kv::prefix::{Counted, Curve, Intern, Lru, Order};
use planner_core::kv::schedule::{self, Policy, StepTime};
use planner_core::kv::size;
use planner_core::kv::sweep::{Axes, Sweep};
use planner_core::kv::trace::{Format, Options, Reader, Request, Unordered};
use planner_core::table::Table;

const OPTIONS: Options = Options {
    format: Format::Mooncake,
    block_tokens: 512,
    trace_block_tokens: None,
    skip_bad: 0,
    unordered: Unordered::Reject,
    regrid: false,
};
const CAPACITY: u64 = 10_000;

/// A trace as text, never given back: readers of benchmarks share it.
fn text() -> &'static [u8] {
    let shared = std::env::var_os("PLANNER_SHARED").map(PathBuf::from);
    let file = shared.map(|s| s.join("truth/traces/mooncake_conversation_trace.jsonl"));
    let text = file.and_then(|f| std::fs::read(f).ok());
    text.unwrap_or_else(made_up).leak()
}

/// 12,000 requests of conversations that grow turn by turn.
fn made_up() -> Vec<u8> {
    let mut talks: Vec<Vec<u64>> = Vec::new();
    let (mut next, mut seed, mut out) = (0, 1u64, String::new());
    for i in 0..12_000 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let pick = (seed >> 33) as usize % (talks.len() + 50);
        if pick >= talks.len() {
            talks.push(Vec::new());
        }
        let at = pick.min(talks.len() - 1);
        for _ in 0..1 + (seed >> 50) % 24 {
            talks[at].push(next);
            next += 1;
        }
        let tokens = talks[at].len() * 512;
        out += &format!(
            "{{\"timestamp\": {}, \"input_length\": {tokens}, \"output_length\": 340, \"hash_ids\": {:?}}}\n",
            i * 300,
            talks[at]
        );
        if talks[at].len() > 200 {
            talks.swap_remove(at);
        }
    }
    out.into_bytes()
}

/// Requests of the trace, read.
fn requests(text: &'static [u8]) -> Vec<Request> {
    let mut reader = Reader::from_bytes("trace", text, OPTIONS).expect("a trace");
    let (mut request, mut requests) = (Request::default(), Vec::new());
    while reader.next(&mut request).expect("a request") {
        requests.push(request.clone());
    }
    requests
}

/// Reads the trace and numbers its blocks, as a replay does: a request at a time. `spread` makes ids
/// of 64 bits out of the small ones, as hashes are.
fn parse(text: &'static [u8], intern: &mut Intern, spread: u64) -> u64 {
    intern.clear();
    let mut reader = Reader::from_bytes("trace", text, OPTIONS).expect("a trace");
    let (mut request, mut sum) = (Request::default(), 0);
    while reader.next(&mut request).expect("a request") {
        for key in &request.keys {
            sum += u64::from(intern.id(key.wrapping_mul(spread)));
        }
    }
    sum
}

/// A trace of dense ids, several times over with other ids each time; one request at a time, as a
/// reader gives them.
struct Times<'a> {
    ids: &'a [u32],
    ends: &'a [usize],
    times: u32,
}

impl Times<'_> {
    fn each(&self, mut request: impl FnMut(&[u32])) {
        let span = self.ids.iter().max().map_or(0, |m| m + 1);
        let mut shifted = Vec::new();
        for copy in 0..self.times {
            let mut start = 0;
            for end in self.ends {
                shifted.clear();
                shifted.extend(self.ids[start..*end].iter().map(|i| i + copy * span));
                request(&shifted);
                start = *end;
            }
        }
    }
}

/// Hits of one pool, in its memory.
fn lru(trace: &Times<'_>, pool: &mut Lru) -> usize {
    pool.clear(CAPACITY);
    let mut hits = 0;
    trace.each(|ids| hits += pool.request(ids, usize::MAX));
    hits
}

/// Hits at every capacity, in the memory of `curve`; those of one are given.
fn curve(trace: &Times<'_>, curve: &mut Curve) -> u64 {
    curve.clear();
    trace.each(|ids| curve.request(ids, Counted::ALL));
    curve.finish().hit_blocks[CAPACITY as usize - 1]
}

const PYTHON: &str = "
import sys, time
from collections import OrderedDict
requests = [[int(x) for x in line.split()] for line in open(sys.argv[1])]
start = time.process_time()
pool, hits = OrderedDict(), 0
for ids in requests:
    for i in ids:
        if i not in pool:
            break
        hits += 1
    for i in reversed(ids):
        if i in pool:
            pool.move_to_end(i)
        else:
            pool[i] = None
            if len(pool) > 10000:
                pool.popitem(last=False)
print(hits, time.process_time() - start)
";

/// Hits and seconds of the Python replay.
fn python(trace: &Times<'_>) -> Option<(usize, f64)> {
    let file = std::env::temp_dir().join(format!("planner-bench-{}.txt", std::process::id()));
    let mut lines = Vec::new();
    trace.each(|ids| {
        lines.push(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    });
    std::fs::write(&file, lines.join("\n")).ok()?;
    let out = Command::new("python3")
        .args(["-c", PYTHON])
        .arg(&file)
        .output()
        .ok();
    std::fs::remove_file(&file).ok()?;
    let text = String::from_utf8(out?.stdout).ok()?;
    let (hits, seconds) = text.trim().split_once(' ')?;
    Some((hits.parse().ok()?, seconds.parse().ok()?))
}

/// Time that this thread has run, s: what others do on the machine does not count. Elsewhere than on
/// Linux, the time since `start`.
fn cpu_s(start: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = stat.and_then(|s| s.split(' ').next()?.parse::<f64>().ok());
    ns.map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// Processor time of one run, s: a mean over at least a quarter second, since the kernel keeps the
/// books of a thread by the tick.
fn time_of<T>(mut work: impl FnMut() -> T) -> f64 {
    let clock = Instant::now();
    black_box(work());
    let start = cpu_s(clock);
    let mut runs = 0.0;
    while cpu_s(clock) - start < 0.25 {
        black_box(work());
        runs += 1.0;
    }
    (cpu_s(clock) - start) / runs
}

/// A new pool and a new curve for each run: what the first touch of memory adds.
fn fresh(trace: &Times<'_>) -> (f64, f64) {
    let direct = time_of(|| lru(trace, &mut Lru::new(CAPACITY, Order::TailFirst)));
    let whole = time_of(|| {
        let mut curve = Curve::new(&[]);
        trace.each(|ids| curve.request(ids, Counted::ALL));
        curve.into_hits().hit_blocks.len()
    });
    (direct, whole)
}

fn ratios(text: &'static [u8], trace: &Times<'_>, requests: &[Request]) {
    let n = trace.ends.len() as f64;
    let mut pool = Lru::new(CAPACITY, Order::TailFirst);
    let mut all = Curve::new(&[]);
    let (direct, whole) = (
        time_of(|| lru(trace, &mut pool)),
        time_of(|| curve(trace, &mut all)),
    );
    let hits = lru(trace, &mut pool);
    assert_eq!(hits as u64, curve(trace, &mut all));
    eprintln!("direct replay: {:.2} M requests/s", n / direct / 1e6);
    eprintln!("whole curve: {:.2} x one direct replay", whole / direct);
    let (first_direct, first_whole) = fresh(trace);
    eprintln!(
        "in fresh memory: direct replay {:.2} M requests/s, curve {:.2} x that",
        n / first_direct / 1e6,
        first_whole / first_direct
    );
    let mut intern = Intern::default();
    for (ids, spread) in [("small ids", 1), ("64-bit ids", 0x9e37_79b9_7f4a_7c15)] {
        let parsing = time_of(|| parse(text, &mut intern, spread));
        let rate = text.len() as f64 / parsing / 1e9;
        eprintln!("parse and intern, {ids}: {rate:.2} GB/s");
    }
    if let Some((found, seconds)) = python(trace) {
        assert_eq!(found, hits);
        eprintln!(
            "direct replay: {:.0} x Python; curve: {:.0} x",
            seconds / direct,
            seconds / whole
        );
    }
    let long = Times {
        times: 40,
        ..*trace
    };
    let (long_direct, long_whole) = (
        time_of(|| lru(&long, &mut pool)),
        time_of(|| curve(&long, &mut all)),
    );
    drop((pool, all));
    let (first_long_direct, first_long_whole) = fresh(&long);
    eprintln!(
        "forty times the trace: direct {:.1} x, curve {:.1} x the time; in fresh memory {:.1} x and {:.1} x",
        long_direct / direct,
        long_whole / whole,
        first_long_direct / first_direct,
        first_long_whole / first_whole
    );
    let played = time_of(|| play(requests));
    eprintln!("scheduler: {:.0} k requests/s", n / played / 1e3);
    let rows = requests
        .iter()
        .map(|r| (r.input_tokens, r.output_tokens, 1))
        .collect();
    let lengths = Lengths::merged(rows);
    let points = swept(&lengths, CHUNK) as f64;
    let rate = |seconds: f64| points / seconds / 1e6;
    eprintln!(
        "sweep: {points} points, {:.1} M points/s; all kept in one table {:.1}",
        rate(time_of(|| swept(&lengths, CHUNK))),
        rate(time_of(|| swept(&lengths, usize::MAX)))
    );
}

/// Rows that a consumer looks at together: they fit the second-level cache.
const CHUNK: usize = 4096;

/// Rows of a sweep of block sizes over the trace's lengths, `chunk` at a time.
fn swept(lengths: &Lengths, chunk: usize) -> usize {
    let query: size::Query = serde_json::from_str(QUERY).expect("a query");
    let axes = Axes {
        block_tokens: (0..12).map(|p| 1 << p).collect(),
        kv_format: vec![KvFormat::Bf16, KvFormat::Fp8],
        tp: vec![1, 2, 4, 8],
        pp: vec![1, 2],
        dcp: vec![1],
        share: vec![0.8, 0.85, 0.9, 0.95],
        max_len: (1..=8).map(|i| i * 16_384).collect(),
        chunk_tokens: vec![2048, 8192],
        prefix_tokens: (0..64).map(|i| i * 100).collect(),
    };
    let mut sweep = Sweep::new(&query, &axes, lengths).expect("a sweep");
    let (mut table, mut rows) = (Table::default(), 0);
    while sweep.fill(&mut table, chunk).expect("rows") {
        rows += black_box(&table).data[0].len();
    }
    rows
}

const QUERY: &str = r#"{"engine": "vllm", "version": null, "tp": 1, "pp": 1, "dcp": 1, "pcp": 1,
"ep": 1, "pp_layers": null, "kv_format": "bf16", "block_tokens": 16, "max_len": 131072,
"max_batched_tokens": 8192, "max_seqs": 256, "batches_in_flight": 1, "mamba_mode": null,
"draft_tokens": 0, "hybrid": true, "free_fraction": 0.9, "swa_ratio": 0.8, "mamba_ratio": 0.9,
"memory": {"kind": "device", "total_bytes": 85e9, "share": 0.9, "weight_dtype": null,
"weights_bytes": null, "graphs": true},
"model": {"name": "Llama-3.1-8B", "model_type": "llama", "hidden": 4096, "vocab": 128256,
"tied_embeddings": false, "learned_positions": 0, "max_positions": 131072,
"embedding_extra_params": 0, "final_norm_params": 4096, "head_extra_params": 0,
"weight_dtype": "bf16", "layers": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],
"kinds": [{"name": "gqa", "norms": 2, "norm_params": 8192, "mixer": {"kind": "attention",
"heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128, "span": {"kind": "full"},
"bias_params": 0, "head_params": 0, "output_gate": false, "shares_kv": false,
"shares_k_and_v": false, "indexer": null}, "feed_forward": {"kind": "dense",
"intermediate": 14336, "gated": true, "bias_params": 0}}]}}"#;

fn play(requests: &[Request]) -> u64 {
    let options = schedule::Options {
        policy: Policy::Vllm,
        blocks: 20_000,
        block_tokens: 512,
        max_seqs: 256,
        max_batched_tokens: 8192,
        long_prefill_tokens: 0,
        prefix_caching: true,
        reserve_prompt: true,
        watermark: 0.0,
        unhashed_first: false,
        conservativeness: 1.0,
        step: StepTime {
            base_s: 0.01,
            prefill_token_s: 1e-5,
            decode_s: 1e-5,
            context_token_s: 0.0,
        },
    };
    let mut rest = requests.iter();
    let mut next = |r: &mut Request| {
        Ok(rest.next().is_some_and(|t| {
            r.clone_from(t);
            true
        }))
    };
    schedule::run(&options, &mut next, &|| false)
        .expect("a schedule")
        .summary
        .finished
}

fn kv(c: &mut Criterion) {
    let text = text();
    let requests = requests(text);
    let (mut intern, mut ids, mut ends) = (Intern::default(), Vec::new(), Vec::new());
    for request in &requests {
        ids.extend(request.keys.iter().map(|k| intern.id(*k)));
        ends.push(ids.len());
    }
    let trace = Times {
        ids: &ids,
        ends: &ends,
        times: 1,
    };
    ratios(text, &trace, &requests);
    let mut group = c.benchmark_group("kv");
    group.throughput(Throughput::Elements(ends.len() as u64));
    let mut pool = Lru::new(CAPACITY, Order::TailFirst);
    group.bench_function("direct replay", |b| b.iter(|| lru(&trace, &mut pool)));
    let mut all = Curve::new(&[]);
    group.bench_function("whole curve", |b| b.iter(|| curve(&trace, &mut all)));
    group.sample_size(10);
    group.bench_function("scheduler", |b| b.iter(|| play(&requests)));
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("parse and intern", |b| {
        b.iter(|| parse(text, &mut intern, 1));
    });
}

criterion_group!(benches, kv);
criterion_main!(benches);
