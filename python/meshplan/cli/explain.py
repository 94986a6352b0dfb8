"""``planner explain``: why a layout costs what it costs, and what would be better."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from meshplan.cli.asking import read
from meshplan.cli.flags import AXES, JOB, JSON, Given, JobCommand, takes
from meshplan.cli.serving_flags import ONLY, PLOT, WORKLOAD

if TYPE_CHECKING:
    from meshplan.alternatives import Change
    from meshplan.estimate import Explanation

app = typer.Typer(add_completion=False)


@app.command(cls=JobCommand)
@takes(WORKLOAD, *JOB, *AXES, JSON, *ONLY, PLOT)
def explain(given: Given) -> None:
    """Explain one layout: groups, terms with formulas, stages, and what would be better.

    Axes that are not given are taken as by ``planner evaluate``.
    """
    from meshplan.cli import serving

    if serving.asked(given):
        serving.explain(given)
        return
    from meshplan.alternatives import alternatives
    from meshplan.api import judge
    from meshplan.request import EVALUATED

    plan, model = read(given, EVALUATED)
    told = judge(plan, model)
    better = alternatives(plan, model, told)
    if "json" in given:
        found = [change.to_dict() for change in better]
        print(json.dumps({**told.to_dict(), "alternatives": found}, indent=2))
    else:
        _print(told, better)
    told.check()


def _print(told: Explanation, better: list[Change]) -> None:
    from meshplan.report import layout as report
    from meshplan.report.console import show

    if told.refusal:
        show(f"{told.row!r}\nrule {told.refusal['rule']}: {told.refusal['text']}")
    else:
        show(
            report.heading(told.row),
            report.groups(told.groups),
            report.formulas(told.row),
            report.stages(told.stages),
        )
        if told.replay:
            show(report.replayed(told.replay))
    title = "Faster by one change" if told.row.feasible else "Feasible by one change"
    if better:
        show("", report.changes(title, told.row, better))
    else:
        show("", f"{title}: none")
