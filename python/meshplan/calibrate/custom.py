"""Fit the all-reduce kernels of serving engines to a table of measured times.

Run as ``python -m meshplan.calibrate.custom COLLECTIVES.csv FOLDER`` to write
``custom_all_reduce.toml``. The table has ``system, op, num_gpus, bytes, latency_us, note`` with
``custom_allreduce`` in ``op`` and the library at the end of ``note``. The equation is that of the
core (``rust/planner-core/src/collectives/custom.rs``).
"""

from __future__ import annotations

import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.calibrate.presets import SOURCE, SYSTEMS, inline
from meshplan.calibrate.robust import Fit, Parameter, fit
from meshplan.units import parse_bytes_per_s

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    Array = npt.NDArray[np.float64]

PARAMETERS = (
    Parameter("base_s", 4e-6, 2e-7, 2e-4),
    Parameter("hop_s", 3e-7, 1e-9, 2e-5),
    Parameter("one_shot_efficiency", 0.5, 0.01, 1.5),
    Parameter("two_shot_efficiency", 0.7, 0.01, 1.5),
    Parameter("ramp_s", 5e-7, 1e-9, 1e-4),
    Parameter("sync_s", 2e-6, 1e-8, 1e-4),
)
LARGEST = 1 << 26
"""Bytes above which engines call NCCL instead."""

MOST_RANKS = 8


def predict(curve: dict[str, float], ranks: Array, size: Array, link: float) -> Array:
    """Time of each all-reduce, s."""
    import numpy as np

    one = (ranks - 1.0) * size / (curve["one_shot_efficiency"] * link)
    two = 2.0 * (ranks - 1.0) / ranks * size / (curve["two_shot_efficiency"] * link)
    stream = np.minimum(one, two + curve["sync_s"])
    fixed = curve["base_s"] + (ranks - 1.0) * curve["hop_s"]
    times: Array = fixed + (np.sqrt(curve["ramp_s"]) + np.sqrt(stream)) ** 2
    return times


def fit_table(table: pl.DataFrame, link: float) -> dict[str, Fit]:
    """Fit every library in the rows of one device; versions of a library are taken together.

    Parameters
    ----------
    table
        Rows of one device.
    link
        Peak of one GPU's links, bytes/s each way.
    """
    import polars as pl

    small = (pl.col("bytes") <= LARGEST) & (pl.col("num_gpus") <= MOST_RANKS)
    library = pl.col("note").str.split(";").list.last().str.strip_chars().str.to_lowercase()
    rows = (
        table.filter((pl.col("op") == "custom_allreduce") & small & (pl.col("latency_us") > 0))
        .with_columns(library.alias("library"))
        .group_by("library", "num_gpus", "bytes")
        .agg(pl.col("latency_us").median())
        .sort("library", "num_gpus", "bytes")
    )
    fits = {}
    for (name,), part in sorted(rows.group_by("library"), key=lambda item: item[0]):
        if len(part) < 5 * len(PARAMETERS):
            continue
        ranks, size, time = (
            part[c].cast(float).to_numpy() for c in ("num_gpus", "bytes", "latency_us")
        )

        def model(values: Array, mask: Any, ranks: Array = ranks, size: Array = size) -> Array:
            names = (p.name for p in PARAMETERS)
            curve = dict(zip(names, map(float, values), strict=True))
            return predict(curve, ranks[mask], size[mask], link)

        fits[str(name)] = fit(model, list(PARAMETERS), time * 1e-6, scale=0.1)
    return fits


def write(table: pl.DataFrame) -> str:
    """Text of ``custom_all_reduce.toml``."""
    import polars as pl

    folder = resources.files("meshplan").joinpath("presets")
    clusters = tomllib.loads(folder.joinpath("clusters.toml").read_text("utf-8"))["clusters"]
    links = {c["device"]: parse_bytes_per_s(c["nvlink"]) for c in clusters.values()}
    lines = [
        "# All-reduce kernels of serving engines, written by meshplan.calibrate.custom from the",
        f"# {SOURCE}.",
        "# Equation: docs/collectives.md. 256 B to 64 MiB over 2 to 8 GPUs of one domain.",
        "",
    ]
    for system, device in SYSTEMS.items():
        fits = fit_table(table.filter(pl.col("system") == system), links[device])
        lines.append(f"[{device}]")
        for name, found in fits.items():
            lines += [f"# {found.provenance()}", f"{name} = {inline(found.values)}"]
        lines.append("")
    return "\n".join(lines)


def main(paths: list[str]) -> None:
    """Read the table named on the command line and write the preset into a folder."""
    import polars as pl

    table, folder = paths
    text = write(pl.read_csv(table))
    Path(folder, "custom_all_reduce.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
