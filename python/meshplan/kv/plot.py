"""Charts of KV results. Altair is loaded when a chart is asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError, PlannerError

if TYPE_CHECKING:
    from meshplan.kv.replay import Replay

_POINTS = 2_000
"""A line of more points shows nothing more."""


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401 (what altair saves with)
    except ImportError:
        raise PlannerError(
            "charts need altair and vl-convert-python", hint="pip install 'meshplan[plot]'"
        ) from None
    return altair


def save(chart: Any, path: Path) -> None:
    """Write a chart as ``.png``, ``.svg`` or self-contained ``.html``, whole or not at all."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "html"):
        raise InputError("must end in .png, .svg or .html", field="--plot", value=str(path))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / f"chart.{kind}"
        options = {"inline": True} if kind == "html" else {}
        chart.save(str(draft), **options)
        draft.replace(path)


def plot_hit_curve(result: Replay) -> Any:
    """Hit ratio against capacity, from a replay with its curve."""
    alt = _altair()
    frame = result.curve_frame()
    step = max(1, len(frame) // _POINTS)
    rows = frame.gather_every(step).to_dicts()
    line = (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=alt.X("capacity_blocks:Q", title="capacity, blocks").scale(type="log"),
            y=alt.Y("hit_ratio:Q", title="share of prompt blocks found"),
        )
    )
    return line.properties(width=560, height=320, title="Prefix-cache hits at every capacity")
