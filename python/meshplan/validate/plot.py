"""Chart of residuals: one point a run, by source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.errors import InputError
from meshplan.validate.score import measured

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from meshplan.validate.score import Outcome


def residuals(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a chart of step-time and memory errors (``.html``, ``.svg`` or ``.png``).

    Raises
    ------
    InputError
        When the plotting packages are missing.
    """
    try:
        import altair as alt
    except ImportError:
        raise InputError(
            "needs the plotting packages", field="--plot", hint="pip install 'meshplan[plot]'"
        ) from None
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
    chart.save(str(path), inline=True) if path.suffix == ".html" else chart.save(str(path))
