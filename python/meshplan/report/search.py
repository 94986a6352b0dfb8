"""Report of a search: what was searched, the proof, the best, the front, the rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.report.console import table
from meshplan.report.layouts import layouts
from meshplan.report.terms import STATUS
from meshplan.report.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from meshplan.found import Proof
    from meshplan.result import Result
    from meshplan.specs.plan import Plan


FRONT = 12
"""Most points of a Pareto front that a report prints."""


def question(plan: Plan, model: str, software: str) -> str:
    """What was searched, in two lines."""
    work, cluster = plan.workload, plan.cluster
    count = -(-plan.gpus // cluster.gpus_per_node)
    nodes = "1 node" if count == 1 else f"{count:,} nodes"
    peak = "" if work.precision in ("bf16", "fp16") else "; MFU is of the 16-bit peak"
    return (
        f"{model} on {plan.gpus:,} × {cluster.device.name}, {nodes} ({cluster.name})\n"
        f"{work.precision}, {work.global_batch:,} sequences of {work.seq_len:,} tokens, "
        f"{work.optimizer}; rules: {plan.framework}; costs: {software}{peak}"
    )


def account(
    proof: Proof, elapsed_s: float, what: str = "layouts", how: str = "estimated and fitting"
) -> str:
    """The counted proof, in one line."""
    took = value("elapsed_s", elapsed_s)
    return (
        f"{proof.total:,} {what} = {proof.evaluated:,} {how} + "
        f"{proof.pruned:,} skipped by bounds + {sum(proof.rejected.values()):,} rejected ({took})"
    )


def rejections(proof: Proof, meanings: Mapping[str, str] = STATUS, what: str = "layouts") -> Table:
    """Rejected layouts by reason, and under each the rules with the numbers of an example."""
    made = table("Rejected", ["reason", "rule", what, "share", "why"], left=2)
    made.columns[4].justify = "left"
    for reason, count in sorted(proof.rejected.items(), key=lambda item: -item[1]):
        rules = [rule for rule in proof.rules if rule["status"] == reason]
        made.add_row(reason, "", f"{count:,}", _share(count, proof.total), meanings.get(reason, ""))
        for rule in sorted(rules, key=lambda rule: -rule["layouts"]):
            number = rule["layouts"]
            why = f"such as: {rule['text']}"
            made.add_row("", rule["rule"], f"{number:,}", _share(number, proof.total), why)
    return made


def _share(count: int, total: int) -> str:
    return f"{100 * count / max(1, total):.1f} %"


def thinned(front: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `FRONT` points of a front: both ends, and steps of equal memory ratio between."""
    return thinned_by(front, "peak_memory_bytes", FRONT)


def thinned_by(front: list[dict[str, Any]], column: str, most: int) -> list[dict[str, Any]]:
    """At most so many points of a front: both ends, and steps of equal ratio of a column between."""
    if len(front) <= most:
        return front
    sizes = [row[column] for row in front]
    ratio = (sizes[-1] / sizes[0]) ** (1 / (most - 1))
    goals = [sizes[0] * ratio**step for step in range(most)]
    chosen = {min(range(len(sizes)), key=lambda i: abs(sizes[i] - goal)) for goal in goals}
    return [front[i] for i in sorted(chosen)]


def error(row: Mapping[str, Any]) -> str:
    """How far to trust the step time of a row, in a line."""
    q50, q90 = (f"{100 * row[name]:.0f} %" for name in ("error_q50_ratio", "error_q90_ratio"))
    return (
        f"Error of the first: half of {row['error_rows']} measured configurations within {q50}, "
        f"nine in ten within {q90} ({row['error_kind']}; docs/accuracy.md)"
    )


def parts(result: Result) -> list[Any]:
    """Everything that ``planner sweep`` prints."""
    top, front = result.rows("top"), result.rows("pareto")
    out: list[Any] = [
        question(result.plan, result.model, result.software)
        + "\n"
        + account(result.proof, result.elapsed_s)
    ]
    priced = result.plan.cluster.price_per_gpu_hour is not None
    extra = ("cost_per_million_tokens",) if priced else ()
    if top:
        title = "Best layout" if len(top) == 1 else f"Best {len(top)} layouts"
        out.append(layouts(title, top, extra=extra))
        out.append(error(top[0]))
        shown = thinned(front)
        title = "Pareto front of step time and memory"
        if len(shown) < len(front):
            title += f", {len(shown)} of {len(front)} (--json has all)"
        out.append(layouts(title, shown, extra=extra))
    if result.proof.rejected:
        out.append(rejections(result.proof))
    return out
