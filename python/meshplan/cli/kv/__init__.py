"""``planner kv``: KV-cache questions, one module per subcommand."""

from __future__ import annotations

import typer

from meshplan.cli.kv.replay import replay
from meshplan.cli.kv.schedule import schedule
from meshplan.cli.kv.size import size
from meshplan.cli.kv.sweep import sweep
from meshplan.cli.kv.transfer import transfer

app = typer.Typer(no_args_is_help=True, help="KV cache: capacity, block size, prefix hits.")
app.command("size")(size)
app.command("sweep")(sweep)
app.command("replay")(replay)
app.command("schedule")(schedule)
app.command("transfer")(transfer)


@app.callback()
def _kv() -> None:
    """KV cache: capacity, block size, prefix hits, scheduling, transfer."""
