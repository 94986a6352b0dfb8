"""Report of serving deployments: what was asked, the best, the front, the rejected, one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.report.console import table
from meshplan.report.search import account, rejections, thinned_by
from meshplan.report.serving_terms import MEMORY, PASS, STATUS, STEP
from meshplan.report.values import value
from meshplan.serving.nearest import engine
from meshplan.specs.serving import DEFINITION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from meshplan.serving.evaluate import Change, Told
    from meshplan.serving.result import ServingResult
    from meshplan.specs.serving_plan import ServingPlan

FRONT = 12
"""Most points of a front that a report prints."""


def phrase(row: Mapping[str, Any]) -> str:
    """Deployment of a row in a few words.

    Examples
    --------
    >>> phrase({"backend": "vllm", "workers": 2, "tp": 8, "attention_dp": 8, "ep": 8,
    ...         "prefill_workers": 0})
    'vllm 2 × tp8 dp8 ep8'
    """
    said = f"{row['backend']} {row['workers']} × {engine(row)}"
    if row.get("prefill_workers"):
        said += f" behind {row['prefill_workers']} × {engine(row, 'prefill_')}"
    return said


def question(plan: ServingPlan, model: str) -> str:
    """What was asked, in three lines."""
    work, cluster = plan.workload, plan.cluster
    count = -(-plan.gpus // cluster.gpus_per_node)
    nodes = "1 node" if count == 1 else f"{count:,} nodes"
    return (
        f"{model} on {plan.gpus:,} × {cluster.device.name}, {nodes} ({cluster.name}); "
        f"{', '.join(plan.backend)}; {', '.join(plan.mode)}\n{_requests(plan)}; {_limits(work)}\n"
        f"{DEFINITION}"
    )


def _requests(plan: ServingPlan) -> str:
    work = plan.workload
    if work.trace is not None:
        return f"requests of {work.trace}" + (f" at {work.rate:g}/s" if work.rate else "")
    low = work.low
    lengths = [
        f"{name} of {n:,}" if low == 1 else f"{name} of {n * low:,.0f}–{n:,}"
        for name, n in (("prompts", work.isl or 0), ("answers", work.osl or 0))
    ]
    if work.concurrency is not None:
        how = f"{work.concurrency:,} clients"
    elif work.rate is not None:
        how = f"{work.rate:g} requests/s"
    else:
        how = "as many clients as the limits allow"
    return f"{' and '.join(lengths)} tokens, {how}"


def _limits(work: Any) -> str:
    said = [
        f"{name.upper()} ≤ {value('limit_s', getattr(work, name))}"
        for name in ("ttft", "tpot")
        if getattr(work, name) is not None
    ]
    if not said:
        return "no limit"
    margin = f", {100 * work.margin:g} % kept free" if work.margin else ""
    return " and ".join(said) + f" ({work.percentile}{margin})"


def deployments(title: str, rows: list[dict[str, Any]], *, probable: bool) -> Table:
    """Table of deployments."""
    priced = any(row["cost_per_million_tokens"] == row["cost_per_million_tokens"] for row in rows)
    headers = ["deployment", "GPUs", "clients", "slots", "tok/s/GPU", "tok/s/user", "tok/s"]
    headers += ["TTFT", "p90", "TPOT", "p90"]
    headers += ["meets"] if probable else []
    headers += ["cost/Mtok"] if priced else []
    made = table(title, headers, left=1)
    for row in rows:
        cells = [
            phrase(row),
            f"{row['gpus']:,}",
            f"{row['concurrency']:,}" if row["concurrency"] else "-",
            f"{row['max_batch']:,}",
            *(value("", row[f"tokens_per_s_per_{per}"]) for per in ("gpu", "user")),
            f"{row['tokens_per_s']:,.0f}",
            *(value(name, row[name]) for name in ("ttft_s", "ttft_p90_s", "tpot_s", "tpot_p90_s")),
        ]
        cells += [_percent(row["limits_probability"])] if probable else []
        cells += [value("", row["cost_per_million_tokens"])] if priced else []
        made.add_row(*cells)
    return made


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def parts(result: ServingResult) -> list[Any]:
    """Everything that ``planner sweep --workload serving`` prints."""
    plan = result.plan
    probable = plan.workload.ttft is not None or plan.workload.tpot is not None
    head = question(plan, result.model) + "\n"
    head += account(result.proof, result.elapsed_s, "deployments", "estimated and within limits")
    out: list[Any] = [f"{head}; {result.replayed:,} replayed"]
    top, front = result.rows("top"), result.rows("pareto")
    if top:
        title = "Best deployment" if len(top) == 1 else f"Best {len(top)} layouts"
        out.append(deployments(title, top, probable=probable))
        out += [_others(result)] if len(set(map(repr, result.by_objective.values()))) > 1 else []
        shown = thinned_by(front, "tokens_per_s_per_user", FRONT)
        title = "Pareto front of tokens/s/GPU and tokens/s/user"
        if len(shown) < len(front):
            title += f", {len(shown)} of {len(front)} (--json has all)"
        out.append(deployments(title, shown, probable=False))
    if result.proof.rejected:
        out.append(rejections(result.proof, STATUS, "deployments"))
    return out


def _others(result: ServingResult) -> Table:
    made = table(
        "Best under each objective", ["objective", "deployment", "GPUs", "tok/s/GPU"], left=2
    )
    names = {"throughput": "throughput", "cost": "cost of a token", "gpus": "fewest GPUs"}
    for name, row in result.by_objective.items():
        rate = value("", row.tokens_per_s_per_gpu)
        made.add_row(names[name], phrase(row), f"{row.gpus:,}", rate)
    return made


def terms(title: str, row: Mapping[str, Any], total: str, known: Mapping[str, str]) -> Table:
    """Terms that add up to a total, those that are zero left out."""
    made = table(f"{title}: {value(total, row[total])}", ["term", "value", "share", "what"], left=1)
    made.columns[3].justify = "left"
    for name, text in known.items():
        if row[name] != 0:
            share = f"{100 * row[name] / row[total]:.1f} %" if row[total] else ""
            made.add_row(name, value(name, row[name]), share, text)
    return made


def latencies(told: Told) -> Table:
    """TTFT and TPOT: mean and percentiles, with margin and probability."""
    row, work = told.row, told.plan.workload
    limited = work.ttft is not None or work.tpot is not None
    headers = ["", "mean", "p50", "p90", "p99"]
    headers += ["limit", "margin", "probability"] if limited else []
    made = table("Latencies", headers, left=1)
    for name in ("ttft", "tpot"):
        cells = [name.upper()]
        cells += [value("x_s", row[f"{name}{at}_s"]) for at in ("", "_p50", "_p90", "_p99")]
        limit = getattr(work, name)
        if limited and limit is None:
            cells += ["-", "-", "-"]
        elif limited:
            cells += [value("x_s", limit), f"{100 * row[f'{name}_margin_ratio']:+.1f} %"]
            cells += [_percent(row[f"{name}_probability"])]
        made.add_row(*cells)
    return made


def heading(told: Told) -> str:
    """The deployment, and what it does."""
    row = told.row
    clients = f"{row.concurrency:,} clients" if row.concurrency else "open arrivals"
    said = (
        f"{phrase(row)}: {row.gpus:,} GPUs, {clients}, {row.weight_dtype} weights, "
        f"{row.kv_dtype} cache\n{row.requests_per_s:.4g} requests/s, {row.tokens_per_s:,.0f} "
        f"tokens/s, {value('', row.tokens_per_s_per_gpu)} tokens/s/GPU, "
        f"{value('', row.tokens_per_s_per_user)} tokens/s/user"
    )
    if row.cost_per_million_tokens == row.cost_per_million_tokens:
        said += f", {value('', row.cost_per_million_tokens)} per million tokens"
    if row.saturated:
        said += "\nsaturated: requests wait for slots, cache or prefill; times say how long"
    return f"{said}\n{told.played[0]:,} requests played. {DEFINITION}"


def evaluated(told: Told) -> list[Any]:
    """Everything that ``planner evaluate --workload serving`` prints."""
    if told.refusal:
        return [f"{told.row['backend']}: rule {told.refusal['rule']}: {told.refusal['text']}"]
    row = told.row
    out: list[Any] = []
    if row.requests_per_s > 0:
        out += [heading(told), latencies(told)]
    else:
        out += [f"{phrase(row)}: {told.reason}"]
    running = max(1.0, row.mean_running)
    out += [
        terms(f"Decode step of {running:,.1f} requests", row, "step_s", STEP),
        terms("Prefill pass of one mean prompt", row, "pass_s", PASS),
        terms("Memory of a GPU, usable", row, "memory_usable_bytes", MEMORY),
        f"Cache: {row.kv_tokens:,.0f} tokens an engine, at most {100 * row.peak_kv_ratio:.0f} % "
        f"held; {row.preemptions:,} preemptions",
    ]
    return out


def explained(told: Told) -> list[Any]:
    """Everything that ``planner explain --workload serving`` prints."""
    out = evaluated(told)
    if not told.refusal:
        out.append("What limits: " + limits(told))
    title = "Better by one change" if told.row.feasible else "Feasible by one change"
    out.append(changes(title, told.better) if told.better else f"{title}: none")
    return out


def limits(told: Told) -> str:
    """What stands in the way of more, in a sentence or two."""
    row = told.row
    found = []
    largest = max(STEP, key=lambda name: float(row[name]))
    found.append(f"a decode step is {STEP[largest]} to {_percent(row[largest] / row.step_s)}")
    steps = row.tpot_s / row.step_s if row.step_s and row.tpot_s == row.tpot_s else 1.0
    stall = 1 - row.step_s / row.tpot_s if row.tpot_s > row.step_s and not row.spec_tokens else 0.0
    if stall > 0.02 and steps:
        found.append(f"prefills of other requests take {_percent(stall)} of TPOT")
    if row.peak_kv_ratio > 0.95:
        found.append("the cache is full")
    if row.peak_running >= row.max_batch:
        found.append("all slots are taken")
    if row.queue_s > 0.3 * row.ttft_s:
        found.append(
            f"requests wait {value('x_s', row.queue_s)} of {value('x_s', row.ttft_s)} TTFT"
        )
    if row.prefill_busy_ratio == row.prefill_busy_ratio:
        found.append(f"prefill engines compute {_percent(row.prefill_busy_ratio)} of the time")
    return "; ".join(found)


def changes(title: str, better: tuple[Change, ...]) -> Table:
    """Neighbours that do more, and what differs."""
    made = table(title, ["change", "tok/s/GPU", "TTFT", "TPOT", "deployment"], left=1)
    made.columns[4].justify = "left"
    for change in better:
        axes = " ".join(f"{name}={item}" for name, item in change.axes.items())
        row = change.row
        cells = [value("", row.tokens_per_s_per_gpu)]
        cells += [value("x_s", row[name]) for name in ("ttft_s", "tpot_s")]
        made.add_row(axes, *cells, phrase(row))
    return made
