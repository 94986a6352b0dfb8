"""What a search over layouts found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshplan.errors import Infeasible, InputError
from meshplan.estimate import Estimate
from meshplan.found import Found

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

    from meshplan._core import Frame, SweepRows
    from meshplan.bands import Band
    from meshplan.found import Proof
    from meshplan.specs.plan import Plan


MAX_ROWS = 10_000_000
"""Most rows that `Result.frame` holds in memory, some 4 GB."""


@dataclass(frozen=True)
class Result(Found):
    """What a search found.

    Attributes
    ----------
    plan
        The job, checked.
    model, software
        Names of the model and of the framework generation.
    proof
        The account of the space.
    elapsed_s
        Time of the search, s.
    nearest
        Where nothing is feasible: the constraint that is nearest to giving way.
    request
        What was asked of the core, as canonical JSON.
    frames
        ``top`` and ``pareto`` as Arrow streams.
    """

    plan: Plan
    model: str
    software: str
    proof: Proof
    elapsed_s: float
    nearest: str = ""
    request: str = field(default="", repr=False)
    frames: Mapping[str, Frame] = field(default_factory=dict, repr=False)

    @property
    def top(self) -> pl.DataFrame:
        """The best layouts, fastest first, as a `polars.DataFrame`."""
        return self._frame("top")

    @property
    def pareto(self) -> pl.DataFrame:
        """Layouts that no other beats in both step time and memory, fastest first."""
        return self._frame("pareto")

    @property
    def best(self) -> Estimate:
        """The fastest layout that fits.

        Raises
        ------
        Infeasible
            When there is none.
        """
        rows = self.rows("top")
        if not rows:
            raise Infeasible(self.nearest)
        return Estimate(rows[0])

    @property
    def frame(self) -> pl.DataFrame:
        """Every layout that obeys the rules, fitting or not, in the order of the space.

        It is computed when asked for, and not kept. `batches` gives the same a part at a time.

        Raises
        ------
        InputError
            When there are more than `MAX_ROWS` of them.
        """
        import polars as pl

        source = self._all()
        if source.feasible > MAX_ROWS:
            raise InputError(
                f"has {source.feasible:,} layouts, more than the {MAX_ROWS:,} a frame may hold",
                field="frame",
                hint="bound the space, take result.batches(), or write a file",
            )
        parts = [pl.DataFrame(part) for part in source]
        return pl.concat(parts or [self.top], rechunk=False)

    def batches(self) -> Iterator[Frame]:
        """Every layout that obeys the rules, some rows at a time, as Arrow streams.

        Where none does, one part without rows: a file of it still has its columns.
        """
        source = self._all()
        if source.feasible == 0:
            yield self.frames["top"]
        yield from source

    def _all(self) -> SweepRows:
        import meshplan._core as _core

        return _core.SweepRows(self.request, threads=self.plan.threads)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Rows of ``top`` or ``pareto`` as plain values, each with its error band."""
        return [row | self.band(row).to_dict() for row in self._frame(name).to_dicts()]

    def band(self, row: Mapping[str, Any]) -> Band:
        """Error band of a row: how far measured runs of the nearest kind were from predictions."""
        from meshplan.bands import band

        return band(self.software, self.plan.cluster.device.architecture, row)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as ``planner sweep --json`` prints it."""
        from meshplan import __version__

        top = [Estimate(row).to_dict() for row in self.rows("top")]
        return {
            "best": top[0] if top else None,
            "top": top,
            "pareto": [Estimate(row).to_dict() for row in self.rows("pareto")],
            "space": self.proof.to_dict(),
            "elapsed_s": self.elapsed_s,
            "version": __version__,
        }

    def __repr__(self) -> str:
        head = f"Result of {self.proof.total:,} layouts of {self.model} on {self.plan.gpus:,} GPUs"
        rows = self.rows("top")
        if not rows:
            return f"<{head}: nothing feasible; {self.nearest}>"
        lines = [f"  {index}. {Estimate(row)!r}" for index, row in enumerate(rows[:10], 1)]
        return f"<{head}, best first:\n" + "\n".join(lines) + ">"
