//! Matrix multiplication: C[m×n] = A[m×k]·B[k×n], `groups` times in one kernel.
//!
//! ```text
//! t   = t0 + √(th² + tm²),  th = tc·(1 + h·tc/(tc + 1 ms))   power throttle
//! tm  = groups·(m·k·bA + k·n·bB + m·n·bC) / (fb·HBM)
//! tc  = min over tiles a×b of  w·2ab(k/j + k0) / (peak/SMs · eff · s/(s + s0))
//! x   = groups·⌈m/a⌉·⌈n/b⌉·j / SMs                waves of tiles
//! j   = min(1/x, k/ksplit), at least 1, at most 16  split-k where tiles do not fill the device
//! w   = 1 for x ≤ 1, else x + q(⌈x⌉ − x)            wave quantisation
//! s   = 2ab/(a + b)                                 arithmetic intensity of a tile
//! ```
//!
//! Form after the tile model of the prototype study, with split-k, the power throttle and the
//! quadratic sum added; fitted by `meshplan.calibrate.gemm` to published kernel tables.

use super::{Rates, ceil};
use crate::cluster::GemmCurve;
use crate::error::{Error, Result};

/// One (grouped) matrix multiplication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of A and C (a mean over experts may be fractional).
    pub m: f64,
    /// Columns of B and C.
    pub n: f64,
    /// Depth.
    pub k: f64,
    /// Equal multiplications in one kernel: 1, or the experts of a rank.
    pub groups: f64,
    /// Bytes per element of A.
    pub a_bytes: f64,
    /// Bytes per element of B.
    pub b_bytes: f64,
    /// Bytes per element of C.
    pub c_bytes: f64,
}

impl Gemm {
    /// A dense multiplication with 16-bit operands and result.
    #[must_use]
    pub const fn half(m: f64, n: f64, k: f64) -> Self {
        Self {
            m,
            n,
            k,
            groups: 1.0,
            a_bytes: 2.0,
            b_bytes: 2.0,
            c_bytes: 2.0,
        }
    }

    /// Floating-point operations, 2·m·n·k·groups.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.m * self.n * self.k * self.groups
    }

    /// Compulsory bytes of A, B and C.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        let (m, n, k) = (self.m, self.n, self.k);
        self.groups * (m * k * self.a_bytes + k * n * self.b_bytes + m * n * self.c_bytes)
    }
}

/// An output tile, with the reciprocals that the hot path multiplies by.
struct Tile {
    area: f64,
    per_row: f64,
    per_column: f64,
    /// 1/s, with s = 2ab/(a + b).
    per_side: f64,
}

const fn tile(a: f64, b: f64) -> Tile {
    Tile {
        area: a * b,
        per_row: 1.0 / a,
        per_column: 1.0 / b,
        per_side: (a + b) / (2.0 * a * b),
    }
}

/// Output tiles that kernel libraries use.
const TILES: [Tile; 7] = [
    tile(64.0, 64.0),
    tile(64.0, 128.0),
    tile(128.0, 64.0),
    tile(128.0, 128.0),
    tile(128.0, 256.0),
    tile(256.0, 128.0),
    tile(256.0, 256.0),
];

/// Whether a kernel library of such tiles exists: a curve whose bounds hold no tile has no time.
///
/// # Errors
/// [`Error::Field`] with the bounds.
pub fn check(curve: &GemmCurve, name: &str) -> Result<()> {
    let held = |tile: &Tile| tile.area >= curve.tile_min && tile.area <= curve.tile_max;
    if TILES.iter().any(held) {
        return Ok(());
    }
    let bounds = format!("tile_min {} … tile_max {}", curve.tile_min, curve.tile_max);
    let rule = "must hold a tile: 4096, 8192, 16384, 32768 or 65536 elements";
    Err(Error::field(format!("device.gemm.{name}"), bounds, rule))
}

/// Slices of a split-k multiplication, at most.
const SPLIT_MAX: f64 = 16.0;

/// Time scale on which the power limit takes hold, s.
const THROTTLE_S: f64 = 1e-3;

/// Time of a matrix multiplication, s; the equation heads this module.
///
/// Symbols: `curve.efficiency` eff, `k_half` k0, `wave` q, `tile_half` s0, `split_k` ksplit,
/// `throttle` h, `memory_efficiency` fb, `base_s` t0.
///
/// ```
/// use planner_core::cluster::GemmCurve;
/// use planner_core::kernels::{Rates, gemm::{Gemm, gemm_s}};
/// let h100 = Rates { peak_flops: 989.4e12, memory_bytes_per_s: 3.35e12, sms: 132.0 };
/// let ideal = GemmCurve { efficiency: 1.0, k_half: 0.0, wave: 0.0, tile_half: 0.0,
///     tile_min: 4096.0, tile_max: 65536.0, split_k: 1e9, throttle: 0.0,
///     memory_efficiency: 1.0, base_s: 0.0, cast_bytes: 0.0 };
/// // 2·8192³ / 989.4e12 = 1.111 ms of arithmetic and 0.120 ms of memory, summed in quadrature.
/// let t = gemm_s(&Gemm::half(8192.0, 8192.0, 8192.0), &ideal, &h100);
/// assert!((t - 1.1178e-3).abs() < 1e-6);
/// ```
#[must_use]
pub fn gemm_s(gemm: &Gemm, curve: &GemmCurve, rates: &Rates) -> f64 {
    if gemm.flops() <= 0.0 {
        return 0.0;
    }
    let per_sm = rates.sms / rates.peak_flops;
    let (k, groups) = (gemm.k, gemm.groups / rates.sms);
    let split_limit = (k / curve.split_k).clamp(1.0, SPLIT_MAX);
    let mut compute = f64::INFINITY;
    for tile in &TILES {
        if tile.area < curve.tile_min || tile.area > curve.tile_max {
            continue;
        }
        let mut x = groups * ceil(gemm.m * tile.per_row) * ceil(gemm.n * tile.per_column);
        let mut depth = k;
        if x < 1.0 {
            let j = split_limit.min(1.0 / x);
            x *= j;
            depth /= j;
        }
        let waves = if x <= 1.0 {
            1.0
        } else {
            x + curve.wave * (ceil(x) - x)
        };
        let traffic = 1.0 + curve.tile_half * tile.per_side;
        let time = waves * tile.area * (depth + curve.k_half) * traffic;
        compute = compute.min(time);
    }
    compute *= 2.0 * per_sm / curve.efficiency;
    compute *= 1.0 + curve.throttle * compute / (compute + THROTTLE_S);
    let memory = gemm.bytes() / (curve.memory_efficiency * rates.memory_bytes_per_s);
    curve.base_s + (compute * compute + memory * memory).sqrt()
}

/// Time to cast `elements` activations into the operand format, s: `elements · cast_bytes / HBM`.
///
/// The fp8 and fp4 kernel tables contain this cast (about 4 bytes an element: read 16 bits for the
/// scale, read again, write 8); a GEMM whose input is already in the format does not pay it.
///
/// ```
/// use planner_core::kernels::gemm::cast_s;
/// assert_eq!(cast_s(1e9, 4.0, 4e12), 1e-3);
/// ```
#[must_use]
pub fn cast_s(elements: f64, cast_bytes: f64, memory_bytes_per_s: f64) -> f64 {
    elements * cast_bytes / memory_bytes_per_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H100: Rates = Rates {
        peak_flops: 989.4e12,
        memory_bytes_per_s: 3.35e12,
        sms: 132.0,
    };
    const CURVE: GemmCurve = GemmCurve {
        efficiency: 0.9,
        k_half: 138.0,
        wave: 0.29,
        tile_half: 2.0,
        tile_min: 4096.0,
        tile_max: 32768.0,
        split_k: 4900.0,
        throttle: 0.26,
        memory_efficiency: 0.87,
        base_s: 2.8e-6,
        cast_bytes: 0.0,
    };

    #[test]
    fn a_wave_by_hand() {
        // 132 tiles of 128×256 at k = 4096: one wave of 2·32768·4096·132/989.4e12 s.
        let curve = GemmCurve {
            efficiency: 1.0,
            k_half: 0.0,
            wave: 1.0,
            tile_half: 1e-9,
            tile_min: 32768.0,
            split_k: 1e9,
            throttle: 0.0,
            memory_efficiency: 1e9,
            base_s: 0.0,
            ..CURVE
        };
        let one = gemm_s(&Gemm::half(128.0 * 132.0, 256.0, 4096.0), &curve, &H100);
        assert!((one - 2.0 * 32768.0 * 4096.0 * 132.0 / 989.4e12).abs() < 1e-12);
        // One tile more costs a whole second wave.
        let two = gemm_s(&Gemm::half(128.0 * 133.0, 256.0, 4096.0), &curve, &H100);
        assert!((two / one - 2.0).abs() < 1e-9);
    }

    #[test]
    fn bounds_without_a_tile_are_refused() {
        assert!(check(&CURVE, "bf16").is_ok());
        let none = GemmCurve {
            tile_min: 70_000.0,
            ..CURVE
        };
        let said = check(&none, "bf16").unwrap_err().to_string();
        assert!(said.contains("device.gemm.bf16"), "{said}");
    }

    #[test]
    fn limits() {
        assert_eq!(gemm_s(&Gemm::half(0.0, 1024.0, 1024.0), &CURVE, &H100), 0.0);
        // One row: the time of the weights.
        let row = gemm_s(&Gemm::half(1.0, 16384.0, 16384.0), &CURVE, &H100);
        let weights = 2.0 * 16384.0 * 16384.0 / (0.87 * 3.35e12);
        assert!(row > weights && row < 1.1 * weights);
        // A huge multiplication: never above the peak, throttled below 90 % of it.
        let big = Gemm::half(32768.0, 32768.0, 32768.0);
        let rate = big.flops() / gemm_s(&big, &CURVE, &H100) / 989.4e12;
        assert!(rate > 0.65 && rate < 0.9, "{rate}");
    }

    #[test]
    fn grouped_is_no_faster_than_the_same_rows_together() {
        let one = Gemm::half(4096.0, 4096.0, 7168.0);
        let eight = Gemm {
            m: 512.0,
            groups: 8.0,
            ..one
        };
        assert!(gemm_s(&eight, &CURVE, &H100) >= gemm_s(&one, &CURVE, &H100));
    }

    proptest! {
        #[test]
        fn grows_with_every_side(m in 1.0..9000.0_f64, n in 1.0..9000.0_f64, k in 1.0..9000.0_f64) {
            let t = gemm_s(&Gemm::half(m, n, k), &CURVE, &H100);
            prop_assert!(t.is_finite() && t > CURVE.base_s);
            prop_assert!(gemm_s(&Gemm::half(2.0 * m, n, k), &CURVE, &H100) >= t * 0.999);
            prop_assert!(gemm_s(&Gemm::half(m, 2.0 * n, k), &CURVE, &H100) >= t * 0.999);
            prop_assert!(gemm_s(&Gemm::half(m, n, 2.0 * k), &CURVE, &H100) >= t * 0.999);
            let flops = Gemm::half(m, n, k).flops();
            prop_assert!(flops / t < 989.4e12);
        }
    }
}
