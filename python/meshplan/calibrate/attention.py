"""Fit attention curves to a table of measured kernels.

The table has one kernel a row: ``fw, kernel, phase, attn_dtype, kv_dtype, batch, isl, step,
num_heads, num_kv_heads, head_dim, latency_us``. ``phase`` is ``context``, ``generation``,
``mla_context`` or ``mla_generation``; ``isl + step`` tokens are attended to in generation. The
equations are those of the core (``rust/planner-core/src/kernels/attention.rs``).

Tables of some engines mix layers with a sliding window among full ones and do not say which; a
Cauchy loss lets those rows go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.calibrate.robust import Fit, Parameter, fit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from meshplan.calibrate.gemm import Peaks

    Array = npt.NDArray[np.float64]

PREFILL = (
    Parameter("efficiency", 0.6, 0.02, 3.0),
    Parameter("seq_half", 100.0, 0.2, 6000.0),
    Parameter("dim_half", 10.0, 0.02, 400.0),
    Parameter("tail", 1.0, 1e-3, 5.0),
    Parameter("tile_s", 1e-6, 1e-9, 1e-4),
    Parameter("memory_efficiency", 0.8, 0.05, 2.0),
    Parameter("base_s", 8e-6, 1e-6, 1e-3),
)
DECODE = (
    Parameter("memory_efficiency", 0.8, 0.05, 2.0),
    Parameter("compute_efficiency", 0.3, 1e-3, 5.0),
    Parameter("head_s", 1e-6, 1e-9, 1e-4),
    Parameter("query_head_s", 1e-8, 1e-12, 1e-5),
    Parameter("serial", 0.03, 1e-5, 5.0),
    Parameter("ramp_s", 1e-6, 1e-9, 1e-4),
    Parameter("base_s", 8e-6, 1e-7, 1e-3),
)
MLA_LATENT, MLA_KEY, MLA_VALUE = 576.0, 192.0, 128.0
"""Widths of latent attention: latent and rope, expanded key, expanded value."""

KINDS = {
    "context": ("prefill", PREFILL),
    "mla_context": ("mla_prefill", PREFILL),
    "generation": ("decode", DECODE),
    "mla_generation": ("mla_decode", DECODE),
}
"""Phase in a table → (map of the device, parameters)."""

LEAST_ROWS = 40
"""Rows below which a library is not fitted."""


@dataclass(frozen=True)
class Shapes:
    """Columns of a table, as arrays."""

    batch: Array
    queries: Array
    keys: Array
    heads: Array
    kv_heads: Array
    key_dim: Array
    value_dim: Array
    kv_bytes: float
    latent: bool

    @classmethod
    def of(cls, table: pl.DataFrame, phase: str, kv_bytes: float) -> Shapes:
        """Shapes of the rows of one phase."""
        import numpy as np

        def column(name: str) -> Array:
            values: Array = table[name].cast(float).to_numpy()
            return values

        latent = phase.startswith("mla")
        dim = column("head_dim")
        return cls(
            batch=column("batch"),
            queries=column("isl"),
            keys=column("isl") + (column("step") if "generation" in phase else 0.0),
            heads=column("num_heads"),
            kv_heads=np.ones(len(dim)) if latent else column("num_kv_heads"),
            key_dim=np.full(len(dim), MLA_KEY) if latent else dim,
            value_dim=np.full(len(dim), MLA_VALUE) if latent else dim,
            kv_bytes=kv_bytes,
            latent=latent,
        )

    def rows(self, mask: Any) -> Shapes:
        """The rows of a mask."""
        arrays = {
            name: value[mask] if hasattr(value, "shape") else value
            for name, value in vars(self).items()
        }
        return Shapes(**arrays)


def predict_prefill(curve: dict[str, float], s: Shapes, peaks: Peaks) -> Array:
    """Time of causal prefill attention, s."""
    import numpy as np

    width = s.key_dim + s.value_dim
    core = curve["efficiency"] * curve.get("fp8_ratio", 1.0) * peaks.flops["bf16"]
    rate: Array = core * width / (width + 2.0 * curve["dim_half"])
    pairs = s.queries * (s.queries + 1.0) / 2.0 + s.queries * curve["seq_half"] / 2.0
    every = 2.0 * width * s.batch * s.heads * pairs / rate
    longest = 2.0 * width * 128.0 * (s.keys + curve["seq_half"]) * peaks.sms / rate
    tail = curve["tail"] * longest
    tiles = s.batch * s.heads * np.ceil(s.queries / 128.0)
    turns = tiles * curve["tile_s"] / peaks.sms
    rows = MLA_LATENT * s.heads if s.latent else s.kv_heads * width
    token = rows * (2.0 + s.kv_bytes)
    moved = s.batch * s.queries * s.heads * width * 2.0 + s.batch * s.keys * token
    stream = moved / (curve["memory_efficiency"] * peaks.memory_bytes_per_s)
    times: Array = curve["base_s"] + np.sqrt(every**2 + tail**2 + turns**2 + stream**2)
    return times


def predict_decode(curve: dict[str, float], s: Shapes, peaks: Peaks) -> Array:
    """Time of decode attention, s."""
    import numpy as np

    token = s.kv_heads * (MLA_LATENT if s.latent else 2.0 * s.key_dim)
    pair = 2.0 * (MLA_LATENT + 512.0) if s.latent else 4.0 * s.key_dim
    memory: Array = s.batch * s.keys * token * s.kv_bytes
    memory = memory / (curve["memory_efficiency"] * peaks.memory_bytes_per_s)
    compute = s.batch * s.heads * s.keys * pair
    compute = compute / (curve["compute_efficiency"] * peaks.flops["bf16"])
    turns = s.kv_heads * curve["head_s"] + s.heads * curve["query_head_s"]
    turns = s.batch * turns / peaks.sms
    alone = s.keys * token * s.kv_bytes / s.kv_heads
    serial = curve["serial"] * alone * peaks.sms / peaks.memory_bytes_per_s
    core = np.sqrt(memory**2 + compute**2 + turns**2 + serial**2)
    times: Array = curve["base_s"] + (np.sqrt(curve["ramp_s"]) + np.sqrt(core)) ** 2
    return times


def library(fw: str, kernel: str) -> str:
    """Name of a kernel library: the engine that calls it and the family it belongs to.

    >>> library("sglang/0.5.14", "fa3"), library("vllm/0.24.0", "vllm_flashinfer_trtllmprefill")
    ('sglang/flash', 'vllm/trtllm')
    """
    families = (
        ("triton", "triton"),
        ("torch_flow_flashinfer", "flashinfer"),
        ("trtllm", "trtllm"),
        ("torch_flow", "trtllm"),
        ("default", "trtllm"),
        ("flashinfer", "flashinfer"),
    )
    family = next((name for part, name in families if part in kernel), "flash")
    return f"{fw.split('/')[0]}/{family}"


def fit_library(table: pl.DataFrame, phase: str, kv: str, peaks: Peaks) -> Fit:
    """Fit one curve to the rows of one library, phase and KV format.

    Where some rows have fp8 operands and others not, their ratio is one more parameter.
    """
    import numpy as np

    kind, parameters = KINDS[phase]
    shapes = Shapes.of(table, phase, 1.0 if kv == "fp8" else 2.0)
    fp8 = (table["attn_dtype"] == "fp8").to_numpy()
    prefill = kind.endswith("prefill")
    free = list(parameters)
    if prefill and fp8.any():
        free.append(Parameter("fp8_ratio", 1.3, 0.2, 4.0))
    names = [p.name for p in free]
    predict = predict_prefill if prefill else predict_decode

    def model(values: Array, rows: Any) -> Array:
        curve = dict(zip(names, map(float, values), strict=True))
        part = shapes.rows(rows)
        if "fp8_ratio" not in curve:
            return predict(curve, part, peaks)
        plain = predict(curve | {"fp8_ratio": 1.0}, part, peaks)
        return np.where(fp8[rows], predict(curve, part, peaks), plain)

    measured = table["latency_us"].cast(float).to_numpy() * 1e-6
    return fit(model, free, measured, loss="cauchy", scale=0.06)


def fit_table(table: pl.DataFrame, peaks: Peaks) -> dict[tuple[str, str, str], Fit]:
    """Fit every library of one device: keys are (map of the device, library, KV format)."""
    import polars as pl

    named = table.filter(pl.col("latency_us") > 0).with_columns(
        pl.struct("fw", "kernel")
        .map_elements(lambda r: library(r["fw"], r["kernel"]), return_dtype=pl.String)
        .alias("library"),
        pl.when(pl.col("kv_dtype") == "fp8")
        .then(pl.lit("fp8"))
        .otherwise(pl.lit("bf16"))
        .alias("kv"),
    )
    fits = {}
    keys = ["phase", "library", "kv"]
    for (phase, name, kv), rows in sorted(named.group_by(keys), key=lambda item: item[0]):
        if phase in KINDS and len(rows) >= LEAST_ROWS:
            fits[KINDS[str(phase)][0], str(name), str(kv)] = fit_library(
                rows, str(phase), str(kv), peaks
            )
    return fits
