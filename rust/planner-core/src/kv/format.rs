//! Formats of the KV cache and the exact bytes of a vector in each.

use serde::{Deserialize, Serialize};

/// How an engine stores keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    /// 4 bytes an element.
    Fp32,
    /// bf16 or fp16: 2 bytes an element.
    Bf16,
    /// fp8 with a scale per tensor: 1 byte an element, no scale bytes.
    Fp8,
    /// int8 with a scale per tensor.
    Int8,
    /// DeepSeek's packed latent: fp8 with an fp32 scale per 128 elements, rotary part in bf16.
    Fp8DsMla,
    /// Packed latent in fp4 with an fp8 scale per 16 elements, rotary part in fp8.
    Nvfp4DsMla,
    /// fp4 with an fp8 scale per 16 elements.
    Nvfp4,
    /// llama.cpp: 32 int8 elements and an fp16 scale in 34 bytes.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// llama.cpp: 32 int4 elements and an fp16 scale in 18 bytes.
    #[serde(rename = "q4_0")]
    Q4_0,
}

impl KvFormat {
    /// Bytes of a vector of `n` elements, scales included.
    ///
    /// ```
    /// use planner_core::kv::format::KvFormat;
    /// assert_eq!(KvFormat::Bf16.bytes(256), 512);
    /// assert_eq!(KvFormat::Nvfp4.bytes(256), 128 + 16);
    /// assert_eq!(KvFormat::Q8_0.bytes(576), 612); // 18 groups of 34 bytes
    /// ```
    #[must_use]
    pub const fn bytes(self, n: u64) -> u64 {
        match self {
            Self::Fp32 => 4 * n,
            Self::Bf16 => 2 * n,
            Self::Fp8 | Self::Int8 | Self::Fp8DsMla => n,
            Self::Nvfp4 | Self::Nvfp4DsMla => n.div_ceil(2) + n.div_ceil(16),
            Self::Q8_0 => n.div_ceil(32) * 34,
            Self::Q4_0 => n.div_ceil(32) * 18,
        }
    }

    /// Bytes of the vectors of `heads` heads of `d` elements. llama.cpp packs the heads of a token
    /// into one row, so that its groups of 32 may span two heads.
    ///
    /// ```
    /// use planner_core::kv::format::KvFormat;
    /// assert_eq!(KvFormat::Q8_0.row_bytes(8, 80), 680); // 20 groups of 34 bytes
    /// assert_eq!(KvFormat::Bf16.row_bytes(8, 128), 2048);
    /// ```
    #[must_use]
    pub const fn row_bytes(self, heads: u64, d: u64) -> u64 {
        match self {
            Self::Q8_0 | Self::Q4_0 => self.bytes(heads * d),
            _ => heads * self.bytes(d),
        }
    }

    /// Bytes of a latent of `rank` elements and a rotary part of `rope`; one vector for all heads.
    ///
    /// ```
    /// use planner_core::kv::format::KvFormat;
    /// assert_eq!(KvFormat::Bf16.latent_bytes(512, 64), 1152);
    /// assert_eq!(KvFormat::Fp8DsMla.latent_bytes(512, 64), 656); // 512 + 4·4 + 128
    /// assert_eq!(KvFormat::Nvfp4DsMla.latent_bytes(512, 64), 352); // 256 + 32 + 64
    /// ```
    #[must_use]
    pub const fn latent_bytes(self, rank: u64, rope: u64) -> u64 {
        match self {
            Self::Fp8DsMla => rank + rank.div_ceil(128) * 4 + 2 * rope,
            Self::Nvfp4DsMla => rank.div_ceil(2) + rank.div_ceil(16) + rope,
            _ => self.bytes(rank + rope),
        }
    }

    /// Bytes of a pooled key that is its own value (DeepSeek-V4): in the packed format all but the
    /// last 64 elements are fp8 with a one-byte scale per 64 elements, padded to 8.
    ///
    /// ```
    /// use planner_core::kv::format::KvFormat;
    /// assert_eq!(KvFormat::Fp8DsMla.pooled_bytes(512), 584); // 448 + 128 + 8
    /// ```
    #[must_use]
    pub const fn pooled_bytes(self, d: u64) -> u64 {
        match self {
            Self::Fp8DsMla => {
                let rope = if d < 64 { d } else { 64 };
                (d - rope) + 2 * rope + (d - rope).div_ceil(64).next_multiple_of(8)
            }
            _ => self.bytes(d),
        }
    }

    /// Bytes of an indexer key of `d` elements, which engines keep in fp8 with an fp32 scale per
    /// 128 elements whatever the cache format.
    ///
    /// ```
    /// assert_eq!(planner_core::kv::format::KvFormat::indexer_bytes(128), 132);
    /// ```
    #[must_use]
    pub const fn indexer_bytes(d: u64) -> u64 {
        d + d / 128 * 4
    }
}
