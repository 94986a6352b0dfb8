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
use planner_core::kv::prefix::{Curve, Intern, Lru, Order};
use planner_core::kv::schedule::{self, Policy, StepTime};
use planner_core::kv::size;
use planner_core::kv::sweep::{self, Axes};
use planner_core::kv::trace::{Format, Options, Reader, Request, Unordered};

const OPTIONS: Options = Options {
    format: Format::Mooncake,
    block_tokens: 512,
    trace_block_tokens: None,
    skip_bad: 0,
    unordered: Unordered::Reject,
};
const CAPACITY: u64 = 10_000;

/// A trace as text.
fn text() -> Vec<u8> {
    let shared = std::env::var_os("PLANNER_SHARED").map(PathBuf::from);
    let file = shared.map(|s| s.join("truth/traces/mooncake_conversation_trace.jsonl"));
    file.and_then(|f| std::fs::read(f).ok())
        .unwrap_or_else(made_up)
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

/// Requests of the trace with dense ids.
fn parse(text: &[u8]) -> (Vec<Vec<u32>>, Vec<Request>) {
    let mut reader = Reader::from_bytes("trace", text.to_vec(), OPTIONS).expect("a trace");
    let (mut intern, mut request) = (Intern::default(), Request::default());
    let (mut ids, mut requests) = (Vec::new(), Vec::new());
    while reader.next(&mut request).expect("a request") {
        ids.push(request.keys.iter().map(|k| intern.id(*k)).collect());
        requests.push(request.clone());
    }
    (ids, requests)
}

fn lru(ids: &[Vec<u32>]) -> usize {
    let mut pool = Lru::new(CAPACITY, Order::TailFirst);
    ids.iter().map(|r| pool.request(r, usize::MAX)).sum()
}

fn curve(ids: &[Vec<u32>]) -> u64 {
    let mut curve = Curve::new();
    ids.iter()
        .for_each(|r| curve.request(r, usize::MAX, |_| 512));
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
fn python(ids: &[Vec<u32>]) -> Option<(usize, f64)> {
    let file = std::env::temp_dir().join(format!("planner-bench-{}.txt", std::process::id()));
    let lines = ids
        .iter()
        .map(|r| r.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).ok()?;
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

/// The trace forty times over, ids made distinct.
fn forty(ids: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let span = ids.iter().flatten().max().map_or(0, |m| m + 1);
    let copy = |c: u32| {
        ids.iter()
            .map(move |r| r.iter().map(|i| i + c * span).collect())
    };
    (0..40).flat_map(copy).collect()
}

fn ratios(text: &[u8], ids: &[Vec<u32>], requests: &[Request]) {
    let n = ids.len() as f64;
    let (direct, whole) = (time_of(|| lru(ids)), time_of(|| curve(ids)));
    assert_eq!(lru(ids) as u64, curve(ids));
    let parsing = time_of(|| parse(text));
    eprintln!("direct replay: {:.2} M requests/s", n / direct / 1e6);
    eprintln!("whole curve: {:.2} x one direct replay", whole / direct);
    eprintln!(
        "parse and intern: {:.2} GB/s",
        text.len() as f64 / parsing / 1e9
    );
    if let Some((hits, seconds)) = python(ids) {
        assert_eq!(hits, lru(ids));
        eprintln!(
            "direct replay: {:.0} x Python; curve: {:.0} x",
            seconds / direct,
            seconds / whole
        );
    }
    let long = forty(ids);
    eprintln!(
        "forty times the trace: direct {:.1} x, curve {:.1} x the time",
        time_of(|| lru(&long)) / direct,
        time_of(|| curve(&long)) / whole
    );
    let played = time_of(|| play(requests));
    eprintln!("scheduler: {:.0} k requests/s", n / played / 1e3);
    let rows = requests
        .iter()
        .map(|r| (r.input_tokens, r.output_tokens, 1))
        .collect();
    let lengths = Lengths::merged(rows);
    let points = sweep_rows(&lengths);
    let swept = time_of(|| sweep_rows(&lengths));
    eprintln!(
        "sweep: {points} points, {:.1} M points/s",
        points as f64 / swept / 1e6
    );
}

/// Rows of a sweep of block sizes over the trace's lengths.
fn sweep_rows(lengths: &Lengths) -> usize {
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
    let table = sweep::sweep(&query, &axes, lengths).expect("a sweep");
    table.data[0].len()
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
    let (ids, requests) = parse(&text);
    ratios(&text, &ids, &requests);
    let mut group = c.benchmark_group("kv");
    group.throughput(Throughput::Elements(ids.len() as u64));
    group.bench_function("direct replay", |b| b.iter(|| lru(&ids)));
    group.bench_function("whole curve", |b| b.iter(|| curve(&ids)));
    group.sample_size(10);
    group.bench_function("scheduler", |b| b.iter(|| play(&requests)));
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("parse and intern", |b| b.iter(|| parse(&text)));
}

criterion_group!(benches, kv);
criterion_main!(benches);
