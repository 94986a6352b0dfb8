//! How a layer is split over ranks, and the GEMMs that come of it.

use crate::training::workload::CpComm;

/// How one layer is split over ranks, and what flows through it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Tensor-parallel degree t.
    pub tp: f64,
    /// Context-parallel degree c.
    pub cp: f64,
    /// Expert-parallel degree.
    pub ep: f64,
    /// Tensor-parallel degree inside an expert.
    pub etp: f64,
    /// Norms and dropout are split over tensor-parallel ranks.
    pub sequence_parallel: bool,
    /// Sequences in the micro-batch b.
    pub micro_batch: f64,
    /// Sequence length s.
    pub seq_len: f64,
    /// Rows of the fullest expert-parallel rank over the mean.
    pub imbalance: f64,
    /// Attention is unfused: the score matrix is materialised.
    pub unfused: bool,
    /// Dropout masks are drawn and kept.
    pub dropout: bool,
    /// Bytes of a saved GEMM input element (1 where the recipe keeps the quantised copy).
    pub saved_input_bytes: f64,
    /// Bytes of a saved input of the activation function.
    pub activation_input_bytes: f64,
    /// Exchange of keys and values over context-parallel ranks.
    pub cp_comm: CpComm,
}

impl Split {
    /// Tokens on a rank, T = b·s/c.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        self.micro_batch * self.seq_len / self.cp
    }

    /// Tokens that a norm sees: T, or T/t with sequence parallelism.
    #[must_use]
    pub fn norm_tokens(&self) -> f64 {
        if self.sequence_parallel {
            self.tokens() / self.tp
        } else {
            self.tokens()
        }
    }
}

/// `groups` GEMMs of m × k by k × n.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of the output.
    pub m: f64,
    /// Columns of the output.
    pub n: f64,
    /// Depth.
    pub k: f64,
    /// Independent GEMMs of this shape in one kernel.
    pub groups: f64,
    /// Runs in the recipe's compute format (linear layers do, routers and heads do not).
    pub quantized: bool,
}

impl Gemm {
    /// A linear layer in the compute format.
    pub(super) const fn linear(m: f64, n: f64, k: f64) -> Self {
        Self {
            m,
            n,
            k,
            groups: 1.0,
            quantized: true,
        }
    }

    /// Floating-point operations, 2·m·n·k·groups.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.m * self.n * self.k * self.groups
    }
}
