"""How ``planner kv`` prints: plain columns for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print right-aligned columns; the first one is left-aligned."""
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def note(text: str) -> None:
    """Say something on stderr."""
    print(f"note: {text}", file=sys.stderr)
