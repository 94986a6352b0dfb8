"""Arguments that the subcommands of ``planner moe`` share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan.errors import InputError
from meshplan.units import UnitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LoadsArgument = Annotated[
    Path, typer.Argument(help="Counts per layer and expert, or token records: CSV, Parquet, JSON.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a chart: .html, .png or .svg.")]
Where = Annotated[
    list[str] | None, typer.Option("--where", help="LABEL=VALUE: read only such rows.")
]
SkipDense = Annotated[
    bool, typer.Option("--skip-dense", help="Leave out layers in which no expert has a load.")
]
MOST = 1 << 20
"""Most experts, ranks or nodes of a question."""

Ranks = Annotated[int, typer.Option(min=1, max=MOST, help="Ranks of the expert-parallel group.")]
Nodes = Annotated[int, typer.Option(min=1, max=MOST, help="Nodes that hold the ranks.")]


def labels(where: list[str] | None) -> dict[str, str]:
    """Read ``--where LABEL=VALUE``."""
    found = {}
    for item in where or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError("must be LABEL=VALUE", field="--where", value=item)
        found[key.strip().lower()] = value
    return found


def numbers(text: str, flag: str) -> list[float]:
    """Read numbers with commas between."""
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError("numbers with commas between", field=flag, value=text) from None
    if not all(map(math.isfinite, found)):
        raise InputError("finite numbers with commas between", field=flag, value=text)
    return found


def counts(text: str, flag: str) -> list[int]:
    """Read whole numbers with commas between."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError("whole numbers with commas between", field=flag, value=text) from None
    if not found or min(found) < 0 or max(found) >= 1 << 32:
        raise InputError("whole numbers from 0 to 2^32 − 1", field=flag, value=text)
    return found


def quantity(text: str, flag: str, parse: Callable[[str], float]) -> float:
    """Read a number with its unit."""
    try:
        return parse(text)
    except UnitError as error:
        raise InputError(error.rule, field=flag, value=text, hint=error.hint) from None


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print columns, aligned right, no wider than they need to be."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
