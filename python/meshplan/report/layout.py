"""Reports about one layout: its terms, its groups, its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from meshplan.report.console import table
from meshplan.report.terms import MEMORY, PAGE, STEP, Term
from meshplan.report.values import phrase, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshplan.alternatives import Change

BAR = 24
"""Characters of a full bar."""


def heading(row: Mapping[str, Any]) -> str:
    """Layout and its results in two lines."""
    results = [
        f"step {value('step_time_s', row['step_time_s'])}",
        f"{value('tokens_per_s_per_gpu', row['tokens_per_s_per_gpu'])} tokens/s/GPU",
        f"MFU {value('mfu_ratio', row['mfu_ratio'])}",
        f"memory {value('peak_memory_bytes', row['peak_memory_bytes'])}",
        f"head-room {value('headroom_bytes', row['headroom_bytes'])}",
        f"status {row['status']}",
    ]
    return f"{phrase(row)}\n" + ", ".join(results)


def terms(title: str, row: Mapping[str, Any], total: str, parts: Sequence[Term]) -> Table:
    """Terms of a total with their shares; terms that are zero are left out."""
    whole = row[total]
    made = table(title, ["", "", "share", ""], left=1)
    made.show_header = False
    made.columns[3].justify = "left"
    for part in parts:
        item = row[part.name]
        if item:
            share = item / whole
            bar = "█" * round(BAR * max(0.0, min(1.0, share)))
            made.add_row(part.name, value(part.name, item), f"{100 * share:.1f} %", bar)
    made.add_row(total, value(total, whole), "100.0 %", "", style="bold")
    return made


def formulas(row: Mapping[str, Any]) -> Table:
    """Each term that is not zero with its formula and source."""
    title = f"Terms, formulas, sources (symbols and equations: {PAGE})"
    made = table(title, ["term", "value", "formula", "source"], left=1)
    made.columns[2].justify = made.columns[3].justify = "left"
    for part in (*STEP, *MEMORY):
        item = row[part.name]
        if item:
            made.add_row(part.name, value(part.name, item), part.formula, part.source)
    return made


def replayed(told: Mapping[str, Any]) -> str:
    """Replay of the pipeline schedule, in one line."""
    makespan, bubble = (value(name, told[name]) for name in ("makespan_s", "bubble_s"))
    return f"Schedule replayed event by event: {makespan}; the busiest stage idles {bubble} of it"


def groups(items: Sequence[Mapping[str, Any]]) -> Table:
    """Process groups and the links that they span."""
    headers = ["group", "ranks", "stride", "per domain", "links"]
    made = table("Rank groups", headers, left=1)
    made.columns[4].justify = "left"
    for item in items:
        numbers = [f"{item[name]:,}" for name in ("ranks", "stride", "per_domain")]
        made.add_row(item["name"], *numbers, ", ".join(item["links"]))
    return made


def stages(items: Sequence[Mapping[str, Any]]) -> Table:
    """Memory and time of each kind of stage."""
    names = {
        "weights_bytes": "weights",
        "gradients_bytes": "gradients",
        "optimizer_bytes": "optimizer",
        "activations_bytes": "activations",
        "logits_bytes": "logits",
        "allocated_bytes": "allocated",
        "headroom_bytes": "head-room",
        "forward_s": "forward",
        "backward_s": "backward",
    }
    made = table("Stages", ["stage", "layers", "in flight", *names.values()], left=2)
    for item in items:
        alike = f" (×{item['stages']})" if item["stages"] > 1 else ""
        layers = [f"{count} {kind}" for kind, count in item["layers"]]
        ends = ["embedding"] * item["embedding"] + ["head"] * item["head"]
        cells = [value(name, item[name]) for name in names]
        in_flight = f"{item['in_flight']:.4g}"
        made.add_row(f"{item['stage']}{alike}", ", ".join(layers + ends), in_flight, *cells)
    return made


def changes(title: str, old: Mapping[str, Any], items: Sequence[Change]) -> Table:
    """Better layouts that differ in one respect."""
    made = table(title, ["change", "step", "", "memory", "falls most"], left=1)
    made.columns[4].justify = "left"
    for item in items:
        words = [
            f"{axis} {value(axis, old[axis])} → {value(axis, to)}" for axis, to in item.axes.items()
        ]
        step, before = item.row.step_time_s, old["step_time_s"]
        gain = "" if before is None else f"{100 * (step / before - 1):+.1f} %"
        made.add_row(
            ", ".join(words),
            value("step_time_s", step),
            gain,
            value("peak_memory_bytes", item.row.peak_memory_bytes),
            item.term,
        )
    return made
