"""``planner validate``: predictions held against measurements."""

from __future__ import annotations

import typer

from meshplan.cli.validate import collectives, kernels, serving, training

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Predictions held against measurements.",
)
collectives.add_to(app)
kernels.add_to(app)
serving.add_to(app)
training.add_to(app)


@app.callback()
def _validate() -> None:
    """Predictions held against measurements."""
