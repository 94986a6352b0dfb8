"""``planner measure``: kernel and collective times of this machine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan import output
from meshplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

app = typer.Typer(add_completion=False)

PARTS = ("gemm", "attention", "copy", "collectives")


@app.command()
def measure(
    folder: Annotated[Path, typer.Option("--output", help="Folder for the tables.")],
    only: Annotated[
        str, typer.Option("--only", help="Parts to measure, comma-separated.")
    ] = ",".join(PARTS),
    device: Annotated[
        str, typer.Option("--device", help="cuda, cpu, or auto (cuda where there is one).")
    ] = "auto",
    ranks: Annotated[
        int | None, typer.Option("--ranks", help="Ranks of collectives (default: GPUs, or 2).")
    ] = None,
    each: Annotated[float, typer.Option("--each", help="Seconds per measurement.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure GEMMs, attention, copies and collectives, and write what `calibrate` reads.

    Needs PyTorch. With CUDA it times the GPU and NCCL over the GPUs of this host; without, the same
    path runs on the CPU and gloo.
    """
    parts = only.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(
            "must name parts", field="--only", value=only, hint="known: " + ", ".join(PARTS)
        )
    if not 0 < each <= 60:
        raise InputError("must be above 0 and at most 60 seconds", field="--each", value=str(each))
    try:
        import torch
    except ImportError:
        raise InputError("needs PyTorch", hint="pip install 'meshplan[measure]'") from None
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cuda", "cpu") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError("is not a device of this machine", field="--device", value=device)
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for part in parts:
        start = time.perf_counter()
        rows = list(_rows(part, device, ranks, each))
        path = folder / f"{part}.csv"
        _write(rows, path)
        counts[part] = {"rows": len(rows), "file": str(path)}
        elapsed = time.perf_counter() - start
        print(f"{part}: {len(rows)} rows in {elapsed:.1f} s, {path}", file=sys.stderr)
    if as_json:
        print(json.dumps({"device": device, "parts": counts}, indent=2))


def _rows(part: str, device: str, ranks: int | None, each: float) -> Iterable[dict[str, Any]]:
    import torch

    from meshplan.measure import collectives, kernels

    if part == "gemm":
        return kernels.gemms(device, ("bf16", "fp16") if device == "cuda" else ("bf16",), each)
    if part == "attention":
        return kernels.attentions(device, each)
    if part == "copy":
        return kernels.copies(device, each)
    count = ranks or (torch.cuda.device_count() if device == "cuda" else 2)
    if count < 2:
        print("collectives: one device, nothing to measure", file=sys.stderr)
        return []
    return collectives.collectives("nccl" if device == "cuda" else "gloo", count, each)


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import polars as pl

    if rows:
        output.write([pl.DataFrame(rows)], path)
