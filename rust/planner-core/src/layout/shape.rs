//! What of a model divides: heads, widths, experts; read by the rules of training and of serving.

use crate::error::{Error, Result};
use crate::model::{FeedForward, Mixer, Model};

/// Counts of a model that degrees of parallelism must divide.
///
/// "Every width divides by t" is the same as "their greatest common divisor divides by t", so the
/// shape holds divisors. A divisor of 0 means that the model has nothing of the kind: 0 divides by
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Decoder layers.
    pub layers: u64,
    /// Common divisor of the query heads of softmax-attention layers.
    pub heads: u64,
    /// Distinct key/value head counts of softmax-attention layers with separate keys and values.
    pub kv_heads: Vec<u64>,
    /// Common divisor of the key, value and state heads of linear and state-space layers.
    pub state_heads: u64,
    /// Distinct state-space group counts.
    pub state_groups: Vec<u64>,
    /// Common divisor of dense and shared-expert feed-forward widths.
    pub width: u64,
    /// Common divisor of the widths of routed experts.
    pub expert_width: u64,
    /// Common divisor of the routed-expert counts (0: a dense model).
    pub experts: u64,
    /// Common divisor of the quotients experts / routing groups.
    pub expert_groups: u64,
    /// The LM head shares the embedding matrix.
    pub tied: bool,
}

impl Shape {
    /// The count that a rule's sentence names, as text; none: the name is not one of a shape.
    pub(crate) fn said(&self, name: &str) -> Option<String> {
        let list = |v: &[u64]| v.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let number = match name {
            "kv_heads" => return Some(list(&self.kv_heads)),
            "state_groups" => return Some(list(&self.state_groups)),
            "heads" => self.heads,
            "state_heads" => self.state_heads,
            "width" => self.width,
            "expert_width" => self.expert_width,
            "experts" => self.experts,
            "layers" => self.layers,
            _ => return None,
        };
        Some(number.to_string())
    }
}

/// Whether a degree divides a count.
pub(crate) const fn divides(divisor: u64, value: u64) -> bool {
    value.is_multiple_of(divisor)
}

/// Heads of one kind spread over t ranks, or are repeated on several of them.
pub(crate) fn spread(counts: &[u64], t: u32) -> bool {
    let t = u64::from(t);
    counts.iter().all(|&n| divides(t, n) || divides(n, t))
}

/// Greatest common divisor; gcd(0, n) = n.
///
/// ```
/// use planner_core::layout::shape::gcd;
/// assert_eq!(gcd(18_432, 2_048), 2_048);
/// assert_eq!(gcd(0, 7), 7);
/// ```
#[must_use]
pub const fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Shape {
    /// Collect the counts of a model.
    ///
    /// # Errors
    /// When a layer is of no kind.
    pub fn new(model: &Model) -> Result<Self> {
        let mut shape = Self {
            layers: model.layers.len() as u64,
            tied: model.tied_embeddings,
            ..Self::default()
        };
        let mtp = model.mtp.iter().map(|head| head.kind);
        for index in model.layers.iter().copied().chain(mtp) {
            let Some(kind) = model.kinds.get(index) else {
                let rule = "is not the index of a kind";
                return Err(Error::field("model.layers", index, rule));
            };
            if let Some(mixer) = &kind.mixer {
                shape.add_mixer(mixer);
            }
            if let Some(feed_forward) = &kind.feed_forward {
                shape.add_feed_forward(feed_forward);
            }
        }
        Ok(shape)
    }

    fn add_mixer(&mut self, mixer: &Mixer) {
        match mixer {
            Mixer::Attention(a) => {
                self.heads = gcd(self.heads, a.heads);
                insert(&mut self.kv_heads, a.kv_heads);
            }
            Mixer::Mla(a) => self.heads = gcd(self.heads, a.heads),
            Mixer::Linear(a) => self.state_heads = gcd(self.state_heads, gcd(a.k_heads, a.v_heads)),
            Mixer::Mamba2(a) => {
                self.state_heads = gcd(self.state_heads, a.heads);
                insert(&mut self.state_groups, a.groups);
            }
        }
    }

    fn add_feed_forward(&mut self, feed_forward: &FeedForward) {
        match feed_forward {
            FeedForward::Dense(f) => self.width = gcd(self.width, f.intermediate),
            FeedForward::Moe(f) => {
                self.width = gcd(self.width, f.shared_intermediate);
                self.expert_width = gcd(self.expert_width, f.intermediate);
                self.experts = gcd(self.experts, f.experts);
                let groups = f.groups.max(1);
                let per_group = if f.experts.is_multiple_of(groups) {
                    f.experts / groups
                } else {
                    1
                };
                self.expert_groups = gcd(self.expert_groups, per_group);
            }
        }
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub const fn is_moe(&self) -> bool {
        self.experts > 0
    }
}

fn insert(list: &mut Vec<u64>, value: u64) {
    if value > 0 && !list.contains(&value) {
        list.push(value);
        list.sort_unstable();
    }
}
