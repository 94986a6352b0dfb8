"""Fit GEMM curves to a table of measured kernels.

The table has one kernel a row: ``dtype, m, n, k, latency_us`` (CSV or Parquet); a column ``system``
names the device where a file holds several. The equation is that of the core
(``rust/planner-core/src/kernels/gemm.rs``); a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshplan.calibrate.robust import Fit, Parameter, fit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    Array = npt.NDArray[np.float64]

TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
"""Sides of the output tiles that kernel libraries use."""

SPLIT_MAX = 16.0
THROTTLE_S = 1e-3

FORMATS = {
    "bfloat16": ("bf16", "bf16", 2.0, 2.0, False),
    "bf16": ("bf16", "bf16", 2.0, 2.0, False),
    "fp16": ("fp16", "fp16", 2.0, 2.0, False),
    "fp8": ("fp8", "fp8", 1.0, 1.0, True),
    "fp8_block": ("fp8_block", "fp8", 1.0, 1.0, True),
    "nvfp4": ("nvfp4", "nvfp4", 0.5625, 0.5625, True),
    "mxfp4": ("mxfp4", "mxfp4", 0.53125, 0.53125, True),
    "sq": ("int8", "int8", 1.0, 1.0, True),
    "int8_wo": ("int8", "int8", 2.0, 1.0, False),
    "int4_wo": ("int4", "int4", 2.0, 0.53125, False),
}
"""Format in a table → (key of the curve, format of the peak, bytes of A, bytes of B, cast)."""

PARAMETERS = (
    Parameter("efficiency", 0.75, 0.05, 1.6),
    Parameter("k_half", 150.0, 1.0, 3000.0),
    Parameter("wave", 0.3, 1e-3, 1.0),
    Parameter("tile_half", 30.0, 1e-2, 1000.0),
    Parameter("split_k", 2000.0, 200.0, 1e5),
    Parameter("throttle", 0.05, 1e-3, 1.0),
    Parameter("memory_efficiency", 0.8, 0.1, 1.3),
    Parameter("base_s", 4e-6, 1e-7, 1e-3),
)
CAST = Parameter("cast_bytes", 3.0, 1e-2, 60.0)
LIBRARIES = ((4096.0, 32768.0), (4096.0, 65536.0), (8192.0, 32768.0), (8192.0, 65536.0))
"""Smallest and largest tile that a kernel library may have, elements."""


@dataclass(frozen=True)
class Peaks:
    """Datasheet rates that curves are relative to."""

    flops: dict[str, float]
    """Dense peak per format, FLOP/s."""
    memory_bytes_per_s: float
    """HBM bandwidth."""
    sms: float
    """Streaming multiprocessors."""


@dataclass(frozen=True)
class Shapes:
    """Columns of a table."""

    m: Array
    n: Array
    k: Array
    a_bytes: float
    b_bytes: float


def predict(
    curve: dict[str, float], shapes: Shapes, peak: float, memory: float, sms: float
) -> Array:
    """Time of each multiplication, s, cast of its input included."""
    import numpy as np

    m, n, k = shapes.m, shapes.n, shapes.k
    best = np.full(len(m), np.inf)
    limit = np.clip(k / curve["split_k"], 1.0, SPLIT_MAX)
    for a, b in TILES:
        if not curve["tile_min"] <= a * b <= curve["tile_max"]:
            continue
        x = np.ceil(m / a) * np.ceil(n / b) / sms
        split = np.where(x < 1.0, np.minimum(limit, 1.0 / x), 1.0)
        x = x * split
        waves = np.where(x <= 1.0, 1.0, x + curve["wave"] * (np.ceil(x) - x))
        side = 2.0 * a * b / (a + b)
        depth = k / split + curve["k_half"]
        best = np.minimum(best, waves * a * b * depth * (1.0 + curve["tile_half"] / side))
    compute = best * 2.0 * sms / (peak * curve["efficiency"])
    compute = compute * (1.0 + curve["throttle"] * compute / (compute + THROTTLE_S))
    moved = m * k * shapes.a_bytes + n * k * shapes.b_bytes + m * n * 2.0
    stream = moved / (curve["memory_efficiency"] * memory)
    cast = m * k * curve["cast_bytes"] / memory
    times: Array = curve["base_s"] + np.sqrt(compute**2 + stream**2) + cast
    return times


def fit_format(table: pl.DataFrame, dtype: str, peaks: Peaks) -> Fit:
    """Fit one curve.

    Parameters
    ----------
    table
        Rows of one device and one format.
    dtype
        Format as the table names it (a key of `FORMATS`).
    peaks
        Datasheet rates of the device.
    """
    _, peak_of, a_bytes, b_bytes, cast = FORMATS[dtype]
    m, n, k, measured = (table[c].cast(float).to_numpy() for c in ("m", "n", "k", "latency_us"))
    parameters = [*PARAMETERS, CAST] if cast else list(PARAMETERS)
    names = [p.name for p in parameters]
    best: Fit | None = None
    for tile_min, tile_max in LIBRARIES:
        fixed = {"tile_min": tile_min, "tile_max": tile_max, "cast_bytes": 0.0}

        def model(values: Array, rows: Any, fixed: dict[str, float] = fixed) -> Array:
            curve = {**fixed, **dict(zip(names, map(float, values), strict=True))}
            shapes = Shapes(m[rows], n[rows], k[rows], a_bytes, b_bytes)
            return predict(curve, shapes, peaks.flops[peak_of], peaks.memory_bytes_per_s, peaks.sms)

        found = fit(model, parameters, measured * 1e-6)
        if best is None or found.held_out_median < best.held_out_median:
            best = replace(found, values={**fixed, **found.values})
    assert best is not None
    return best


def fit_table(table: pl.DataFrame, peaks: Peaks) -> dict[str, Fit]:
    """Fit every format that a table of one device holds and the device has a peak for."""
    import polars as pl

    fits = {}
    for dtype in sorted(table["dtype"].unique().to_list(), key=lambda d: (d.endswith("_wo"), d)):
        key = FORMATS.get(dtype)
        if key is None or key[1] not in peaks.flops:
            continue
        rows = table.filter((pl.col("dtype") == dtype) & (pl.col("latency_us") > 0))
        if key[0] in fits and dtype.endswith("_wo"):
            continue  # a full 8-bit GEMM tells more than one with 8-bit weights only
        if len(rows) > 4 * (len(PARAMETERS) + 1):
            fits[key[0]] = fit_format(rows, dtype, peaks)
    return fits
