"""``planner kv``: KV-cache questions, one module per subcommand."""

from __future__ import annotations

import typer

from meshplan.cli.kv.replay import replay
from meshplan.cli.kv.size import size

app = typer.Typer(no_args_is_help=True, help="KV cache: capacity, block size, prefix hits.")
app.command("size")(size)
app.command("replay")(replay)


@app.callback()
def _kv() -> None:
    """KV cache: capacity, block size, prefix hits, scheduling, transfer."""
