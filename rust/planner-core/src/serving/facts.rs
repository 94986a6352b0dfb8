//! The facts of a serving job that rules ask about, each computed once.

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::layout::shape::Shape;
use crate::model::{Mixer, Model, Span};

use super::load::{Arrivals, Load};

/// What rules know besides the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Heads, widths and experts.
    pub shape: Shape,
    /// GPUs that the job may use.
    pub gpus: u64,
    /// GPUs in a node.
    pub node: u64,
    /// Keys and values are kept as one latent vector (MLA).
    pub latent: bool,
    /// Some layer keeps the tokens of a window or chunk only.
    pub windowed: bool,
    /// Multi-token-prediction heads of the model.
    pub draft_heads: u64,
    /// Longest prompt, tokens.
    pub input: u64,
    /// Longest request, prompt and answer, tokens.
    pub context: u64,
    /// Clients of a closed loop, where they are given.
    pub clients: Option<u64>,
}

impl Facts {
    /// Collect the facts of a job.
    ///
    /// # Errors
    /// When a length is zero or the model cannot hold the longest request.
    pub fn new(model: &Model, cluster: &Cluster, load: &Load, gpus: u64) -> Result<Self> {
        let (input, context) = longest(load);
        for (field, value) in [
            ("gpus", gpus),
            ("isl", input),
            ("osl", context - input),
            ("model.layers", model.layers.len() as u64),
            ("cluster.gpus_per_node", cluster.gpus_per_node),
        ] {
            if value == 0 {
                return Err(Error::field(field, value, "must be at least 1"));
            }
        }
        if u32::try_from(gpus).is_err() {
            return Err(Error::field("gpus", gpus, "must be below 2^32"));
        }
        if let Some(most) = model.max_positions.filter(|&most| context > most) {
            let rule = format!("{} holds {most} tokens a request", model.name);
            return Err(Error::field("isl + osl", context, rule));
        }
        let spans = model.kinds.iter().filter_map(|kind| match &kind.mixer {
            Some(Mixer::Attention(a)) => Some(a.span),
            _ => None,
        });
        Ok(Self {
            shape: Shape::new(model)?,
            gpus,
            node: cluster.gpus_per_node,
            latent: model
                .kinds
                .iter()
                .any(|kind| matches!(kind.mixer, Some(Mixer::Mla(_)))),
            windowed: spans
                .into_iter()
                .any(|span| matches!(span, Span::Window(_) | Span::Chunk(_))),
            draft_heads: model.mtp.len() as u64,
            input,
            context,
            clients: match load.arrivals {
                Arrivals::Closed { concurrency } => Some(concurrency.into()),
                _ => None,
            },
        })
    }
}

/// Longest prompt and longest request of a load, tokens.
fn longest(load: &Load) -> (u64, u64) {
    match &load.arrivals {
        Arrivals::Trace { requests } => requests.iter().fold((0, 0), |(input, context), r| {
            (
                input.max(r.input.into()),
                context.max(u64::from(r.input) + u64::from(r.output)),
            )
        }),
        _ => {
            let input = u64::from(load.input.tokens);
            (input, input + u64::from(load.output.tokens))
        }
    }
}
