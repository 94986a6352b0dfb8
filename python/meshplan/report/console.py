"""Where reports are printed: stdout for data, stderr for talk, whatever reads them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

PIPE_WIDTH = 160
"""Width of a report that no terminal reads, unless COLUMNS says otherwise."""

NARROW = 110
"""Below this width, a layout is one column of text."""


def console() -> Console:
    """Console on stdout: colours on a terminal only, and never under NO_COLOR."""
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(file=sys.stdout, width=wide, highlight=False, emoji=False, markup=False)


def table(title: str, headers: Iterable[str], *, left: int = 0) -> Table:
    """Plain table: the first `left` columns are text, the others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, header in enumerate(headers):
        made.add_column(header, justify="left" if index < left else "right", header_style="dim")
    return made


def show(*parts: RenderableType) -> None:
    """Print parts to stdout, a blank line between them."""
    out = console()
    for index, part in enumerate(parts):
        if index:
            out.print()
        out.print(part, soft_wrap=isinstance(part, str))


def note(text: str) -> None:
    """Say something on stderr."""
