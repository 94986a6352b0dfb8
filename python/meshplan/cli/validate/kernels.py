"""``planner validate kernels``: GEMM and attention curves against tables of measured kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan.cli.models import print_table
from meshplan.errors import InputError

if TYPE_CHECKING:
    from meshplan.validate.kernels import Group


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("kernels")(kernels)


def kernels(
    gemm: Annotated[
        Path | None, typer.Option(help="Table: system,dtype,m,n,k,latency_us (CSV or Parquet).")
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(help="Table: system,fw,kernel,phase,attn_dtype,kv_dtype,batch,isl,step,…"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare measured kernels with the curves of the presets, per device and format."""
    from meshplan.validate import kernels as validate

    if gemm is None and attention is None:
        raise InputError("give --gemm, --attention or both", hint="such as --gemm gemm.csv")
    groups: dict[str, list[Group]] = {}
    if gemm:
        groups["gemm"] = list(validate.gemm(gemm))
    if attention:
        groups["attention"] = list(validate.attention(attention))
    if as_json:
        print(json.dumps({k: [g.as_dict() for g in v] for k, v in groups.items()}, indent=2))
        return
    for kind, found in groups.items():
        lines = [(kind, "", "n", "median", "p90", "no curve")]
        for g in found:
            figures = (f"{100 * g.median:.1f} %", f"{100 * g.p90:.1f} %") if g.n else ("", "")
            lines.append((g.device, g.what, str(g.n), *figures, str(g.skipped)))
        print_table(lines, right=(2, 3, 4, 5))
