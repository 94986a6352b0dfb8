"""``planner columns``: the schema of the tables of layouts and of deployments."""

from __future__ import annotations

import json

import typer

import meshplan._core as _core
from meshplan.cli.flags import JSON, Given, takes
from meshplan.cli.serving import asked
from meshplan.cli.serving_flags import WORKLOAD

app = typer.Typer(add_completion=False)


@app.command()
@takes(WORKLOAD, JSON)
def columns(given: Given) -> None:
    """Print every column of a row: name, unit, meaning."""
    declared = _core.serving_columns() if asked(given) else _core.training_columns()
    if "json" in given:
        rows = [{"name": name, "unit": unit, "doc": doc} for name, unit, doc in declared]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    from meshplan.report.console import show, table

    made = table("", ["column", "unit", "meaning"], left=3)
    made.title = None
    for row in declared:
        made.add_row(*row)
    show(made)
