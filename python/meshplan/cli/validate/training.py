"""``planner validate training``: the training estimate against measured runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan import output
from meshplan.cli.models import print_table

if TYPE_CHECKING:
    from meshplan.validate.score import Errors
    from meshplan.validate.training import Validation


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("training")(training)


def training(
    runs: Annotated[Path, typer.Argument(help="CSV or Parquet file of measured runs.")],
    models: Annotated[
        Path, typer.Option("--models", help="Folder with NAME.json for each model.")
    ] = Path("models"),
    split: Annotated[str | None, typer.Option("--split", help="Only rows of this split.")] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="Only rows of this source (repeatable).")
    ] = None,
    trust: Annotated[str, typer.Option("--trust", help="Grades that count in the figures.")] = "AB",
    output_file: Annotated[
        Path | None,
        typer.Option("--output", help="Write every prediction (.csv, .parquet, .arrow)."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Chart of the residuals (.html, .svg, .png).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict measured training runs and print the errors, per source and overall.

    A row whose recomputation, micro-batch or virtual stages are unknown is predicted at the
    planner's own best feasible choice; the predictions say so.
    """
    from meshplan.validate.training import validate_training

    target = output.check(output_file) if output_file else None
    found = validate_training(runs, models, split=split, trust=trust, sources=source or ())
    if target:
        output.write([found.predictions], target)
    if plot:
        from meshplan.validate.plot import residuals

        residuals(found.outcomes, plot)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        _print(found)
    for run, reason in list(found.failed.items())[:20]:
        print(f"not predicted: {run}: {reason}", file=sys.stderr)


def _percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _errors(title: str, table: dict[str, Errors], median: float | None, p90: float | None) -> None:
    lines = [(title, "n", "median", "p90", "signed")]
    for name, e in table.items():
        figures = (_percent(e.median), _percent(e.p90), _percent(e.signed_median, signed=True))
        lines.append((name, str(e.n), *figures))
    lines.append(("macro over sources", "", _percent(median), _percent(p90), ""))
    print_table(lines, right=(1, 2, 3, 4))
    print()


def _print(found: Validation) -> None:
    s = found.score
    macro = s.macro
    _errors("step time", s.step_time, macro["step_time_median"], macro["step_time_p90"])
    if s.ranking:
        lines: list[tuple[str, ...]] = [
            ("ranking", "groups", "tau-b", "regret", "worst", "best of 3")
        ]
        for name, r in s.ranking.items():
            regrets = (r.regret, r.worst_regret, r.best_of_three_regret)
            lines.append((name, str(r.groups), f"{r.tau_b:.3f}", *map(_percent, regrets)))
        print_table(lines, right=(1, 2, 3, 4, 5))
        print()
    if s.memory:
        _errors("peak memory", s.memory, macro["memory_median"], None)
    fits = s.fits
    print(
        f"fit: {fits['false_misfit']} of {fits['measured_ran']} measured runs said not to fit, "
        f"{fits['false_fit']} of {fits['measured_oom']} measured failures said to fit"
    )
    print(f"predicted {len(found.outcomes)} runs, {len(found.failed)} not")
