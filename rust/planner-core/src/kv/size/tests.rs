use super::memory::Device;
use super::{Engine, MambaMode, Memory, Query, Report, size};
use crate::kv::format::KvFormat;
use crate::model::Model;

const GIB: f64 = 1_073_741_824.0;

/// A dense GQA model of the given shape.
pub(crate) fn dense(layers: u64, kv_heads: u64, head_dim: u64, span: &str) -> Model {
    let json = format!(
        r#"{{"name": "dense", "model_type": "llama", "hidden": 4096, "vocab": 128256,
        "tied_embeddings": false, "learned_positions": 0, "max_positions": 131072,
        "embedding_extra_params": 0, "final_norm_params": 4096, "head_extra_params": 0,
        "weight_dtype": "bf16", "layers": [{}], "kinds": [{{"name": "gqa", "norms": 2,
        "norm_params": 8192, "mixer": {{"kind": "attention", "heads": 32, "kv_heads": {kv_heads},
        "head_dim": {head_dim}, "v_head_dim": {head_dim}, "span": {span}, "bias_params": 0,
        "head_params": 0, "output_gate": false, "shares_kv": false, "shares_k_and_v": false,
        "indexer": null}}, "feed_forward": {{"kind": "dense", "intermediate": 14336,
        "gated": true, "bias_params": 0}}}}]}}"#,
        vec!["0"; layers as usize].join(",")
    );
    serde_json::from_str(&json).unwrap()
}

const FULL: &str = r#"{"kind": "full"}"#;

pub(crate) fn query(model: Model, max_len: u64, gib: f64) -> Query {
    Query {
        model,
        engine: Engine::Vllm,
        version: None,
        tp: 1,
        pp: 1,
        dcp: 1,
        pcp: 1,
        ep: 1,
        redundant_experts: 0,
        pp_layers: None,
        kv_format: KvFormat::Bf16,
        block_tokens: None,
        max_len,
        max_batched_tokens: 8192,
        max_seqs: 256,
        batches_in_flight: 1,
        mamba_mode: None,
        draft_tokens: 0,
        hybrid: true,
        free_fraction: 0.9,
        swa_ratio: 0.8,
        mamba_ratio: 0.9,
        memory: Memory::Available {
            bytes: vec![gib * GIB],
        },
    }
}

fn run(query: &Query) -> Report {
    size(query).unwrap()
}

#[test]
fn llama_8b_as_logged() {
    // vllm#10517: 3.81 GiB → 1,952 blocks (1,948..1,953 by the rounding of the GiB), 1.56 x.
    let r = run(&query(dense(32, 8, 128, FULL), 20_000, 3.81));
    assert_eq!(r.bytes_per_token_per_gpu, 131_072.0);
    assert_eq!(r.bytes_per_block, 2_097_152);
    assert_eq!(r.blocks_per_request, 1250);
    assert!((1948..=1953).contains(&r.num_blocks));
    assert_eq!(format!("{:.2}", r.max_concurrency), "1.56");
    // 29,000 tokens in 2.89 GiB: refused, 0.82 x.
    let r = run(&query(dense(32, 8, 128, FULL), 29_000, 2.89));
    assert!(!r.fits);
    assert_eq!(format!("{:.2}", r.max_concurrency), "0.82");
    assert_eq!(r.shortfall_blocks, 1813 - r.num_blocks);
}

#[test]
fn the_smallest_worker_decides() {
    let mut q = query(dense(32, 8, 128, FULL), 1600, 1.0);
    q.tp = 2;
    let page = 1_048_576.0;
    q.memory = Memory::Available {
        bytes: vec![100.5 * page, 63.9 * page],
    };
    assert_eq!(run(&q).num_blocks, 63);
}

#[test]
fn heads_are_cut_until_they_are_replicated() {
    let blocks = |tp| {
        let mut q = query(dense(64, 8, 128, FULL), 4096, 50.0);
        q.tp = tp;
        (run(&q).num_blocks, run(&q).bytes_per_token_per_gpu)
    };
    assert_eq!(blocks(4).1 * 4.0, blocks(1).1);
    assert_eq!(blocks(8), blocks(32)); // one head each; tenstorrent/vllm#50
}

#[test]
fn stages_hold_their_own_layers() {
    // vllm#32105: 92 layers, 202,752 tokens, 28.57 GiB a GPU. One stage needs 12 layers' worth,
    // 9.28 GiB; the old check asked 71.16 GiB of each worker and allowed 81,392 tokens.
    let mut q = query(dense(92, 8, 128, FULL), 202_752, 28.57);
    q.pp = 8;
    let r = run(&q);
    assert!(r.fits);
    assert!((r.request_bytes as f64 / GIB - 9.28).abs() < 0.005);
    q.version = Some((0, 14));
    let r = run(&q);
    assert!((r.request_bytes as f64 / GIB - 71.16).abs() < 0.005);
    assert!((r.max_len_that_fits as i64 - 81_392).abs() <= 16);
}

#[test]
fn a_negative_budget_is_no_blocks() {
    for engine in [
        Engine::Vllm,
        Engine::Sglang,
        Engine::Trtllm,
        Engine::Llamacpp,
    ] {
        let mut q = query(dense(32, 8, 128, FULL), 4096, -3.0);
        q.engine = engine;
        let r = run(&q);
        assert_eq!(
            (r.num_blocks, r.tokens, r.fits, r.usable_blocks),
            (0, 0, false, 0)
        );
        assert_eq!(r.max_concurrency, 0.0);
        assert!(r.shortfall_blocks > 0);
    }
}

#[test]
fn windows_and_context_ranks_exclude_each_other() {
    let mut q = query(
        dense(32, 8, 128, r#"{"kind": "window", "tokens": 4096}"#),
        131_072,
        10.0,
    );
    assert_eq!(run(&q).blocks_per_request, 769);
    q.tp = 4;
    q.dcp = 2;
    assert!(size(&q).is_err());
    q.hybrid = false;
    assert!(size(&q).is_ok());
}

#[test]
fn context_ranks_share_tokens() {
    let mut q = query(dense(32, 1, 128, FULL), 32_768, 10.0);
    q.tp = 8;
    let one = run(&q);
    q.dcp = 8;
    let eight = run(&q);
    assert_eq!(one.num_blocks, eight.num_blocks);
    assert_eq!(one.blocks_per_request, 8 * eight.blocks_per_request);
    assert_eq!(one.tokens * 8, eight.tokens);
}

#[test]
fn sglang_counts_tokens() {
    let mut q = query(dense(32, 8, 128, FULL), 4096, 1.0);
    q.engine = Engine::Sglang;
    assert_eq!(run(&q).tokens, 8192);
    q.block_tokens = Some(64);
    q.memory = Memory::Available {
        bytes: vec![GIB - 1.0],
    };
    assert_eq!((run(&q).tokens, run(&q).num_blocks), (8128, 127));
}

#[test]
fn trtllm_takes_a_share_of_free_memory() {
    let mut q = query(dense(32, 8, 128, FULL), 4096, 10.0);
    q.engine = Engine::Trtllm;
    assert_eq!(run(&q).num_blocks, (9.0 * GIB / (131_072.0 * 32.0)) as u64);
    q.block_tokens = Some(48);
    assert!(size(&q).is_err());
}

#[test]
fn predicted_terms_add_up() {
    let mut q = query(dense(32, 8, 128, FULL), 8192, 0.0);
    q.memory = Memory::Device(Device {
        total_bytes: 25_250_627_584.0,
        share: 0.9,
        weight_dtype: None,
        weights_bytes: None,
        graphs: true,
    });
    q.max_batched_tokens = 2048;
    q.version = Some((0, 19));
    let r = run(&q);
    let t = r.stages[0].memory.unwrap();
    let sum =
        t.weights_bytes + t.activation_bytes + t.graph_bytes + t.context_bytes + t.available_bytes;
    assert!((sum - t.usable_bytes).abs() < 1.0);
    assert!((t.weights_bytes / GIB - 14.96).abs() < 0.01);
    // The engine got 2,588 blocks.
    assert!(
        (r.num_blocks as f64 / 2588.0 - 1.0).abs() < 0.03,
        "{}",
        r.num_blocks
    );
}

#[test]
fn bad_fields_are_named() {
    let mut q = query(dense(4, 8, 128, FULL), 4096, 1.0);
    q.pp = 5;
    assert!(size(&q).is_err());
    q.pp = 2;
    q.pp_layers = Some(vec![3, 3]);
    assert!(size(&q).is_err());
    q.pp_layers = Some(vec![3, 1]);
    assert_eq!(size(&q).unwrap().bytes_per_token_per_gpu, 3.0 * 4096.0);
    q.mamba_mode = Some(MambaMode::None);
    q.max_len = 0;
    assert!(size(&q).is_err());
}
