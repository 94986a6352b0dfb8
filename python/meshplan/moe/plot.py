"""Charts of MoE results. Altair is loaded when a chart is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.kv.plot import _altair

if TYPE_CHECKING:
    import polars as pl

    from meshplan.moe.loads import Loads

CELLS = 50_000
"""A heat map of more cells shows nothing more."""


def plot_loads(loads: Loads) -> Any:
    """Heat map, layer × expert: load over the mean of its layer; experts from hot to cold."""
    alt = _altair()
    rows = []
    for number, row in zip(loads.layers, loads.total, strict=True):
        mean = sum(row) / len(row)
        hottest = sorted(row, reverse=True)
        rows += [
            {"layer": number, "expert": i, "load over mean": load / mean}
            for i, load in enumerate(hottest)
        ]
    chart = (
        alt.Chart(alt.Data(values=rows[:CELLS]))
        .mark_rect()
        .encode(
            x=alt.X("expert:O", title="expert, hottest first", axis=alt.Axis(labels=False)),
            y=alt.Y("layer:O"),
            color=alt.Color("load over mean:Q"),
        )
    )
    return chart.properties(width=640, title="Load of the experts")


def plot_redundancy(total: list[list[float]], ranks: int, redundant: int) -> Any:
    """Fullest rank against the number of redundant experts, both balancers and the bound."""
    from meshplan.moe.api import balance

    alt = _altair()
    experts = len(total[0])
    least = -experts % ranks
    most = max(redundant, least + 4 * ranks)
    rows = []
    for spare in range(least, min(most, experts * (ranks - 1)) + 1, ranks):
        for policy in ("best", "eplb"):
            layers = balance(total, ranks=ranks, redundant=spare, policy=policy)
            mean = sum(layer["rank_max_over_mean"] for layer in layers) / len(layers)
            rows.append({"redundant": spare, "max/mean": mean, "placement": policy})
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("redundant:Q", title="redundant experts"),
            y=alt.Y("max/mean:Q", title="fullest rank over mean").scale(zero=False),
            color=alt.Color("placement:N"),
        )
    )
    return chart.properties(width=560, height=320, title=f"{ranks} ranks")


def plot_sweep(frame: pl.DataFrame) -> Any:
    """Fullest rank against tokens on a rank, a line per ranks, skew and redundancy."""
    alt = _altair()
    rows = (
        frame.filter(frame["status"] == "ok")
        .select("ranks", "alpha", "redundant", "tokens_per_rank", "balanced_max_over_mean_ratio")
        .unique(maintain_order=True)
        .head(CELLS)
        .to_dicts()
    )
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("tokens_per_rank:Q", title="tokens on a rank").scale(type="log"),
            y=alt.Y("balanced_max_over_mean_ratio:Q", title="fullest rank over mean").scale(
                zero=False
            ),
            color=alt.Color("ranks:N"),
            strokeDash=alt.StrokeDash("redundant:N"),
            column=alt.Column("alpha:N", title="concentration (0: uniform)"),
        )
    )
    return chart.properties(width=280, height=260)
