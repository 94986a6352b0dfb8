"""What a search over deployments found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshplan.errors import Infeasible, InputError
from meshplan.found import Found
from meshplan.row import Row
from meshplan.specs.serving import DEFINITION

if TYPE_CHECKING:
    import polars as pl

    from meshplan._core import Frame
    from meshplan.found import Proof
    from meshplan.hf import ModelSpec
    from meshplan.specs.serving_plan import ServingPlan


MAX_ROWS = 5_000_000
"""Most rows that `ServingResult.frame` holds in memory, some 4 GB."""


class Deployment(Row):
    """One row of the table of deployments."""

    __slots__ = ()

    def __repr__(self) -> str:
        from meshplan.report.serving import phrase
        from meshplan.report.values import value

        if "tokens_per_s_per_gpu" not in self._values:
            return f"Deployment({self._values!r})"
        ttft, tpot = (value(name, self._values[name]) for name in ("ttft_s", "tpot_s"))
        rate = value("", self._values["tokens_per_s_per_gpu"])
        status = "" if self.feasible else f", {self._values['status']}"
        return f"<{phrase(self)}: TTFT {ttft}, TPOT {tpot}, {rate} tokens/s/GPU{status}>"


@dataclass(frozen=True)
class ServingResult(Found):
    """What a search found.

    Attributes
    ----------
    plan
        The job, checked.
    model, spec
        Name of the model, and the model as it was read.
    proof
        The account of the space.
    replayed
        Deployments that were replayed request by request.
    elapsed_s
        Time of the search, s.
    nearest
        Where nothing keeps the limits: what comes nearest, and what would meet them.
    objectives
        Objectives of the rows of ``best``.
    frames
        ``top``, ``pareto`` and ``best`` as Arrow streams.
    """

    plan: ServingPlan
    model: str
    spec: ModelSpec = field(repr=False)
    proof: Proof
    replayed: int
    elapsed_s: float
    nearest: str = ""
    objectives: tuple[str, ...] = ()
    frames: Mapping[str, Frame] = field(default_factory=dict, repr=False)

    @property
    def top(self) -> pl.DataFrame:
        """The best layouts, each with its best flags, as a `polars.DataFrame`."""
        return self._frame("top")

    @property
    def pareto(self) -> pl.DataFrame:
        """Deployments that no other beats in both throughput and speed, fastest first.

        All keep the limit on TTFT; TPOT is the axis itself.
        """
        return self._frame("pareto")

    @property
    def frame(self) -> pl.DataFrame:
        """Every deployment that runs, in closed form and in the order of the space.

        It is computed when asked for, and not kept. `batches` gives the same a part at a time, and
        says which deployments these are.

        Raises
        ------
        InputError
            When there are more than `MAX_ROWS` of them.
        """
        import polars as pl

        parts: list[pl.DataFrame] = []
        for batch in self.batches():
            parts.append(pl.DataFrame(batch))
            if sum(part.height for part in parts) > MAX_ROWS:
                raise InputError(
                    f"has more than the {MAX_ROWS:,} deployments a frame may hold",
                    field="frame",
                    hint="bound the space, take result.batches(), or write a file",
                )
        return pl.concat(parts, rechunk=False)

    def batches(self) -> Iterator[Frame]:
        """Every deployment that runs in closed form, some rows at a time, as Arrow streams.

        These are the deployments that an exhaustive search looks at: engines that obey the rules
        and fit, at every setting of their flags, whether or not they keep the limits. Where the
        search chooses the clients, the largest number of engines stands for all. Prefill and decode
        engines are matched by rate; of prefill engines of as many GPUs, those stand for all that no
        other beats. Times are means; what only a replay tells (percentiles, goodput, queues) is NaN.

        Where nothing runs, one part without rows: a file of it still has its columns.
        """
        import meshplan._core as _core
        from meshplan.serving import request

        empty = True
        with request.recorded(self.plan) as trace:
            asked = request.request(self.plan, self.spec, trace)
            for batch in _core.ServingRows(asked, threads=self.plan.threads):
                empty = False
                yield batch
        if empty:
            yield self.frames["top"]

    @property
    def best(self) -> Deployment:
        """The best deployment.

        Raises
        ------
        Infeasible
            When none keeps the limits.
        """
        rows = self.rows("top")
        if not rows:
            raise Infeasible(self.nearest)
        return Deployment(rows[0])

    @property
    def by_objective(self) -> dict[str, Deployment]:
        """The best deployment under each objective."""
        rows = [Deployment(row) for row in self.rows("best")]
        return dict(zip(self.objectives, rows, strict=True))

    def check(self) -> None:
        """Raise `Infeasible`, with the nearest miss, unless something was found."""
        if not self.feasible:
            raise Infeasible(self.nearest)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Rows of ``top``, ``pareto`` or ``best`` with their chances to keep the limits."""
        return [row | chances(self.plan, row) for row in self._frame(name).to_dicts()]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as ``planner sweep --workload serving --json`` prints it."""
        from meshplan import __version__

        top = [Deployment(row).to_dict() for row in self.rows("top")]
        return {
            "best": top[0] if top else None,
            "objectives": {name: row.to_dict() for name, row in self.by_objective.items()},
            "top": top,
            "pareto": [Deployment(row).to_dict() for row in self.rows("pareto")],
            "nearest": self.nearest or None,
            "space": {**self.proof.to_dict(), "replayed": self.replayed},
            "definition": DEFINITION,
            "elapsed_s": self.elapsed_s,
            "version": __version__,
        }

    def __repr__(self) -> str:
        found = f"{self.proof.total:,} deployments of {self.model} on {self.plan.gpus:,} GPUs"
        head = f"ServingResult of {found}"
        rows = self.rows("top")
        if not rows:
            return f"<{head}: nothing feasible; {self.nearest}>"
        lines = [f"  {index}. {Deployment(row)!r}" for index, row in enumerate(rows[:10], 1)]
        return f"<{head}, best first:\n" + "\n".join(lines) + ">"


PROBABILITIES = ("ttft_probability", "tpot_probability", "limits_probability")
"""Columns of the chances to keep the limits."""


def chances(plan: ServingPlan, row: Mapping[str, Any]) -> dict[str, float | None]:
    """Probability of keeping each limit and both, from how far predictions were from measurements.

    Errors of the two times are taken as independent. Limits on a percentile use the band of the
    mean. A time without a limit has none.
    """
    from meshplan.serving.sla import band, probability

    architecture = plan.cluster.device.architecture
    found: dict[str, float | None] = {}
    for metric in ("ttft", "tpot"):
        limit = getattr(plan.workload, metric)
        if limit is None:
            found[f"{metric}_probability"] = None
            continue
        at = plan.workload.percentile
        predicted = row[f"{metric}_s" if at == "mean" else f"{metric}_{at}_s"]
        own = band(metric, str(row["backend"]), str(row["mode"]), architecture)
        found[f"{metric}_probability"] = probability(limit, float(predicted), own)
    known = [value for value in found.values() if value is not None]
    both = 1.0
    for one in known:
        both *= one
    found["limits_probability"] = both if known else None
    return found
