//! Kernels as a caller outside the core asks for them.

use serde::{Deserialize, Serialize};

use super::Rates;
use super::attention::{Decode, Prefill, causal_pairs, decode_s, prefill_s};
use super::gemm::{Gemm, cast_s, gemm_s};
use crate::cluster::{Device, Library};
use crate::error::{Error, Result};
use crate::units::Dtype;

/// One kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "kernel")]
pub enum Request {
    /// Matrix multiplication with the cast of its input.
    Gemm {
        /// Format of the multiplication.
        dtype: Dtype,
        /// Rows.
        m: f64,
        /// Columns.
        n: f64,
        /// Depth.
        k: f64,
        /// Equal multiplications in one kernel.
        groups: f64,
        /// Bytes per element of A.
        a_bytes: f64,
        /// Bytes per element of B.
        b_bytes: f64,
    },
    /// Causal self-attention over whole prompts.
    Prefill(Attention),
    /// Attention of one new token per sequence.
    Decode(Attention),
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Kernel library, such as `sglang/flash`.
    pub library: String,
    /// Format of keys and values.
    pub kv_dtype: Dtype,
    /// Operands in fp8.
    pub fp8: bool,
    /// Sequences.
    pub batch: f64,
    /// Tokens of a sequence.
    pub tokens: u64,
    /// Query heads.
    pub heads: f64,
    /// KV heads.
    pub kv_heads: f64,
    /// Width of a head; 576 for latent attention.
    pub head_dim: f64,
    /// Latent attention (MLA).
    pub latent: bool,
}

/// Widths of latent attention: latent and rope, value of the latent, expanded key, expanded value.
const LATENT: [f64; 4] = [576.0, 512.0, 192.0, 128.0];

impl Request {
    /// Time on a device, s.
    ///
    /// # Errors
    /// When the device has no peak or curve for the kernel.
    pub fn time_s(&self, device: &Device) -> Result<f64> {
        match self {
            Self::Gemm {
                dtype,
                m,
                n,
                k,
                groups,
                a_bytes,
                b_bytes,
            } => {
                let rates = Rates::of(device, *dtype)?;
                let curve = device
                    .gemm
                    .get(dtype)
                    .ok_or_else(|| missing("gemm", dtype, device))?;
                let gemm = Gemm {
                    m: *m,
                    n: *n,
                    k: *k,
                    groups: *groups,
                    a_bytes: *a_bytes,
                    b_bytes: *b_bytes,
                    c_bytes: 2.0,
                };
                let cast = cast_s(m * k * groups, curve.cast_bytes, rates.memory_bytes_per_s);
                Ok(gemm_s(&gemm, curve, &rates) + cast)
            }
            Self::Prefill(a) => a.prefill_s(device),
            Self::Decode(a) => a.decode_s(device),
        }
    }
}

fn missing(what: &str, name: impl std::fmt::Debug, device: &Device) -> Error {
    Error::Missing {
        name: format!("device.{what}.{name:?}"),
        hint: format!("{} has no such curve", device.name),
    }
}

impl Attention {
    fn curve<'a, C>(&self, maps: &'a Library<C>, what: &str, device: &Device) -> Result<&'a C> {
        maps.get(&self.library)
            .and_then(|formats| formats.get(&self.kv_dtype))
            .ok_or_else(|| missing(what, (&self.library, self.kv_dtype), device))
    }

    fn prefill_s(&self, device: &Device) -> Result<f64> {
        let rates = Rates::of(device, Dtype::Bf16)?;
        let maps = if self.latent {
            &device.mla_prefill
        } else {
            &device.prefill
        };
        let curve = self.curve(maps, "prefill", device)?;
        let tokens = self.tokens as f64;
        let (key_dim, value_dim, width) = if self.latent {
            (LATENT[2], LATENT[3], LATENT[0] * self.heads)
        } else {
            (
                self.head_dim,
                self.head_dim,
                2.0 * self.kv_heads * self.head_dim,
            )
        };
        let prefill = Prefill {
            batch: self.batch,
            queries: tokens,
            keys: tokens,
            pairs: causal_pairs(self.tokens, self.tokens, None),
            heads: self.heads,
            key_dim,
            value_dim,
            kv_bytes_per_token: width * (2.0 + self.kv_dtype.bytes()),
            fp8: self.fp8,
        };
        Ok(prefill_s(&prefill, curve, &rates))
    }

    fn decode_s(&self, device: &Device) -> Result<f64> {
        let rates = Rates::of(device, Dtype::Bf16)?;
        let maps = if self.latent {
            &device.mla_decode
        } else {
            &device.decode
        };
        let curve = self.curve(maps, "decode", device)?;
        let (kv_heads, width, flops_per_pair) = if self.latent {
            (1.0, LATENT[0], 2.0 * (LATENT[0] + LATENT[1]))
        } else {
            (
                self.kv_heads,
                2.0 * self.kv_heads * self.head_dim,
                4.0 * self.head_dim,
            )
        };
        let decode = Decode {
            batch: self.batch,
            keys: self.tokens as f64,
            heads: self.heads,
            kv_heads,
            kv_bytes_per_token: width * self.kv_dtype.bytes(),
            flops_per_pair,
        };
        Ok(decode_s(&decode, curve, &rates))
    }
}
