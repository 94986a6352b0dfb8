//! FLOPs that training a model needs, whatever the layout: what MFU is measured by.

use super::Model;
use super::work::{LayerWork, Split};
use crate::training::workload::CpComm;

/// FLOPs per token of a training step, forward and backward.
///
/// Three times the forward FLOPs of all GEMMs that a token passes (its top-k experts, LM head, and
/// multi-token-prediction heads when `mtp`) and of the causal attention cores at `seq_len`. Nothing
/// that only a layout or a kernel adds counts: padding of the vocabulary, replicated projections,
/// overfull experts, the masked half of a score matrix, recomputation.
///
/// Convention of Chowdhery et al. 2022 (PaLM), appendix B, with the causal half and windows taken
/// into account.
#[must_use]
pub fn training_flops_per_token(model: &Model, seq_len: u64, mtp: bool) -> f64 {
    let hidden = model.hidden as f64;
    let alone = Split {
        tp: 1.0,
        cp: 1.0,
        ep: 1.0,
        etp: 1.0,
        sequence_parallel: false,
        micro_batch: 1.0,
        seq_len: seq_len as f64,
        imbalance: 1.0,
        unfused: false,
        dropout: false,
        saved_input_bytes: 2.0,
        activation_input_bytes: 2.0,
        cp_comm: CpComm::P2p,
    };
    let kinds: Vec<f64> = model
        .kinds
        .iter()
        .map(|kind| {
            let work = LayerWork::new(kind, hidden, &alone);
            (work.flops() - work.tile_flops) / alone.tokens()
        })
        .collect();
    let head = 2.0 * hidden * model.vocab as f64;
    let layers: f64 = model.layers.iter().map(|&kind| kinds[kind]).sum();
    let mut forward = layers + head;
    if mtp {
        let projection = 2.0 * hidden * 2.0 * hidden;
        let heads = model.mtp.iter().map(|m| kinds[m.kind] + head + projection);
        forward += heads.sum::<f64>();
    }
    3.0 * forward
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama_3_8b() -> Model {
        let attention = serde_json::json!({
            "kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128,
            "span": {"kind": "full"}, "bias_params": 0, "head_params": 0, "output_gate": false,
            "shares_kv": false, "shares_k_and_v": false, "indexer": null,
        });
        let dense = serde_json::json!({
            "kind": "dense", "intermediate": 14336, "gated": true, "bias_params": 0,
        });
        serde_json::from_value(serde_json::json!({
            "name": "llama-3-8b", "model_type": "llama", "hidden": 4096, "vocab": 128_256,
            "tied_embeddings": false, "learned_positions": 0, "max_positions": 8192,
            "embedding_extra_params": 0, "final_norm_params": 4096, "head_extra_params": 0,
            "kinds": [{"name": "gqa+mlp", "mixer": attention, "feed_forward": dense, "norms": 2,
                       "norm_params": 8192}],
            "layers": vec![0; 32], "weight_dtype": "bf16",
        }))
        .expect("a model")
    }

    #[test]
    fn six_flops_a_matrix_parameter_and_the_causal_core() {
        // Matrices 7,504,658,432 (7.5e9 of 8.03e9: the word table and norms apart); core
        // 6·32 layers·4096·s at s = 8192 with the causal half.
        let matrices = 32.0 * (41_943_040.0 + 3.0 * 4096.0 * 14336.0) + 4096.0 * 128_256.0;
        let core = 6.0 * 32.0 * 4096.0 * 8192.0;
        let needed = training_flops_per_token(&llama_3_8b(), 8192, false);
        assert!((needed / (6.0 * matrices + core) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn short_sequences_leave_the_matrices() {
        let matrices = 32.0 * (41_943_040.0 + 3.0 * 4096.0 * 14336.0) + 4096.0 * 128_256.0;
        let needed = training_flops_per_token(&llama_3_8b(), 1, false);
        assert!((needed / (6.0 * matrices) - 1.0).abs() < 1e-4);
    }
}
