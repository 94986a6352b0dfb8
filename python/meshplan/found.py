"""What every search finds: its tables, and the proof that it looked everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from meshplan._core import Frame


@dataclass(frozen=True)
class Proof:
    """Account of a space: ``total = evaluated + pruned + Σ rejected``.

    Attributes
    ----------
    total
        Candidates of the space.
    evaluated
        Candidates that were estimated and fit.
    pruned
        Candidates that a bound showed to be no better than what was kept.
    rejected
        Candidates that are not feasible, by reason.
    rules
        The broken rules behind `rejected`, in the order of checks: ``rule``, ``status``, ``text``
        with the numbers of an ``example``, and ``layouts`` that each rejects.
    """

    total: int
    evaluated: int
    pruned: int
    rejected: Mapping[str, int]
    rules: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def holds(self) -> bool:
        """Whether every candidate is accounted for."""
        return self.total == self.evaluated + self.pruned + sum(self.rejected.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in ``planner sweep --json``."""
        return {
            "total": self.total,
            "evaluated": self.evaluated,
            "pruned": self.pruned,
            "rejected": dict(self.rejected),
        }


class Found:
    """Tables and account of a search."""

    proof: Proof
    frames: Mapping[str, Frame]

    @property
    def feasible(self) -> bool:
        """Whether something obeys every rule, fits and keeps every limit."""
        return len(self.frames["top"]) > 0

    @property
    def rejections(self) -> dict[str, int]:
        """Rejected candidates by reason, most frequent first."""
        return dict(sorted(self.proof.rejected.items(), key=lambda item: -item[1]))

    def _frame(self, name: str) -> pl.DataFrame:
        import polars as pl

        return pl.DataFrame(self.frames[name])
