"""Hold the GEMM and attention curves of the presets against tables of measured kernels.

Schemas: `meshplan.calibrate.gemm` and `meshplan.calibrate.attention`, with a ``system`` column that
names the device as the published tables do or as the presets do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.calibrate.attention import KINDS, library
from meshplan.calibrate.gemm import FORMATS
from meshplan.calibrate.presets import SYSTEMS
from meshplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

GEMM_COLUMNS = ("system", "dtype", "m", "n", "k", "latency_us")
ATTENTION_COLUMNS = (
    *("system", "fw", "kernel", "phase", "attn_dtype", "kv_dtype", "batch", "isl", "step"),
    *("num_heads", "num_kv_heads", "head_dim", "latency_us"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Error of one device and one format or phase."""

    device: str
    what: str
    n: int
    median: float
    p90: float
    skipped: int

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {name: getattr(self, name) for name in self.__slots__}


def _read(path: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    import polars as pl

    try:
        reader = pl.read_parquet if path.suffix == ".parquet" else pl.read_csv
        frame = reader(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        rule = "cannot be read as a table: " + str(error).splitlines()[0]
        raise InputError(rule, field="table", value=str(path)) from error
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError("lacks the columns " + ", ".join(missing), field="table", value=str(path))
    return frame.filter(pl.col("latency_us") > 0)


def _times(device: str, requests: list[dict[str, Any]]) -> list[float]:
    from meshplan._core import kernel_times
    from meshplan.specs.base import build
    from meshplan.specs.cluster import Device

    preset = build(Device, _devices()[device])
    return kernel_times(json.dumps(preset.canonical()), json.dumps(requests))


def _group(device: str, what: str, errors: list[float], skipped: int) -> Group:
    import numpy as np

    return Group(
        device,
        what,
        len(errors),
        float(np.median(errors)) if errors else float("nan"),
        float(np.quantile(errors, 0.9)) if errors else float("nan"),
        skipped,
    )


def _errors(times: list[float], rows: list[dict[str, Any]]) -> list[float]:
    measured = (row["latency_us"] * 1e-6 for row in rows)
    return [abs(t / m - 1.0) for t, m in zip(times, measured, strict=True)]


def gemm(path: Path) -> Iterator[Group]:
    """Errors of the GEMM curves per device and format."""
    frame = _read(path, GEMM_COLUMNS)
    for (system, dtype), rows in sorted(frame.group_by("system", "dtype"), key=lambda g: g[0]):
        device = SYSTEMS.get(str(system), str(system))
        if str(dtype) not in FORMATS or device not in _devices():
            continue
        key, _, a_bytes, b_bytes, _ = FORMATS[str(dtype)]
        if key not in _devices()[device].get("gemm", {}):
            yield _group(device, str(dtype), [], len(rows))
            continue
        table = rows.to_dicts()
        requests = [
            {
                "kernel": "gemm",
                "dtype": key,
                **{name: float(row[name]) for name in ("m", "n", "k")},
                "groups": 1.0,
                "a_bytes": a_bytes,
                "b_bytes": b_bytes,
            }
            for row in table
        ]
        yield _group(device, str(dtype), _errors(_times(device, requests), table), 0)


def attention(path: Path) -> Iterator[Group]:
    """Errors of the attention curves per device and phase."""
    frame = _read(path, ATTENTION_COLUMNS)
    for (system, phase), rows in sorted(frame.group_by("system", "phase"), key=lambda g: g[0]):
        device = SYSTEMS.get(str(system), str(system))
        if str(phase) not in KINDS or device not in _devices():
            continue
        curves = _devices()[device].get(KINDS[str(phase)][0], {})
        table = [row for row in rows.to_dicts() if _kv(row) in curves.get(_library(row), {})]
        times = _times(device, [_attention(row, str(phase)) for row in table])
        yield _group(device, str(phase), _errors(times, table), len(rows) - len(table))


def _devices() -> dict[str, Any]:
    from meshplan.specs.presets import names, raw

    return {name: raw("devices", name, (), {}) for name in names("devices")}


def _library(row: dict[str, Any]) -> str:
    return library(row["fw"], row["kernel"])


def _kv(row: dict[str, Any]) -> str:
    return "fp8" if row["kv_dtype"] == "fp8" else "bf16"


def _attention(row: dict[str, Any], phase: str) -> dict[str, Any]:
    decode = "generation" in phase
    return {
        "kernel": "decode" if decode else "prefill",
        "library": _library(row),
        "kv_dtype": _kv(row),
        "fp8": row["attn_dtype"] == "fp8",
        "batch": float(row["batch"]),
        "tokens": int(row["isl"]) + (int(row["step"]) if decode else 0),
        "heads": float(row["num_heads"]),
        "kv_heads": float(row["num_kv_heads"]),
        "head_dim": float(row["head_dim"]),
        "latent": phase.startswith("mla"),
    }
