"""Tables of layouts, wide or narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.report.console import NARROW, console, table
from meshplan.report.values import DEGREES, SHORT, phrase, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

RESULTS = ("step_time_s", "tokens_per_s_per_gpu", "mfu_ratio", "peak_memory_bytes")
"""Results that every table of layouts shows."""


def layouts(title: str, rows: Sequence[Mapping[str, Any]], *, extra: tuple[str, ...] = ()) -> Table:
    """Table of layouts, one a row.

    Parameters
    ----------
    title
        Title of the table.
    rows
        Rows of the table of layouts.
    extra
        Result columns to show besides the usual ones.
    """
    results = RESULTS + extra
    rows = [needed(row) for row in rows]
    if console().width < NARROW:
        made = table(title, ["layout", *(SHORT.get(name, name) for name in results)], left=1)
        for row in rows:
            made.add_row(phrase(row), *(value(name, row[name]) for name in results))
        return made
    names = _axes(rows)
    made = table(title, [SHORT.get(name, name) for name in (*names, *results)])
    for row in rows:
        cells = [_cell(name, row) for name in names]
        made.add_row(*cells, *(value(name, row[name]) for name in results))
    return made


def needed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Row whose peak is what must be there: without the cache that the allocator fills room with."""
    return {**row, "peak_memory_bytes": row["peak_memory_bytes"] - row["fragmentation_bytes"]}


def _axes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns worth showing: the main degrees, and others where a row uses them."""
    used = [n for n in DEGREES if n in ("dp", "tp", "pp") or any(row[n] != 1 for row in rows)]
    names = [*used, "micro_batch", "sharding", "recompute"]
    if any(row["pp"] > 1 for row in rows):
        names.append("schedule")
    if any(row["sequence_parallel"] for row in rows):
        names.append("sequence_parallel")
    return names


def _cell(name: str, row: Mapping[str, Any]) -> str:
    text = value(name, row[name])
    if name == "recompute" and text == "block":
        return f"block/{row['recompute_layers']}"
    if name == "sharding" and text == "hsdp":
        return f"hsdp/{row['shard_group']}"
    return text
