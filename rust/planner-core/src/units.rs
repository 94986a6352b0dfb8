//! Number formats and their sizes. SI inside: bytes, seconds, FLOP, tokens.

use serde::{Deserialize, Serialize};

/// A storage or compute format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// IEEE single precision.
    Fp32,
    /// TensorFloat-32 (compute only; stored as fp32).
    Tf32,
    /// IEEE half precision.
    Fp16,
    /// bfloat16.
    Bf16,
    /// 8-bit float with a scale per tensor or per row.
    Fp8,
    /// 8-bit float with a scale per block (DeepSeek 128-wide blocks, MXFP8 32-wide).
    Fp8Block,
    /// 4-bit float with an fp8 scale per 16 elements.
    Nvfp4,
    /// 4-bit float with a power-of-two scale per 32 elements.
    Mxfp4,
    /// 8-bit integer.
    Int8,
    /// 4-bit integer.
    Int4,
}

impl Dtype {
    /// Name as specs write it.
    ///
    /// ```
    /// use planner_core::units::Dtype;
    /// assert_eq!(Dtype::Fp8Block.name(), "fp8_block");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Fp8Block => "fp8_block",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Bytes per element, scales apart.
    ///
    /// ```
    /// use planner_core::units::Dtype;
    /// assert_eq!(Dtype::Bf16.bytes(), 2.0);
    /// assert_eq!(Dtype::Nvfp4.bytes(), 0.5);
    /// ```
    #[must_use]
    pub const fn bytes(self) -> f64 {
        match self {
            Self::Fp32 | Self::Tf32 => 4.0,
            Self::Fp16 | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Fp8Block | Self::Int8 => 1.0,
            Self::Nvfp4 | Self::Mxfp4 | Self::Int4 => 0.5,
        }
    }
}
