//! Time and memory of one layer of each kind for one micro-batch: the table that the sweep reuses.
//!
//! Depends on tp, cp, ep, etp, micro-batch and sequence parallelism only; everything else
//! (pp, vpp, dp, sharding, recomputation, schedule) combines these numbers.

use crate::model::work::{Gemm, LayerWork, Split};

use super::Estimator;
use super::clock::Clock;

/// Terms of the time that a micro-batch spends in a pass over a layer, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// GEMMs.
    pub gemm: f64,
    /// Attention cores, scans included.
    pub attention: f64,
    /// Memory-bound operators.
    pub memory_bound: f64,
    /// What kernel launches add where the CPU is slower than the GPU.
    pub launch: f64,
    /// Exposed tensor-parallel collectives.
    pub tp: f64,
    /// Exposed context-parallel exchange.
    pub cp: f64,
    /// Exposed expert dispatch and combine, at interleaved schedules apart.
    pub ep: f64,
    /// What the fullest expert-parallel rank takes beyond a balanced one; the terms above are those
    /// of balanced experts.
    pub imbalance: f64,
}

impl Terms {
    /// Sum of the terms other than dispatch and combine.
    #[must_use]
    pub fn without_ep(&self) -> f64 {
        self.gemm
            + self.attention
            + self.memory_bound
            + self.launch
            + self.tp
            + self.cp
            + self.imbalance
    }

    /// Terms of balanced experts, and the time of `self` beyond them as the imbalance: the sum is
    /// that of `self`. Dispatch and combine are the same in both.
    fn beyond(&self, even: &Self) -> Self {
        Self {
            imbalance: self.without_ep() - even.without_ep(),
            ..*even
        }
    }

    /// `self + n · other`.
    #[must_use]
    pub fn plus(mut self, n: f64, other: &Self) -> Self {
        self.gemm += n * other.gemm;
        self.attention += n * other.attention;
        self.memory_bound += n * other.memory_bound;
        self.launch += n * other.launch;
        self.tp += n * other.tp;
        self.cp += n * other.cp;
        self.ep += n * other.ep;
        self.imbalance += n * other.imbalance;
        self
    }
}

/// Time and memory of one unit (a layer, an embedding, a head) for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnitCosts {
    /// Forward pass.
    pub forward: Terms,
    /// Backward pass without recomputation.
    pub backward: Terms,
    /// What selective recomputation adds to the backward pass.
    pub selective: Terms,
    /// What full recomputation adds.
    pub full: Terms,
    /// Weight-gradient part of the backward pass, s.
    pub weight_gradient: f64,
    /// Activations kept without recomputation, bytes.
    pub saved_bytes: f64,
    /// Activations kept with selective recomputation, bytes.
    pub selective_bytes: f64,
    /// Activations kept with full recomputation, bytes.
    pub input_bytes: f64,
    /// FLOPs of a full recomputation.
    pub forward_flops: f64,
    /// FLOPs of a selective recomputation.
    pub selective_flops: f64,
}

/// The table entry of one (tp, cp, ep, etp, micro-batch, sequence parallelism).
#[derive(Clone, Debug, PartialEq)]
pub struct LayerCosts {
    /// Per layer kind.
    pub kinds: Vec<UnitCosts>,
    /// Embedding, on the first stage.
    pub embedding: UnitCosts,
    /// Final norm, LM head, loss and MTP heads, on the last stage.
    pub head: UnitCosts,
    /// Bytes of logits and loss workspace, on the last stage.
    pub logits_bytes: f64,
    /// Bytes of one pipeline message.
    pub boundary_bytes: f64,
    /// Rows of the fullest expert-parallel rank over the mean.
    pub imbalance_ratio: f64,
}

/// Key of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerKey {
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Expert-tensor-parallel degree.
    pub etp: u32,
    /// Sequences in a micro-batch.
    pub micro_batch: u32,
    /// Sequence parallelism.
    pub sequence_parallel: bool,
}

impl Estimator {
    /// Costs of one micro-batch in every kind of layer.
    #[must_use]
    pub fn layer_costs(&self, key: LayerKey) -> LayerCosts {
        let works = self.works(key);
        self.costs_of(key, &works, &Clock::new(self, key).dense_gemms(&works))
    }

    /// As [`Estimator::layer_costs`], with the GEMMs outside routed experts timed before.
    #[must_use]
    pub fn layer_costs_with(&self, key: LayerKey, dense: &DenseGemms) -> LayerCosts {
        self.costs_of(key, &self.works(key), dense)
    }

    /// Times of the GEMMs outside routed experts: they depend on tp, cp and micro-batch only.
    #[must_use]
    pub fn dense_gemms(&self, key: LayerKey) -> DenseGemms {
        Clock::new(self, key).dense_gemms(&self.works(key))
    }

    fn works(&self, key: LayerKey) -> Works {
        let split = self.split(key);
        let kinds = self.model.kinds.iter();
        Works {
            kinds: kinds
                .map(|kind| LayerWork::new(kind, self.hidden, &split))
                .collect(),
            head: self.head_work(&split),
            mtp: self.mtp_work(&split),
            split,
        }
    }

    fn costs_of(&self, key: LayerKey, works: &Works, dense: &DenseGemms) -> LayerCosts {
        let split = &works.split;
        let clock = Clock::new(self, key);
        let even = Split {
            imbalance: 1.0,
            ..*split
        };
        let works_of = works.kinds.iter().zip(&dense.kinds);
        let kinds: Vec<UnitCosts> = works_of
            .zip(&self.model.kinds)
            .map(|((work, &gemms), kind)| {
                let hot = unit(&clock, work, gemms);
                if split.imbalance == 1.0 || work.expert_gemms.is_empty() {
                    return hot;
                }
                let even = LayerWork::new(kind, self.hidden, &even);
                beyond(hot, &unit(&clock, &even, gemms))
            })
            .collect();
        let mut head = unit(&clock, &works.head, dense.head);
        if self.training.mtp {
            for mtp in &self.model.mtp {
                head = add(head, &kinds[mtp.kind]);
                head = add(head, &unit(&clock, &works.mtp, dense.mtp));
            }
        }
        let heads = if self.training.mtp {
            1.0 + self.model.mtp.len() as f64
        } else {
            1.0
        };
        let logits = split.tokens() * self.padded_vocab(key.tp) / split.tp;
        LayerCosts {
            kinds,
            embedding: unit(&clock, &self.embedding_work(split), GemmTimes::default()),
            head,
            logits_bytes: heads * logits * self.software.logits_bytes_per_entry,
            boundary_bytes: split.norm_tokens() * self.hidden * 2.0 * self.streams,
            imbalance_ratio: split.imbalance,
        }
    }

    /// How a layer is split for this key.
    pub(super) fn split(&self, key: LayerKey) -> Split {
        let local =
            f64::from(key.micro_batch) * self.training.seq_len as f64 / f64::from(key.cp * key.tp);
        Split {
            tp: f64::from(key.tp),
            cp: f64::from(key.cp),
            ep: f64::from(key.ep),
            etp: f64::from(key.etp),
            sequence_parallel: key.sequence_parallel && key.tp > 1,
            micro_batch: f64::from(key.micro_batch),
            seq_len: self.training.seq_len as f64,
            imbalance: self.imbalance(key.ep, local),
            unfused: self.unfused,
            dropout: self.training.dropout,
            saved_input_bytes: if self.quantized { 1.0 } else { 2.0 },
            activation_input_bytes: if self.quantized && self.software.quantized_activation_inputs {
                1.0
            } else {
                2.0
            },
            cp_comm: self.training.cp_comm,
        }
    }

    /// Final norm, LM head and cross-entropy: 14 B forward and 8 B backward per logit.
    fn head_work(&self, split: &Split) -> LayerWork {
        let tokens = split.tokens();
        let columns = self.padded_vocab(split.tp as u32) / split.tp;
        let rows = split.norm_tokens();
        LayerWork {
            gemms: vec![Gemm {
                m: tokens,
                n: columns,
                k: self.hidden,
                groups: 1.0,
                quantized: false,
            }],
            forward_bytes: 14.0 * tokens * columns + 5.0 * rows * self.hidden * 2.0,
            backward_bytes: 8.0 * tokens * columns + 6.0 * rows * self.hidden * 2.0,
            forward_kernels: 12.0,
            backward_kernels: 8.0,
            tp_messages: 0.5,
            tp_message_bytes: tokens * self.hidden * 2.0,
            ..LayerWork::default()
        }
    }

    /// Lookup forward, scatter-add backward, and the all-reduce of the vocabulary shards.
    fn embedding_work(&self, split: &Split) -> LayerWork {
        let pass = split.tokens() * self.hidden * 2.0;
        LayerWork {
            forward_bytes: 2.0 * pass,
            backward_bytes: 3.0 * pass,
            forward_kernels: 4.0,
            backward_kernels: 4.0,
            tp_messages: 0.5,
            tp_message_bytes: pass,
            ..LayerWork::default()
        }
    }

    /// Projection of [hidden; embedding] to hidden, and a second pass over the LM head.
    fn mtp_work(&self, split: &Split) -> LayerWork {
        let mut work = self.head_work(split);
        work.gemms.push(Gemm {
            m: split.tokens(),
            n: self.hidden / split.tp,
            k: 2.0 * self.hidden,
            groups: 1.0,
            quantized: true,
        });
        work
    }
}

/// Times of a unit's GEMMs, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GemmTimes {
    forward: f64,
    input_grad: f64,
    weight_grad: f64,
}

/// Times of all GEMMs outside routed experts, per unit.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseGemms {
    kinds: Vec<GemmTimes>,
    head: GemmTimes,
    mtp: GemmTimes,
}

/// What each unit makes a rank do.
struct Works {
    split: Split,
    kinds: Vec<LayerWork>,
    head: LayerWork,
    mtp: LayerWork,
}

impl GemmTimes {
    /// Backward of a GEMM is its input gradient (m × n by n × k) and its weight gradient (k × m by
    /// m × n).
    fn add(&mut self, clock: &Clock<'_>, gemms: &[Gemm], ratio: f64) {
        for g in gemms {
            let (m, n, k) = (g.m, g.n, g.k);
            self.forward += ratio * clock.gemm_s(g);
            self.input_grad += ratio * clock.gemm_s(&Gemm { n: k, k: n, ..*g });
            self.weight_grad += ratio
                * clock.gemm_s(&Gemm {
                    m: n,
                    n: k,
                    k: m,
                    ..*g
                });
        }
    }
}

impl Clock<'_> {
    fn dense_gemms(&self, works: &Works) -> DenseGemms {
        let times = |work: &LayerWork| {
            let mut times = GemmTimes::default();
            times.add(self, &work.gemms, 1.0);
            times
        };
        DenseGemms {
            kinds: works.kinds.iter().map(times).collect(),
            head: times(&works.head),
            mtp: times(&works.mtp),
        }
    }
}

/// Times a unit's work, from the times of its GEMMs outside routed experts. A fused attention core
/// costs 2.5 × its forward backward.
fn unit(clock: &Clock<'_>, work: &LayerWork, mut gemms: GemmTimes) -> UnitCosts {
    gemms.add(clock, &work.expert_gemms, clock.grouped_gemm_ratio());
    let GemmTimes {
        forward,
        input_grad,
        weight_grad,
    } = gemms;
    let core = clock.core(work);
    let forward_terms = clock.phase(work, forward, core.forward, false);
    let backward_terms = clock.phase(work, input_grad + weight_grad, core.backward, true);
    let saved = work.activations.saved;
    let kept = clock.selective_kept_ratio();
    let mut selective = Terms::default();
    if kept < 1.0 {
        selective.gemm = 0.5 * forward;
        selective.memory_bound = forward_terms.memory_bound;
    } else {
        selective.attention = core.forward;
    }
    let flops = work.flops();
    UnitCosts {
        forward: forward_terms,
        backward: backward_terms,
        selective,
        full: forward_terms,
        weight_gradient: weight_grad,
        saved_bytes: saved,
        selective_bytes: (saved - work.activations.core) * kept,
        input_bytes: work.activations.input,
        forward_flops: flops,
        selective_flops: if kept < 1.0 {
            0.5 * (flops - work.core_flops)
        } else {
            work.core_flops
        },
    }
}

/// The fullest rank's unit, its time beyond that of balanced experts as a term of its own.
fn beyond(hot: UnitCosts, even: &UnitCosts) -> UnitCosts {
    UnitCosts {
        forward: hot.forward.beyond(&even.forward),
        backward: hot.backward.beyond(&even.backward),
        selective: hot.selective.beyond(&even.selective),
        full: hot.full.beyond(&even.full),
        ..hot
    }
}

fn add(a: UnitCosts, b: &UnitCosts) -> UnitCosts {
    UnitCosts {
        forward: a.forward.plus(1.0, &b.forward),
        backward: a.backward.plus(1.0, &b.backward),
        selective: a.selective.plus(1.0, &b.selective),
        full: a.full.plus(1.0, &b.full),
        weight_gradient: a.weight_gradient + b.weight_gradient,
        saved_bytes: a.saved_bytes + b.saved_bytes,
        selective_bytes: a.selective_bytes + b.selective_bytes,
        input_bytes: a.input_bytes + b.input_bytes,
        forward_flops: a.forward_flops + b.forward_flops,
        selective_flops: a.selective_flops + b.selective_flops,
    }
}
