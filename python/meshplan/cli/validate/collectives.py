"""``planner validate collectives``: the collective model against nccl-tests and RCCL-tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan import output
from meshplan.cli.models import print_table
from meshplan.errors import InputError

if TYPE_CHECKING:
    from meshplan.validate.collectives import Report


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("collectives")(collectives)


def collectives(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="nccl-tests or RCCL-tests output (text or JSON), tables of bus bandwidth "
            "(CSV: op,size_bytes,busbw,…), or folders of them."
        ),
    ],
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            help="Preset of the machine: NAME, or PATTERN=NAME for logs whose file or device name "
            "contains PATTERN. Default: what the names tell.",
        ),
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", help="Write every comparison (.csv, .parquet).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare measured collectives with the model, by operation, size and span.

    The error is that of the time: |predicted / measured - 1|. Algorithm and bus bandwidth are
    different quantities and are never averaged together.
    """
    from meshplan.validate.collectives import validate

    target = output.check(output_file) if output_file else None
    report = validate(logs, cluster or ())
    if not report.compared:
        reasons = "; ".join(f"{n} {why}" for why, n in report.skipped.items())
        raise InputError(
            "hold no measurement that can be compared" + (f" ({reasons})" if reasons else ""),
            field="logs",
            hint="name the machine with --cluster, such as --cluster h100",
        )
    if target:
        import polars as pl

        output.write([pl.DataFrame([row.row() for row in report.compared])], target)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    _print(report)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _line(first: str, figures: dict[str, Any]) -> tuple[str, str, str, str]:
    return first, str(figures["n"]), _percent(figures["median"]), _percent(figures["p90"])


def _print(report: Report) -> None:
    facts = report.as_dict()
    lines = [("operation, span, size", "n", "median", "p90")]
    lines += [_line(f"{g['operation']}, {g['span']}, {g['size']}", g) for g in facts["groups"]]
    print_table(lines, right=(1, 2, 3))
    print()
    lines = [("cluster, from 1 MiB", "n", "median", "p90")]
    lines += [_line(g["cluster"], g) for g in facts["clusters_from_1_mib"]]
    print_table(lines, right=(1, 2, 3))
    print()
    lines = [("all", "n", "median", "p90")]
    lines.append(_line("every size", facts["overall"]))
    lines.append(_line("from 1 MiB", facts["from_1_mib"]))
    lines.append(_line("from 1 MiB, several domains", facts["from_1_mib_several_domains"]))
    print_table(lines, right=(1, 2, 3))
    for why, n in facts["skipped"].items():
        print(f"not compared: {n} rows, {why}", file=sys.stderr)
