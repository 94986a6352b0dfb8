"""``planner moe``: MoE routing questions, one module per subcommand."""

from __future__ import annotations

import typer

from meshplan.cli.moe.balance import balance
from meshplan.cli.moe.dispatch import dispatch
from meshplan.cli.moe.loads import loads
from meshplan.cli.moe.sweep import sweep
from meshplan.cli.naming import FlagCommand

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="MoE routing: loads, hot ranks, expert placement, dispatch and combine.",
)
app.command("loads", cls=FlagCommand)(loads)
app.command("balance", cls=FlagCommand)(balance)
app.command("dispatch", cls=FlagCommand)(dispatch)
app.command("sweep", cls=FlagCommand)(sweep)


@app.callback()
def _moe() -> None:
    """MoE routing: loads, hot ranks, expert placement, dispatch and combine."""
