"""``planner sweep``: the best layouts of a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from meshplan.cli.asking import command, read
from meshplan.cli.flags import AXES, JOB, SEARCH, Given, JobCommand, takes
from meshplan.cli.serving_flags import ONLY, PLOT, WORKLOAD
from meshplan.errors import Infeasible

app = typer.Typer(add_completion=False)


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """Progress bar on stderr, if a terminal reads it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("layouts", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@app.command(cls=JobCommand)
@takes(WORKLOAD, *JOB, *AXES, *SEARCH, *ONLY, PLOT)
def sweep(given: Given) -> None:
    """Find the best layouts of a job, and say what was rejected and why."""
    from meshplan.cli import serving

    if serving.asked(given):
        serving.sweep(given, bar)
        return
    from meshplan import search
    from meshplan.output import check, write

    plan, model = read(given)
    if plan.output:
        check(plan.output)
    with bar() as progress:
        result = search.run(plan, model, progress=progress)
    if plan.output:
        rows = write(result.batches(), plan.output)
        print(f"wrote {rows:,} layouts to {plan.output}", file=sys.stderr)
    if "json" in given:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        from meshplan.report import search as report
        from meshplan.report.console import show

        parts = report.parts(result)
        rows_found = result.rows("top")
        if rows_found:
            parts.append("Why the first: " + command("explain", given, rows_found[0]))
        show(*parts)
    if not result.rows("top"):
        raise Infeasible(result.nearest)
