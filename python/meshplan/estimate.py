"""One layout, estimated: every term, its groups and its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.errors import Infeasible
from meshplan.report.values import LAYOUT, phrase, value
from meshplan.row import Row

if TYPE_CHECKING:
    from meshplan.bands import Band


class Estimate(Row):
    """One row of the table of layouts."""

    __slots__ = ()

    @property
    def layout(self) -> dict[str, Any]:
        """The columns that say which layout this is."""
        return {name: self._values[name] for name in LAYOUT}

    def __repr__(self) -> str:
        if "step_time_s" not in self._values:
            return f"Estimate({self._values!r})"
        if self._values["step_time_s"] is None:
            return f"<{phrase(self)}: {self._values['status']}>"
        shown = ("step_time_s", "tokens_per_s_per_gpu", "mfu_ratio", "peak_memory_bytes")
        step, rate, mfu, memory = (value(name, self._values[name]) for name in shown)
        status = "" if self.feasible else f", {self._values['status']}"
        return f"<{phrase(self)}: {step}, {rate} tokens/s/GPU, MFU {mfu}, {memory}{status}>"


@dataclass(frozen=True)
class Explanation:
    """What is to be said of one layout.

    Attributes
    ----------
    row
        Every term; only layout and status where a rule is broken.
    refusal
        The rule that the layout breaks (``rule``, ``status``, ``text``), if any.
    groups
        Rank groups: ``name``, ``ranks``, ``stride``, ``per_domain``, ``links``.
    stages
        Pipeline stages with their layers, times and memory.
    replay
        The pipeline schedule replayed event by event: ``makespan_s``, ``bubble_s``; None for one
        stage and for DualPipe.
    """

    row: Estimate
    refusal: Mapping[str, str] | None
    groups: tuple[Mapping[str, Any], ...]
    stages: tuple[Mapping[str, Any], ...]
    replay: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls,
        answer: Mapping[str, Any],
        columns: list[str],
        band: Callable[[Mapping[str, Any]], Band],
    ) -> Explanation:
        """Explanation of a core's answer, with the error band of its row."""
        told = answer["explanation"]
        if told is None:
            refusal = answer["refusal"]
            known = {**answer["layout"], "status": refusal["status"]}
            row = {name: known.get(name) for name in columns}
            return cls(Estimate(row), refusal, (), ())
        row = told["row"] | band(told["row"]).to_dict()
        groups, stages = tuple(told["groups"]), tuple(told["stages"])
        return cls(Estimate(row), None, groups, stages, told["replay"])

    def check(self) -> None:
        """Raise `Infeasible`, with the reason, unless the layout obeys every rule and fits."""
        if self.refusal:
            rule = f"{self.refusal['status']}: {self.refusal['text']}"
            raise Infeasible(f"the layout is not feasible: {rule}", hint="see planner explain")
        if not self.row.feasible:
            missing = value("headroom_bytes", -self.row["headroom_bytes"])
            hint = "recompute, shard or split more, or take a smaller micro-batch"
            raise Infeasible(f"the layout does not fit: {missing} too much memory", hint=hint)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "row": self.row.to_dict(),
            "refusal": dict(self.refusal) if self.refusal else None,
            "groups": [dict(group) for group in self.groups],
            "stages": [dict(stage) for stage in self.stages],
            "replay": dict(self.replay) if self.replay else None,
        }
