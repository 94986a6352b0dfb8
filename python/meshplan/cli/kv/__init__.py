"""``planner kv``: KV-cache questions, one module per subcommand."""

from __future__ import annotations

import typer

from meshplan.cli.kv.replay import replay
from meshplan.cli.kv.schedule import schedule
from meshplan.cli.kv.size import size
from meshplan.cli.kv.sweep import sweep
from meshplan.cli.kv.transfer import transfer
from meshplan.cli.naming import FlagCommand

app = typer.Typer(no_args_is_help=True, help="KV cache: capacity, block size, prefix hits.")
app.command("size", cls=FlagCommand)(size)
app.command("sweep", cls=FlagCommand)(sweep)
app.command("replay", cls=FlagCommand)(replay)
app.command("schedule", cls=FlagCommand)(schedule)
app.command("transfer", cls=FlagCommand)(transfer)


@app.callback()
def _kv() -> None:
    """KV cache: capacity, block size, prefix hits, scheduling, transfer."""
