//! The facts of a model that `planner models show` prints, and the check that a spec makes sense.

use serde::Serialize;

use super::{FeedForward, Mixer, Model, kv, params};
use crate::error::{Error, Result};
use crate::units::Dtype;

/// Most parameters that make sense: a thousand times the largest model of today.
pub const MAX_PARAMS: u64 = 1_000_000_000_000_000;

/// Facts of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Display name.
    pub name: String,
    /// Hugging Face `model_type`.
    pub model_type: String,
    /// Language model and towers, multi-token-prediction heads apart.
    pub total_params: u64,
    /// Parameters of the language model that one token uses, word table and head included.
    pub active_params: u64,
    /// The same without input tables: what 2·N FLOPs per token counts.
    pub active_params_without_embedding: u64,
    /// Language model alone.
    pub language_params: u64,
    /// Word table.
    pub embedding_params: u64,
    /// LM head (0 where it is the word table).
    pub head_params: u64,
    /// Routed experts.
    pub expert_params: u64,
    /// Towers.
    pub tower_params: u64,
    /// Multi-token-prediction heads.
    pub mtp_params: u64,
    /// Format of the KV cache in the figures below.
    pub kv_dtype: Dtype,
    /// Bytes that a token adds if every layer keeps every token.
    pub kv_bytes_per_token: f64,
    /// Bytes that a token adds once all windows are full.
    pub kv_growth_bytes_per_token: f64,
    /// Bytes of indexer keys that a token adds.
    pub indexer_bytes_per_token: f64,
    /// Bytes of recurrent states of a sequence.
    pub state_bytes_per_sequence: f64,
    /// Format of the stored weights.
    pub weight_dtype: Dtype,
    /// Hidden size.
    pub hidden: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// The head is the word table.
    pub tied_embeddings: bool,
    /// Longest context that the config states.
    pub max_positions: Option<u64>,
    /// Decoder layers.
    pub layers: u64,
    /// Multi-token-prediction heads.
    pub mtp_heads: u64,
    /// Layer kinds, each with its number of layers.
    pub kinds: Vec<KindSummary>,
}

/// Facts of a layer kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindSummary {
    /// Name, such as `gqa+moe`.
    pub name: String,
    /// Decoder layers of this kind.
    pub count: u64,
    /// Parameters of one.
    pub params: u64,
    /// Parameters of one that a token uses.
    pub active_params: u64,
    /// KV bytes per token of one, if it keeps every token.
    pub kv_bytes_per_token: f64,
    /// Tokens of its window or chunk (0: none).
    pub window: u64,
    /// Bytes of its recurrent state.
    pub state_bytes: f64,
}

impl Model {
    /// Parse a canonical spec and check it.
    ///
    /// # Errors
    /// [`Error::Spec`] where the text is not a model, [`Error::Field`] where a number makes no sense.
    pub fn from_json(text: &str) -> Result<Self> {
        let model: Self = serde_json::from_str(text).map_err(|e| Error::Spec(e.to_string()))?;
        model.validate()?;
        Ok(model)
    }

    /// Check that the parts fit together and that no number is absurd.
    ///
    /// # Errors
    /// [`Error::Field`] with the first field that breaks its rule.
    pub fn validate(&self) -> Result<()> {
        let kinds = self.kinds.len();
        positive("hidden", self.hidden)?;
        positive("vocab", self.vocab)?;
        positive("layers", self.layers.len() as u64)?;
        let used = self.layers.iter().chain(self.mtp.iter().map(|m| &m.kind));
        if let Some(index) = used.copied().find(|&i| i >= kinds) {
            return Err(Error::field(
                "layers",
                index,
                format!("names one of {kinds} kinds"),
            ));
        }
        for kind in &self.kinds {
            check_mixer(kind.mixer.as_ref(), &kind.name)?;
            check_feed_forward(kind.feed_forward.as_ref(), &kind.name)?;
        }
        let counted = params::count(self);
        let all = params::add([counted.total(), counted.mtp]);
        if all > MAX_PARAMS {
            let rule = format!("must be at most {MAX_PARAMS}; a size in the model is absurd");
            return Err(Error::field("total_params", all, rule));
        }
        Ok(())
    }

    /// The facts of the model, with the KV cache in the given format.
    #[must_use]
    pub fn summary(&self, kv_dtype: Dtype) -> Summary {
        let counted = params::count(self);
        let b = kv_dtype.bytes();
        Summary {
            name: self.name.clone(),
            model_type: self.model_type.clone(),
            total_params: counted.total(),
            active_params: counted.active(),
            active_params_without_embedding: counted.active_matmul(),
            language_params: counted.language(),
            embedding_params: counted.embedding,
            head_params: counted.head,
            expert_params: counted.layers.expert,
            tower_params: counted.towers,
            mtp_params: counted.mtp,
            kv_dtype,
            kv_bytes_per_token: kv::bytes_per_token(self, b),
            kv_growth_bytes_per_token: kv::growth_bytes_per_token(self, b),
            indexer_bytes_per_token: kv::indexer_bytes_per_token(self, b),
            state_bytes_per_sequence: kv::state_bytes_per_sequence(self, b),
            weight_dtype: self.weight_dtype,
            hidden: self.hidden,
            vocab: self.vocab,
            tied_embeddings: self.tied_embeddings,
            max_positions: self.max_positions,
            layers: self.layers.len() as u64,
            mtp_heads: self.mtp.len() as u64,
            kinds: self.kind_summaries(&counted, b),
        }
    }

    fn kind_summaries(&self, counted: &params::ModelParams, b: f64) -> Vec<KindSummary> {
        let one = |(index, kind): (usize, &super::LayerKind)| {
            let kept = kv::layer(kind);
            KindSummary {
                name: kind.name.clone(),
                count: self.layers.iter().filter(|&&i| i == index).count() as u64,
                params: counted.kinds[index].total(),
                active_params: counted.kinds[index].active(),
                kv_bytes_per_token: (kept.elements_per_token + kept.window_elements_per_token) * b,
                window: kept.window,
                state_bytes: kept.state_bytes + kept.conv_elements * b,
            }
        };
        self.kinds.iter().enumerate().map(one).collect()
    }
}

fn positive(field: &str, value: u64) -> Result<()> {
    if value == 0 {
        return Err(Error::field(field, value, "must be at least 1"));
    }
    Ok(())
}

/// Heads of an attention layer must be there and divide.
fn check_mixer(mixer: Option<&Mixer>, kind: &str) -> Result<()> {
    match mixer {
        Some(Mixer::Attention(a)) => {
            positive(&format!("kinds.{kind}.heads"), a.heads)?;
            positive(&format!("kinds.{kind}.kv_heads"), a.kv_heads)?;
            if a.heads % a.kv_heads != 0 {
                let rule = format!("must divide heads = {}", a.heads);
                return Err(Error::field(
                    format!("kinds.{kind}.kv_heads"),
                    a.kv_heads,
                    rule,
                ));
            }
            if let Some(c) = &a.compress {
                positive(&format!("kinds.{kind}.compress.ratio"), c.ratio)?;
            }
            Ok(())
        }
        Some(Mixer::Mla(m)) => positive(&format!("kinds.{kind}.heads"), m.heads),
        Some(Mixer::Linear(_) | Mixer::Mamba2(_)) | None => Ok(()),
    }
}

/// A token must find as many experts as it chooses.
fn check_feed_forward(feed: Option<&FeedForward>, kind: &str) -> Result<()> {
    if let Some(FeedForward::Moe(m)) = feed {
        positive(&format!("kinds.{kind}.experts"), m.experts)?;
        positive(&format!("kinds.{kind}.top_k"), m.top_k)?;
        if m.top_k > m.experts {
            let rule = format!("must not exceed experts = {}", m.experts);
            return Err(Error::field(format!("kinds.{kind}.top_k"), m.top_k, rule));
        }
    }
    Ok(())
}
