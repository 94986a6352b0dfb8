"""Charts of serving results. Altair is loaded when a chart is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.kv.plot import _altair

if TYPE_CHECKING:
    from meshplan.hf import ModelSpec
    from meshplan.serving.evaluate import Told
    from meshplan.serving.result import ServingResult

_POINTS = 2_000
"""A chart of more requests shows nothing more."""

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Clients of an engine at which the times are drawn."""


def plot_front(result: ServingResult) -> Any:
    """Pareto front of tokens/s/GPU against tokens/s/user, by backend and mode."""
    from meshplan.report.serving import phrase

    alt = _altair()
    rows = [
        {
            "kind": f"{row['backend']} {row['mode']}",
            "user": row["tokens_per_s_per_user"],
            "gpu": row["tokens_per_s_per_gpu"],
            "deployment": phrase(row),
        }
        for row in result.rows("pareto")
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("user:Q", title="tokens/s for a user, 1/TPOT"),
        y=alt.Y("gpu:Q", title="tokens/s/GPU"),
    )
    line = base.mark_line(color="#bbb")
    points = base.mark_point(filled=True, size=60).encode(
        color=alt.Color("kind:N", title=""), tooltip=["deployment:N", "user:Q", "gpu:Q"]
    )
    title = f"{result.model} on {result.plan.gpus:,} × {result.plan.cluster.device.name}"
    chart = line + points
    limit = result.plan.workload.tpot
    if limit is not None:
        rule = alt.Chart(alt.Data(values=[{"user": 1 / limit}]))
        chart += rule.mark_rule(strokeDash=[4, 4]).encode(x="user:Q")
    return chart.properties(width=560, height=320, title=title)


def plot_deployment(told: Told, model: ModelSpec) -> Any:
    """The replay over time, and TTFT and TPOT against the load."""
    alt = _altair()
    charts = [_timeline(alt, told)]
    loads = _loads(told, model)
    if loads:
        charts.append(_against_load(alt, loads))
    return alt.vconcat(*charts)


def _timeline(alt: Any, told: Told) -> Any:
    """Each request from arrival to first token to last token."""
    import polars as pl

    frame = pl.DataFrame(told.requests).filter(pl.col("finish_s").is_finite())
    frame = frame.with_row_index("request")
    frame = frame.gather_every(max(1, len(frame) // _POINTS)).with_columns(
        first_s=pl.col("send_s") + pl.col("ttft_s")
    )
    rows = frame.select("request", "send_s", "first_s", "finish_s").to_dicts()
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("request:Q", title="request"))
    waiting = base.mark_rule(color="#d95f02", opacity=0.6).encode(
        x=alt.X("send_s:Q", title="time, s"), x2="first_s:Q"
    )
    decoding = base.mark_rule(color="#1b9e77", opacity=0.6).encode(x="first_s:Q", x2="finish_s:Q")
    title = "Requests: to the first token (orange), to the last (green)"
    return (waiting + decoding).properties(width=560, height=240, title=title)


def _loads(told: Told, model: ModelSpec) -> list[dict[str, Any]]:
    """TTFT and TPOT of the deployment at several loads, from one client an engine upwards."""
    from meshplan.serving.evaluate import explain

    plan = told.plan
    work = plan.workload
    if work.trace is not None:
        return []
    row, found = told.row, []
    for own in LOADS:
        if own > row.max_batch * 2:
            break
        clients = own * row.workers
        changed = work.model_copy(update={"concurrency": clients, "rate": None})
        other = explain(plan.model_copy(update={"workload": changed}), model).row
        if other.requests_per_s > 0:
            found += [
                {
                    "clients": clients,
                    "which": "TTFT",
                    "mean": other.ttft_s,
                    "p99": other.ttft_p99_s,
                },
                {
                    "clients": clients,
                    "which": "TPOT",
                    "mean": other.tpot_s,
                    "p99": other.tpot_p99_s,
                },
            ]
    return found


def _against_load(alt: Any, rows: list[dict[str, Any]]) -> Any:
    base = (
        alt.Chart()
        .transform_fold(["mean", "p99"], as_=["statistic", "time_s"])
        .mark_line(point=True)
        .encode(
            x=alt.X("clients:Q", title="clients").scale(type="log", base=2),
            y=alt.Y("time_s:Q", title="s"),
            color=alt.Color("statistic:N", title=""),
        )
        .properties(width=250, height=200)
    )
    return (
        alt.layer(base, data=alt.Data(values=rows)).facet("which:N").resolve_scale(y="independent")
    )
