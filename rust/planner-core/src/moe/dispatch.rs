//! Time of the dispatch and of the combine of one MoE layer.
//!
//! Normal kernels send a token once to each node that needs it and spread it over NVLink there;
//! low-latency kernels send one message per (token, expert). Link bandwidths are arguments; what
//! the kernels reach of them is fitted: to the published DeepEP V1 tables (H800, 400 Gb/s NIC a GPU), or
//! to measurements on H100 and H200.

use super::monte_carlo::{Batch, Draw};
use super::reached::{Fit, Reached};
use super::routing::Routing;
use crate::collectives::expert_parallel::distinct_nodes;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Bandwidths of one GPU, one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// NVLink peak.
    pub nvlink_bytes_per_s: f64,
    /// NIC peak, the GPU's own share.
    pub nic_bytes_per_s: f64,
}

/// H800 with one ConnectX-7: 200 GB/s NVLink, 50 GB/s NIC.
pub const H800: Links = Links {
    nvlink_bytes_per_s: 200e9,
    nic_bytes_per_s: 50e9,
};

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// Once per node over the NIC, then NVLink (training, prefill).
    Normal,
    /// Once per (token, expert), no deduplication (decode).
    LowLatency,
    /// Low latency with one message per node, forwarded there (DeepEP pull request 500).
    LowLatencyForwarding,
}

/// Direction of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Tokens to experts.
    Dispatch,
    /// Results back.
    Combine,
}

/// Bytes of one message: fp8 with an fp32 scale per 128 elements (and 16 B of header in
/// low-latency kernels) on dispatch, bf16 on combine; or `element_bytes` wherever it is given.
///
/// ```
/// use planner_core::moe::dispatch::{Kernel, Phase, message_bytes};
/// assert_eq!(message_bytes(7168, Kernel::LowLatency, Phase::Dispatch, None), 7408.0);
/// assert_eq!(message_bytes(7168, Kernel::Normal, Phase::Dispatch, None), 7392.0);
/// assert_eq!(message_bytes(7168, Kernel::Normal, Phase::Combine, None), 14336.0);
/// ```
#[must_use]
pub fn message_bytes(hidden: u32, kernel: Kernel, phase: Phase, element_bytes: Option<f64>) -> f64 {
    let h = f64::from(hidden);
    if let Some(bytes) = element_bytes {
        return h * bytes;
    }
    match (phase, kernel) {
        (Phase::Combine, _) => 2.0 * h,
        (Phase::Dispatch, Kernel::Normal) => h + h / 128.0 * 4.0,
        (Phase::Dispatch, _) => h + h / 128.0 * 4.0 + 16.0,
    }
}

/// Copies of a token that a layer makes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Copies {
    /// Experts per token k.
    pub top_k: f64,
    /// Different ranks.
    pub distinct_ranks: f64,
    /// Different nodes.
    pub distinct_nodes: f64,
    /// Nodes.
    pub nodes: f64,
    /// Load of the fullest rank over the mean.
    pub rank_max_over_mean: f64,
}

impl Copies {
    /// Uniform routing, closed form.
    #[must_use]
    pub fn uniform(experts: u32, top_k: u32, ranks: u32, nodes: u32) -> Self {
        let distinct = |n: u32| distinct_nodes(u64::from(experts), u64::from(top_k), u64::from(n));
        Self {
            top_k: f64::from(top_k),
            distinct_ranks: distinct(ranks),
            distinct_nodes: distinct(nodes),
            nodes: f64::from(nodes),
            rank_max_over_mean: 1.0,
        }
    }
}

/// Bytes and seconds of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Exchange {
    /// Bytes that a rank sends over its NIC.
    pub nic_bytes: f64,
    /// Bytes that a rank sends over NVLink.
    pub nvlink_bytes: f64,
    /// Volume that DeepEP's tables divide by time: all node copies (or messages), local ones too.
    pub logical_bytes: f64,
    /// Time with the fullest rank as the last.
    pub time_s: f64,
    /// logical_bytes / time_s.
    pub logical_bytes_per_s: f64,
}

/// Bytes and time of one exchange of `tokens` tokens on each rank.
///
/// ```text
/// normal:       NIC  T·D_n·(1 − 1/N)·b      NVLink  T·D_r·b           t = t₀ + max(NIC, NVLink)·hot
/// low latency:  NIC  T·k·(1 − 1/N)·b        NVLink  T·k/N·b           t = t₀ + max(NIC, NVLink)·hot
/// ```
///
/// D_n, D_r different nodes and ranks of a token, N nodes, b bytes of a message, hot the fullest
/// rank over the mean (its NIC or NVLink port receives most).
///
/// ```
/// use planner_core::moe::dispatch::{Copies, H800, Kernel, Phase, exchange};
/// use planner_core::moe::reached::LOW_LATENCY;
/// let copies = Copies::uniform(256, 8, 32, 4);
/// let x = exchange(128, 7408.0, Kernel::LowLatency, &LOW_LATENCY, &copies, H800);
/// assert!((x.time_s / 155e-6 - 1.0).abs() < 0.03); // published: 155 µs
/// ```
#[must_use]
pub fn exchange(
    tokens: u32,
    bytes: f64,
    kernel: Kernel,
    reached: &Reached,
    copies: &Copies,
    links: Links,
) -> Exchange {
    let t = f64::from(tokens);
    let remote = 1.0 - 1.0 / copies.nodes;
    let (nic, nvlink, logical) = match kernel {
        Kernel::Normal => {
            let node = t * copies.distinct_nodes * bytes;
            let rank = t * copies.distinct_ranks * bytes;
            (
                node * remote,
                rank,
                if copies.nodes > 1.0 { node } else { rank },
            )
        }
        Kernel::LowLatency => {
            let all = t * copies.top_k * bytes;
            (all * remote, all / copies.nodes, all)
        }
        Kernel::LowLatencyForwarding => {
            let all = t * copies.top_k * bytes;
            (t * copies.distinct_nodes * remote * bytes, all, all)
        }
    };
    let nvlink_ratio = if copies.nodes > 1.0 {
        reached.forward_ratio
    } else {
        reached.nvlink_ratio
    };
    let slowest = (nic / (links.nic_bytes_per_s * reached.nic_ratio))
        .max(nvlink / (links.nvlink_bytes_per_s * nvlink_ratio));
    let time_s = reached.fixed_s(copies.nodes) + slowest * copies.rank_max_over_mean;
    Exchange {
        nic_bytes: nic,
        nvlink_bytes: nvlink,
        logical_bytes: logical,
        time_s,
        logical_bytes_per_s: logical / time_s,
    }
}

/// Tokens drawn at most, unless the fewest batches need more.
const TOKENS_DRAWN: u32 = 1 << 20;
/// Batches drawn at least, where as many are asked for.
const FEWEST_BATCHES: u32 = 4;

/// The question `planner moe dispatch` asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// The batch; its tokens are over all ranks.
    pub batch: Batch,
    /// Width of a token.
    pub hidden: u32,
    /// How messages travel.
    pub kernel: Kernel,
    /// Bandwidths.
    pub links: Links,
    /// Measurements that say what the kernels reach.
    #[serde(default)]
    pub fit: Fit,
    /// Bytes per element on dispatch; absent: fp8 with scales.
    #[serde(default)]
    pub element_bytes: Option<f64>,
    /// Batches and seed for routing that is not uniform.
    pub draw: Draw,
    /// Whether to build the matrix of one batch.
    #[serde(default)]
    pub matrix: bool,
}

/// Traffic and time of one MoE layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Copies of a token.
    pub copies: Copies,
    /// Tokens to experts.
    pub dispatch: Exchange,
    /// Results back.
    pub combine: Exchange,
    /// Tokens from rank (row) to rank (column), one per destination rank, in one batch; empty
    /// unless asked for.
    pub matrix: Vec<Vec<u32>>,
    /// Fullest row over the mean row.
    pub hottest_row: f64,
    /// Fullest column over the mean column.
    pub hottest_column: f64,
}

impl Dispatch {
    /// Answers.
    ///
    /// # Errors
    /// A batch that makes no sense, a width of zero, a bandwidth that is not positive.
    pub fn run(&self) -> Result<Answer> {
        self.batch.check()?;
        if let Some(capacity) = self.batch.capacity {
            // Megatron-LM asserts the same: its flex dispatcher, which calls DeepEP, drops nothing.
            return Err(Error::field(
                "batch.capacity",
                capacity,
                "a capacity goes with all-to-all dispatchers only; these kernels are dropless",
            ));
        }
        if self.hidden == 0 {
            return Err(Error::field("hidden", 0, "at least 1"));
        }
        for (name, x) in [
            ("links.nvlink_bytes_per_s", self.links.nvlink_bytes_per_s),
            ("links.nic_bytes_per_s", self.links.nic_bytes_per_s),
        ] {
            if !(1.0..=1e15).contains(&x) {
                return Err(Error::field(name, x, "must be above 0 bytes per second"));
            }
        }
        let copies = self.copies()?;
        let tokens = self.batch.tokens / self.batch.ranks.max(1);
        let side = |phase| {
            let element = if phase == Phase::Dispatch {
                self.element_bytes
            } else {
                None
            };
            let bytes = message_bytes(self.hidden, self.kernel, phase, element);
            let reached = self.fit.reached(self.kernel, phase);
            exchange(tokens, bytes, self.kernel, &reached, &copies, self.links)
        };
        let (dispatch, combine) = (side(Phase::Dispatch), side(Phase::Combine));
        let matrix = if self.matrix {
            self.batch.traffic(self.draw.seed)?
        } else {
            Vec::new()
        };
        let (hottest_row, hottest_column) = hottest(&matrix);
        Ok(Answer {
            copies,
            dispatch,
            combine,
            matrix,
            hottest_row,
            hottest_column,
        })
    }

    fn copies(&self) -> Result<Copies> {
        let b = &self.batch;
        let plain =
            b.routing == Routing::Uniform && b.group_limit.is_none() && b.placement.is_empty();
        let uniform = Copies::uniform(b.experts, b.top_k, b.ranks, b.nodes);
        // Large batches vary little: no more batches than it takes to draw a few million tokens.
        let enough = (TOKENS_DRAWN / b.tokens.max(1)).max(FEWEST_BATCHES);
        let drawn = b.simulate(&Draw {
            trials: self.draw.trials.min(enough),
            ..self.draw
        })?;
        if plain {
            return Ok(Copies {
                rank_max_over_mean: drawn.rank_max_over_mean.mean,
                ..uniform
            });
        }
        Ok(Copies {
            distinct_ranks: drawn.distinct_ranks.mean,
            distinct_nodes: drawn.distinct_nodes.mean,
            rank_max_over_mean: drawn.rank_max_over_mean.mean,
            ..uniform
        })
    }
}

/// Fullest row and column of a matrix over their means; 1 for an empty one.
fn hottest(matrix: &[Vec<u32>]) -> (f64, f64) {
    let n = matrix.len();
    let rows: Vec<f64> = matrix
        .iter()
        .map(|r| r.iter().map(|x| f64::from(*x)).sum())
        .collect();
    let columns: Vec<f64> = (0..n)
        .map(|c| matrix.iter().map(|r| f64::from(r[c])).sum())
        .collect();
    (
        super::shape::max_over_mean(&rows),
        super::shape::max_over_mean(&columns),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::reached::LOW_LATENCY;

    /// EP, dispatch GB/s, combine GB/s (published; logical bandwidth of the bottleneck link).
    const PUBLISHED_NORMAL: [(u32, f64, f64); 4] = [
        (8, 153.0, 158.0),
        (16, 43.0, 43.0),
        (32, 58.0, 57.0),
        (64, 51.0, 50.0),
    ];
    /// EP, dispatch µs and GB/s, combine µs and GB/s.
    const PUBLISHED_LOW_LATENCY: [(u32, f64, f64, f64, f64); 6] = [
        (8, 77.0, 98.0, 114.0, 127.0),
        (16, 118.0, 63.0, 195.0, 74.0),
        (32, 155.0, 48.0, 273.0, 53.0),
        (64, 173.0, 43.0, 314.0, 46.0),
        (128, 192.0, 39.0, 369.0, 39.0),
        (256, 194.0, 39.0, 360.0, 40.0),
    ];

    fn both(kernel: Kernel, tokens: u32, copies: &Copies) -> [Exchange; 2] {
        [Phase::Dispatch, Phase::Combine].map(|p| {
            exchange(
                tokens,
                message_bytes(7168, kernel, p, None),
                kernel,
                &Fit::Published.reached(kernel, p),
                copies,
                H800,
            )
        })
    }

    #[test]
    fn low_latency_tables() {
        for (ep, d_us, d_gb, c_us, c_gb) in PUBLISHED_LOW_LATENCY {
            let copies = Copies::uniform(256, 8, ep, ep / 8);
            let got = both(Kernel::LowLatency, 128, &copies);
            for (x, us, gb) in [(got[0], d_us, d_gb), (got[1], c_us, c_gb)] {
                // The volume formula over the published time is the published bandwidth.
                assert!(
                    (x.logical_bytes / us / 1e3 / gb - 1.0).abs() < 0.03,
                    "EP{ep} {gb}"
                );
                assert!(
                    (x.time_s * 1e6 / us - 1.0).abs() < 0.15,
                    "EP{ep}: {} {us}",
                    x.time_s * 1e6
                );
            }
        }
    }

    #[test]
    fn normal_tables() {
        for (ep, d_gb, c_gb) in PUBLISHED_NORMAL {
            // The published runs route to the best 4 groups; a group is a rank (EP 8) or a node.
            let mut copies = Copies::uniform(256, 8, ep, (ep / 8).max(1));
            if ep == 8 {
                copies.distinct_ranks = 3.954;
            }
            if ep == 64 {
                copies.distinct_nodes = 3.954;
            }
            let got = both(Kernel::Normal, 4096, &copies);
            for (x, gb) in [(got[0], d_gb), (got[1], c_gb)] {
                let bandwidth = x.logical_bytes_per_s / 1e9;
                assert!(
                    (bandwidth / gb - 1.0).abs() < 0.03,
                    "EP{ep}: {bandwidth} {gb}"
                );
            }
        }
    }

    #[test]
    fn low_latency_sends_k_messages_and_forwarding_fewer() {
        let copies = Copies::uniform(256, 8, 64, 8);
        let of = |kernel| exchange(128, 7408.0, kernel, &LOW_LATENCY, &copies, H800);
        let plain = of(Kernel::LowLatency);
        let forwarded = of(Kernel::LowLatencyForwarding);
        assert!((plain.nic_bytes / forwarded.nic_bytes - 8.0 / 5.2947).abs() < 1e-4);
    }
}
