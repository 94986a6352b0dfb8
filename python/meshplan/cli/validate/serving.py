"""``planner validate serving``: the serving estimate against measured deployments."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan import output
from meshplan.cli.models import print_table

if TYPE_CHECKING:
    from meshplan.validate.serving import Validation

TOLD = 3
"""Places that are named where rows cannot be predicted; JSON names all."""

SHOWN = ("all", "backend+mode", "gpu", "model", "spec", "trust")
"""Groupings of the printed table; JSON has all."""


class Spec(StrEnum):
    """Rows by speculative decoding."""

    ALL = "all"
    STP = "stp"
    MTP = "mtp"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("serving")(serving)


def serving(
    deployments: Annotated[Path, typer.Argument(help="CSV file of measured deployments.")],
    models: Annotated[
        Path, typer.Option("--models", help="Folder with NAME.json for each model.")
    ] = Path("models"),
    spec: Annotated[
        Spec,
        typer.Option("--spec", help="All rows, or only those without or with draft tokens."),
    ] = Spec.ALL,
    params: Annotated[
        Path | None,
        typer.Option("--serving-params", help="Numbers of your own (planner calibrate --serving)."),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Write deployment_id, ttft_ms, tpot_ms, feasible (.csv, .parquet, .arrow).",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Chart, predicted against measured (.html, .svg, .png)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict measured deployments and print the errors of TTFT and TPOT, and of the ranking.

    TTFT is first token - arrival, TPOT (last token - first token) / (output tokens - 1), both means
    over requests. A row that cannot be predicted is told and counts as not covered.
    """
    from meshplan.validate.serving import validate_serving

    target = output.check(output_file) if output_file else None
    found = validate_serving(deployments, models, spec=spec.value, params=params)
    if target:
        output.write([found.predictions], target)
    if plot:
        from meshplan.validate.plot import predicted_against_measured

        predicted_against_measured(found.outcomes, plot)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        _print(found)
    _print_failed(found)


def _print_failed(found: Validation) -> None:
    """Say why rows are not predicted, and where the first of each reason stand."""
    reasons: dict[str, list[str]] = {}
    for error in found.failed.values():
        for problem in error.problems:
            told = f"{problem.field}: {problem.rule}" if problem.field else problem.rule
            value = f" ({problem.value})" if problem.value else ""
            reasons.setdefault(told, []).append(f"{problem.where}{value}")
    for reason, places in reasons.items():
        rest = f", and {len(places) - TOLD} more" if len(places) > TOLD else ""
        print(f"not predicted: {reason}: {', '.join(places[:TOLD])}{rest}", file=sys.stderr)


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _cells(level: dict[str, Any] | None) -> tuple[str, ...]:
    if level is None or not level["n"]:
        return "", "", "", ""
    count = f"{level['covered']}/{level['n']}"
    figures = (_percent(level["median"]), _percent(level["p90"]))
    return count, *figures, _percent(level["signed"], signed=True)


def _print(found: Validation) -> None:
    score = found.score
    head = ("n", "median", "p90", "signed")
    for dimension in SHOWN:
        lines = [(dimension, *(f"TPOT {h}" for h in head), *(f"TTFT {h}" for h in head))]
        for name, group in score["errors"][dimension].items():
            lines.append((name, *_cells(group.get("tpot")), *_cells(group.get("ttft"))))
        print_table(lines, right=tuple(range(1, 9)))
        print()
    total = score["errors"]["all"]["all"]
    means = [f"{m.upper()} {_percent(total[m]['macro_cell_median'])}" for m in ("tpot", "ttft")]
    print(f"mean of the medians of (model, GPU, backend, mode): {', '.join(means)}\n")
    _print_ranking(score["ranking"])
    predicted = sum(o.tpot_ms is not None for o in found.outcomes)
    print(
        f"predicted {predicted} deployments, {len(found.infeasible)} predicted not to run, "
        f"{len(found.failed)} not predictable"
    )
    for words, rows in found.assumed.items():
        print(f"assumed in {rows} rows: {words}", file=sys.stderr)


def _print_ranking(ranking: dict[str, dict[str, Any]]) -> None:
    taus: list[tuple[str, ...]] = [("tau-b", "groups", "mean", "median", "p10", "floor")]
    costs: list[tuple[str, ...]] = [
        ("regret of the pick", "groups", "mean", "when met", "missed", "no pick")
    ]
    for name, r in ranking.items():
        kind, words = name.split(" ", 1)
        if kind == "tau_b":
            figures = (r["mean"], r["median"], r["p10"], r.get("floor"))
            taus.append(
                (words, str(r["groups"]), *("" if v is None else f"{v:.2f}" for v in figures))
            )
        else:
            shares = (_percent(r["mean"]), _percent(r["mean_when_met"]))
            costs.append(
                (words, str(r["groups"]), *shares, str(r["limit_missed"]), str(r["no_pick"]))
            )
    for lines in (taus, costs):
        print_table(lines, right=(1, 2, 3, 4, 5))
        print()
