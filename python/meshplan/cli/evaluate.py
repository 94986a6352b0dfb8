"""``planner evaluate``: one layout, every term."""

from __future__ import annotations

import json

import typer

from meshplan.api import judge
from meshplan.cli.asking import read
from meshplan.cli.flags import AXES, JOB, JSON, Given, JobCommand, takes
from meshplan.cli.serving_flags import ONLY, PLOT, WORKLOAD
from meshplan.request import EVALUATED

app = typer.Typer(add_completion=False)


@app.command(cls=JobCommand)
@takes(WORKLOAD, *JOB, *AXES, JSON, *ONLY, PLOT)
def evaluate(given: Given) -> None:
    """Estimate one layout, every term.

    Axes that are not given are 1; the sharding is zero1, nothing is recomputed, dp is what the
    other degrees leave. Serving: one engine of one GPU, without drafts.
    """
    from meshplan.cli import serving

    if serving.asked(given):
        serving.evaluate(given)
        return
    told = judge(*read(given, EVALUATED))
    if "json" in given:
        print(json.dumps(told.row.to_dict(), indent=2))
    elif told.refusal:
        from meshplan.report.console import show

        show(f"{told.row!r}")
    else:
        from meshplan.report.console import show
        from meshplan.report.layout import heading, terms
        from meshplan.report.search import error
        from meshplan.report.terms import MEMORY, STEP

        row = told.row
        show(
            heading(row) + "\n" + error(row),
            terms("Step time", row, "step_time_s", STEP),
            terms("Memory of the fullest rank", row, "peak_memory_bytes", MEMORY),
        )
    told.check()
