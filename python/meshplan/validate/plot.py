"""Charts of a validation: residuals by source, predicted against measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.validate.score import measured

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from meshplan.validate.score import Outcome
    from meshplan.validate.serving_score import Outcome as Served


def residuals(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a chart of step-time and memory errors (``.html``, ``.svg`` or ``.png``).

    Raises
    ------
    InputError
        When the plotting packages are missing.
    """
    alt = _altair()
    points = []
    for o in outcomes:
        for column, label in (("step_time_s", "step time"), ("peak_memory_bytes", "peak memory")):
            truth = measured(o.row, column)
            if truth is not None:
                error = getattr(o, column) / truth - 1
                points.append(
                    {
                        "run": o.row["run_id"],
                        "source": o.row["source"],
                        "quantity": label,
                        "error": error,
                        "measured": truth,
                    }
                )
    chart = (
        alt.Chart(alt.Data(values=points))
        .mark_tick(thickness=1.5)
        .encode(
            x=alt.X("error:Q", axis=alt.Axis(format="+%"), title="predicted / measured - 1"),
            y=alt.Y("source:N", title=None),
            color=alt.Color("source:N", legend=None),
            tooltip=["run:N", "measured:Q", alt.Tooltip("error:Q", format="+.1%")],
            row=alt.Row("quantity:N", title=None),
        )
        .properties(width=600)
    )
    _save(chart, path)


def predicted_against_measured(outcomes: Sequence[Served], path: Path) -> None:
    """Write a chart of predicted against measured TPOT and TTFT, one panel a backend.

    Both axes are logarithmic; the line is a prediction that is right. Rows that count, covered.

    Raises
    ------
    InputError
        When the plotting packages are missing, or there is nothing to draw.
    """
    alt = _altair()
    panels = []
    for metric in ("tpot", "ttft"):
        points = [p for o in outcomes if (p := _point(o, metric))]
        row = [
            _panel(alt, [p for p in points if p["backend"] == backend], metric, backend)
            for backend in sorted({p["backend"] for p in points})
        ]
        panels += [alt.hconcat(*row)] if row else []
    if not panels:
        raise InputError(
            "has nothing to draw: no measured value counts and is predicted", field="--plot"
        )
    _save(alt.vconcat(*panels), path)


def _point(o: Served, metric: str) -> dict[str, Any] | None:
    truth, guess, error = (
        measured(o.row, f"{metric}_ms"),
        getattr(o, f"{metric}_ms"),
        o.error(metric),
    )
    if error is None or not o.scored(metric):
        return None
    words = {key: o.row[key] for key in ("deployment_id", "backend", "model", "gpu")}
    return {**words, "measured": truth, "predicted": guess, "error": error}


def _panel(alt: Any, points: list[dict[str, Any]], metric: str, backend: str) -> Any:
    """Points of one backend about the diagonal."""
    values = [p[side] for p in points for side in ("measured", "predicted")]
    ends = alt.Data(values=[{"at": min(values)}, {"at": max(values)}])
    scale = alt.Scale(type="log", nice=False, domain=[min(values), max(values)])
    diagonal = (
        alt.Chart(ends)
        .mark_line(color="gray", strokeDash=[4, 3])
        .encode(x=alt.X("at:Q", scale=scale), y=alt.Y("at:Q", scale=scale))
    )
    title = metric.upper()
    cloud = (
        alt.Chart(alt.Data(values=points))
        .mark_circle(size=14, opacity=0.5)
        .encode(
            x=alt.X("measured:Q", scale=scale, title=f"measured {title} (ms)"),
            y=alt.Y("predicted:Q", scale=scale, title=f"predicted {title} (ms)"),
            color=alt.Color("model:N"),
            tooltip=[
                "deployment_id:N",
                "gpu:N",
                "measured:Q",
                alt.Tooltip("error:Q", format="+.1%"),
            ],
        )
    )
    return (diagonal + cloud).properties(width=260, height=260, title=f"{backend}, {title}")


def _altair() -> Any:
    try:
        import altair
    except ImportError:
        raise InputError(
            "needs the plotting packages", field="--plot", hint="pip install 'meshplan[plot]'"
        ) from None
    return altair


def _save(chart: Any, path: Path) -> None:
    chart.save(str(path), inline=True) if path.suffix == ".html" else chart.save(str(path))
