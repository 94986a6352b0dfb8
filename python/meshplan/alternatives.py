"""What would be better: the best layouts that differ from a given one in one respect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan import search
from meshplan.report.terms import MEMORY, STEP
from meshplan.report.values import LAYOUT
from meshplan.specs.base import build
from meshplan.specs.space import Space

if TYPE_CHECKING:
    from meshplan.estimate import Estimate, Explanation
    from meshplan.hf import ModelSpec
    from meshplan.specs.plan import Plan

RESPECTS = (
    ("tp", "sequence_parallel"),
    ("sequence_parallel",),
    ("pp", "schedule", "vpp"),
    ("schedule", "vpp"),
    ("cp",),
    ("ep", "etp"),
    ("micro_batch",),
    ("sharding", "shard_group"),
    ("recompute", "recompute_layers"),
)
"""Axes that are opened together, all others being held; dp takes what the others leave."""

FREE = {"dp", "shard_group", "recompute_layers"}
"""Axes that follow from others unless they are what is varied or what was asked for."""


@dataclass(frozen=True)
class Change:
    """A better layout that differs in one respect.

    Attributes
    ----------
    axes
        Axis → value there (dp follows from the others and is left out).
    row
        Every term of the other layout.
    term
        The term of the step time, or of the memory if the layout did not fit, that falls most.
    """

    axes: dict[str, Any]
    row: Estimate
    term: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"axes": self.axes, "term": self.term, "row": self.row.to_dict()}


def alternatives(plan: Plan, model: ModelSpec, told: Explanation) -> list[Change]:
    """Better layouts that differ in one respect, the best first.

    Better is faster, or for a layout that is not feasible: feasible.
    """
    found: dict[str, Change] = {}
    for axes in RESPECTS:
        result = search.run(_opened(plan, told.row, axes), model)
        if not result.feasible:
            continue
        best = result.best
        if told.row.feasible and best.step_time_s >= told.row.step_time_s:
            continue
        change = _change(told.row, best)
        if change.axes:
            found.setdefault(repr(change.axes), change)
    return sorted(found.values(), key=lambda change: float(change.row.step_time_s))


def _opened(plan: Plan, row: Estimate, axes: tuple[str, ...]) -> Plan:
    """Plan whose space is the given layout with some axes open."""
    pins = {axis: row[axis] for axis in LAYOUT if axis not in FREE and axis not in axes}
    if row.sharding == "hsdp" and "sharding" not in axes:
        pins["shard_group"] = row.shard_group
    if row.recompute == "block" and "recompute" not in axes:
        pins["recompute_layers"] = row.recompute_layers
    space = build(Space, pins)
    return plan.model_copy(update={"space": space, "top": 1, "threads": 1})


def _change(old: Estimate, new: Estimate) -> Change:
    skipped = {"dp"}
    skipped |= {"shard_group"} if new.sharding != "hsdp" else set()
    skipped |= {"recompute_layers"} if new.recompute != "block" else set()
    axes = {a: new[a] for a in LAYOUT if a not in skipped and new[a] != old[a]}
    return Change(axes, new, _falls_most(old, new))


def _falls_most(old: Estimate, new: Estimate) -> str:
    if old["step_time_s"] is None:
        return ""
    terms = STEP if old.feasible else MEMORY
    return max((term.name for term in terms), key=lambda name: float(old[name] - new[name]))
