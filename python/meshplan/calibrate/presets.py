"""Write ``presets/gemm.toml`` and ``presets/attention.toml`` from the published kernel tables.

Run as ``python -m meshplan.calibrate.presets GEMM.csv ATTENTION.csv FOLDER`` with tables in
the schema of `meshplan.calibrate.gemm` and `meshplan.calibrate.attention`, a ``system`` column in
each. Devices without rows of their own take the curves of the relative named in `RELATIVES`.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.calibrate import attention, gemm
from meshplan.units import parse_bytes_per_s, parse_flops

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from meshplan.calibrate.robust import Fit

SYSTEMS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""System in the tables → device preset."""

RELATIVES = {
    "v100-sxm-32gb": "a100-sxm-80gb",
    "a100-sxm-40gb": "a100-sxm-80gb",
    "h100-96gb": "h100-sxm",
    "h800-sxm": "h100-sxm",
    "h20": "h100-sxm",
    "mi300x": "h100-sxm",
    "mi325x": "h100-sxm",
    "mi355x": "b200-sxm",
}
"""Device without tables → device whose curves it takes."""

ALIKE = {"fp16": "bf16", "mxfp4": "nvfp4"}
"""Format without rows → format whose curve it takes."""

SOURCE = "aiconfigurator kernel tables (github.com/ai-dynamo/aiconfigurator, Apache-2.0)"


def peaks_of(device: dict[str, Any]) -> gemm.Peaks:
    """Datasheet rates of a device preset."""
    return gemm.Peaks(
        flops={k: parse_flops(v) for k, v in device["peak"].items()},
        memory_bytes_per_s=parse_bytes_per_s(device["memory_bandwidth"]),
        sms=float(device["sms"]),
    )


def inline(values: dict[str, float]) -> str:
    """Values as a TOML inline table, four figures each, whole numbers exact."""
    items = (f"{k} = {v if v == int(v) else float(f'{v:.4g}')!r}" for k, v in values.items())
    return "{ " + ", ".join(items) + " }"


def gemm_lines(name: str, device: dict[str, Any], fits: dict[str, Fit], of: str) -> Iterator[str]:
    """The GEMM curves of a device."""
    yield f"[devices.{name}.gemm]"
    for key in device["peak"]:
        found = fits.get(key) or fits.get(ALIKE.get(key, ""))
        if found is None:
            continue
        origin = of if key in fits else f"{of}, {ALIKE[key]}"
        yield f"# {origin}: {found.provenance()}"
        yield f"{key} = {inline(found.values)}"
    yield ""


def attention_lines(name: str, fits: dict[tuple[str, str, str], Fit], of: str) -> Iterator[str]:
    """The attention curves of a device."""
    for kind in ("prefill", "decode", "mla_prefill", "mla_decode"):
        for library in sorted({key[1] for key in fits if key[0] == kind}):
            yield f'[devices.{name}.{kind}."{library}"]'
            for kv in ("bf16", "fp8"):
                if found := fits.get((kind, library, kv)):
                    values = found.values
                    if kind.endswith("prefill"):
                        values = {"fp8_ratio": 1.0} | values
                    yield f"# {of}: {found.provenance()}"
                    yield f"{kv} = {inline(values)}"
            yield ""


HEAD = f"""\
# Curves of {{what}}, written by meshplan.calibrate.presets from the
# {SOURCE}.
# Equations: docs/kernels.md. Errors: median of the absolute relative error on the rows of the fit,
# then on rows held out of it.
"""


def write(gemms: pl.DataFrame, attentions: pl.DataFrame) -> tuple[str, str]:
    """Text of ``gemm.toml`` and ``attention.toml``."""
    import polars as pl

    text = resources.files("meshplan").joinpath("presets/devices.toml").read_text("utf-8")
    devices = tomllib.loads(text)["devices"]
    fitted: dict[str, Any] = {}
    for system, name in SYSTEMS.items():
        peaks = peaks_of(devices[name])
        mine = pl.col("system") == system
        fitted[name] = (
            gemm.fit_table(gemms.filter(mine), peaks),
            attention.fit_table(attentions.filter(mine), peaks),
        )
    multiply, attend = [HEAD.format(what="GEMM kernels")], [HEAD.format(what="attention kernels")]
    for name, device in devices.items():
        of = RELATIVES.get(name, name)
        label = "fitted" if of == name else f"inherited from {of}"
        multiply += gemm_lines(name, device, fitted[of][0], label)
        if of == name:
            attend += attention_lines(name, fitted[of][1], label)
    return "\n".join(multiply), "\n".join(attend)


def main(paths: list[str]) -> None:
    """Read the two tables named on the command line and write the two presets into a folder."""
    import polars as pl

    gemms, attentions, folder = paths
    texts = write(pl.read_csv(gemms), pl.read_csv(attentions))
    for name, text in zip(("gemm.toml", "attention.toml"), texts, strict=True):
        Path(folder, name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
