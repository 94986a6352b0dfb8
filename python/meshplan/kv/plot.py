"""Charts of KV results. Altair is loaded when a chart is asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError, PlannerError

if TYPE_CHECKING:
    import polars as pl

    from meshplan.kv.replay import Replay
    from meshplan.kv.schedule import Schedule

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


def check(path: Path | None) -> None:
    """Refuse a chart that could not be written, before the work that it shows."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".svg", ".html"):
        raise InputError("must end in .png, .svg or .html", field="--plot", value=str(path))
    if not path.parent.is_dir():
        raise InputError("no such folder", field="--plot", value=str(path))


def save(chart: Any, path: Path) -> None:
    """Write a chart as ``.png``, ``.svg`` or self-contained ``.html``, whole or not at all."""
    check(path)
    kind = path.suffix.lower().removeprefix(".")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / f"chart.{kind}"
        options = {"inline": True} if kind == "html" else {}
        chart.save(str(draft), **options)
        draft.replace(path)


def plot_hit_curve(result: Replay) -> Any:
    """Hit ratio against capacity: the curve of a replay, else its points."""
    alt = _altair()
    if result.curve is None:
        bounded = (p for p in result.points if p.capacity_blocks)
        rows = [{"capacity_blocks": p.capacity_blocks, "hit_ratio": p.hit_ratio} for p in bounded]
        title = "Prefix-cache hits"
    else:
        frame = result.curve_frame()
        rows = frame.gather_every(max(1, len(frame) // _POINTS)).to_dicts()
        title = "Prefix-cache hits at every capacity"
    line = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=result.curve is None)
        .encode(
            x=alt.X("capacity_blocks:Q", title="capacity, blocks").scale(type="log"),
            y=alt.Y("hit_ratio:Q", title="share of prompt blocks found"),
        )
    )
    return line.properties(width=560, height=320, title=title)


def plot_occupancy(result: Schedule) -> Any:
    """Share of the pool in use, and running and waiting requests, over time."""
    import polars as pl

    alt = _altair()
    frame = pl.DataFrame(result.timeline)
    rows = frame.gather_every(max(1, len(frame) // _POINTS)).to_dicts()
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("time_s:Q", title="time, s"))
    share = base.mark_area(opacity=0.5, interpolate="step-after").encode(
        y=alt.Y("occupancy_ratio:Q", title="share of blocks in use").scale(domain=[0, 1])
    )
    counts = (
        base.transform_fold(["running", "waiting"], as_=["state", "requests"])
        .mark_line(interpolate="step-after")
        .encode(y=alt.Y("requests:Q", title="requests"), color=alt.Color("state:N", title=""))
    )
    size = {"width": 560, "height": 200}
    return alt.vconcat(share.properties(**size), counts.properties(**size))


def plot_waste(rows: pl.DataFrame) -> Any:
    """Share of slots that paging wastes against block size, measured and closed form."""
    alt = _altair()
    one = rows.group_by("block_tokens", maintain_order=True).first()
    data = alt.Data(
        values=one.select("block_tokens", "waste_ratio", "waste_closed_ratio").to_dicts()
    )
    line = (
        alt.Chart(data)
        .transform_fold(["waste_ratio", "waste_closed_ratio"], as_=["how", "share"])
        .mark_line(point=True)
        .encode(
            x=alt.X("block_tokens:Q", title="block, tokens").scale(type="log", base=2),
            y=alt.Y("share:Q", title="share of slots without a token"),
            color=alt.Color("how:N", title=""),
        )
    )
    return line.properties(width=560, height=320, title="Internal fragmentation")
