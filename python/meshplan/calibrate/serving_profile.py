"""Serving numbers from a user's own deployments: ``planner calibrate --serving``.

The shipped values are the priors, no tighter than a factor of `LOOSE`. A fit is taken up where it
predicts rows that it has not seen better than the shipped numbers do: first backend by backend for
the numbers of software, then for all together. What stands that test is written; the rest stays at
the preset.

Unseen are whole (model, GPU, backend) cells where there are at least two, else five folds of
configurations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshplan.calibrate.serving import SCALES, Fit, Problem, cell_left_out
from meshplan.errors import InputError
from meshplan.specs import serving_costs
from meshplan.validate import deployments
from meshplan.validate.serving_batch import Batch, load_models

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from meshplan.calibrate.serving import Array, Groups
    from meshplan.specs.serving_costs import ServingParameter

LOOSE = 1.15
"""Least spread of a prior, as a factor: the shipped values are those of other deployments."""

FEWEST = 8
"""Fewest measured deployments that a fit is made to."""

GAIN = 0.99
"""Share of the shipped numbers' loss below which a fit counts as better."""

FOLDS = 5
ROUNDS = 3
METRICS = ("tpot", "ttft")


@dataclass(frozen=True)
class Figures:
    """Errors of one sort.

    Attributes
    ----------
    name
        ``shipped``, ``fitted``, ``cell left out``, ``model left out`` or ``fold left out``.
    tpot, ttft
        Median and ninth decile of |predicted / measured - 1|; NaN without rows.
    """

    name: str
    tpot: tuple[float, float]
    ttft: tuple[float, float]


@dataclass
class ServingProfile:
    """Serving numbers of a user's own.

    Attributes
    ----------
    rows
        Deployments that count.
    figures
        Errors under the shipped numbers and under those of the profile.
    parameters
        What differs from the preset.
    refused
        What stays at the preset → why.
    failed
        Rows that could not be read → why.
    """

    rows: int
    figures: list[Figures] = field(default_factory=list)
    parameters: list[ServingParameter] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def to_toml(self) -> str:
        """Text of a file that ``--serving-params`` reads."""
        lines = [
            "# Serving numbers by planner calibrate --serving; what is not here is the preset's."
        ]
        lines += [f"# {self.rows} deployments; median (ninth decile) of the errors in %:"]
        lines += [f"# {f.name}: TPOT {_told(f.tpot)}, TTFT {_told(f.ttft)}" for f in self.figures]
        lines += [f"# {what} stays at the preset: {why}" for what, why in self.refused.items()]
        for p in self.parameters:
            own = f"value = {p.value!r}\nsigma = {p.sigma!r}\nrows = {p.rows}"
            lines.append(f'\n["{p.name}"]\nunit = "{p.unit}"\nshipped = {p.prior!r}\n{own}')
        return "\n".join(lines) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON; what has no rows is null."""
        return {
            "rows": self.rows,
            "figures": {
                f.name: {
                    metric: {
                        key: None if math.isnan(value) else value
                        for key, value in zip(("median", "p90"), getattr(f, metric), strict=True)
                    }
                    for metric in METRICS
                }
                for f in self.figures
            },
            "parameters": {p.name: {"shipped": p.prior, "value": p.value} for p in self.parameters},
            "refused": self.refused,
            "failed": self.failed,
        }


def calibrate_serving(
    path: str | Path,
    models: str | Path = "models",
    *,
    on_step: Callable[[str], None] | None = None,
) -> ServingProfile:
    """Fit the serving numbers to measured deployments.

    Parameters
    ----------
    path
        CSV file of deployments, as of ``planner validate serving``.
    models
        Folder with ``NAME.json`` for each model that rows name.
    on_step
        Called with what is being done.

    Raises
    ------
    InputError
        When the file cannot be read, or fewer than `FEWEST` of its rows count.
    """
    rows = deployments.read_rows(path)
    batch = Batch.of(rows, load_models(rows, models))
    failed = {row["deployment_id"]: str(error) for (_, row), error in batch.failed}
    problem = Problem(batch, priors()) if batch.recorded else None
    if problem is None or len(problem.only) < FEWEST:
        found = 0 if problem is None else len(problem.only)
        reasons = [p for _, error in batch.failed for p in error.problems]
        rule = f"holds {found} deployments that can be predicted and have a measured time"
        hint = f"a fit needs {FEWEST}; planner validate serving says what is wrong with rows"
        raise InputError.all_of([*InputError(rule, where=str(path), hint=hint).problems, *reasons])
    return _Search(problem, failed, on_step or (lambda _: None)).run()


def priors() -> list[ServingParameter]:
    """The fitted numbers with their shipped values as priors."""
    return [
        replace(p, prior=p.value, spread=max(math.exp(p.sigma), LOOSE))
        for p in serving_costs.parameters()
        if p.fitted
    ]


class _Search:
    """Which numbers to take up."""

    def __init__(
        self, problem: Problem, failed: dict[str, str], on_step: Callable[[str], None]
    ) -> None:
        self.all, self.say = problem, on_step
        self.profile = ServingProfile(len(problem.only), failed=failed)
        self.rows = [job.row for job in problem.batch.recorded]
        self.sort, self.groups = self.unseen()
        self.shipped = problem.all_logs(problem.start())

    def unseen(self) -> tuple[str, Groups]:
        """What is left out together: cells, or folds of configurations where there is one cell."""
        cells = np.array([cell_left_out(row) for row in self.rows])
        if len(np.unique(cells[self.all.only])) > 1:
            return "cell left out", cells
        keys = [row.get("config_key") or row["deployment_id"] for row in self.rows]
        number = {key: str(i % FOLDS) for i, key in enumerate(dict.fromkeys(keys))}
        return "fold left out", np.array([number[key] for key in keys])

    def run(self) -> ServingProfile:
        profile, chosen = self.profile, self.all.parameters
        problem, fit, left = self.fitted(chosen)
        worse = [name for name in self.backends() if not self.better(left, self.of(name))]
        for name in worse:
            told = self.compared(left, self.of(name))
            profile.refused[f"software of {name}"] = told
        kept = [
            p
            for p in chosen
            if not any(t.startswith(f"software.{n}.") for t in p.targets for n in worse)
        ]
        if worse and kept:
            problem, fit, left = self.fitted(kept)
        everything = np.ones(len(self.rows), dtype=bool)
        if not kept or not self.better(left, everything):
            profile.refused["every number"] = self.compared(left, everything)
            profile.figures = [self.figures("shipped", self.shipped)]
            return profile
        profile.parameters = _changed(problem, fit)
        profile.figures = [
            self.figures("shipped", self.shipped),
            self.figures("fitted", fit.logs),
            self.figures(self.sort, left),
        ]
        by_model = np.array([row["model"] for row in self.rows])
        if len(np.unique(by_model[self.all.only])) > 1:
            self.say("leaving models out")
            profile.figures.append(self.figures("model left out", problem.left_out(fit, by_model)))
        return profile

    def fitted(self, parameters: Sequence[ServingParameter]) -> tuple[Problem, Fit, Array]:
        """Fit of some numbers, and the errors of rows that it has not seen."""
        self.say(f"fitting {len(parameters)} numbers to {len(self.all.only)} deployments")
        problem = Problem(self.all.batch, parameters)
        fit = problem.solve(rounds=ROUNDS)
        told = self.sort.replace("left out", "without its rows")
        left = problem.left_out(fit, self.groups, lambda name: self.say(f"{told}: {name}"))
        return problem, fit, left

    def backends(self) -> list[str]:
        return sorted({self.all.batch.recorded[i].backend for i in self.all.only})

    def of(self, backend: str) -> Any:
        return np.array([job.backend == backend for job in self.all.batch.recorded])

    def loss(self, logs: Array, rows: Any) -> float:
        """Mean of the robust loss of the fit."""
        counts = self.all.counts & rows[:, None]
        size = 2 * (np.sqrt(1 + (np.where(counts, logs, 0.0) / SCALES) ** 2) - 1)
        return float(size.sum() / max(counts.sum(), 1))

    def better(self, left: Array, rows: Any) -> bool:
        return self.loss(left, rows) < GAIN * self.loss(self.shipped, rows) - 1e-9

    def compared(self, left: Array, rows: Any) -> str:
        """Errors of unseen rows under the shipped numbers and under a fit."""
        a, b = (
            " and ".join(
                f"{m.upper()} {_told(quantiles(self.all, logs, m, rows))}" for m in METRICS
            )
            for logs in (self.shipped, left)
        )
        return f"{self.sort}, a fit predicts no better: {b}; shipped {a}"

    def figures(self, name: str, logs: Array) -> Figures:
        rows = np.ones(len(self.rows), dtype=bool)
        tpot, ttft = (quantiles(self.all, logs, metric, rows) for metric in METRICS)
        return Figures(name, tpot, ttft)


def quantiles(problem: Problem, logs: Array, metric: str, rows: Any) -> tuple[float, float]:
    """Median and ninth decile of |predicted / measured - 1|; NaN without rows."""
    column = METRICS.index(metric)
    own = logs[problem.counts[:, column] & rows, column]
    if not len(own):
        return math.nan, math.nan
    errors = np.abs(np.expm1(own))
    return float(np.quantile(errors, 0.5)), float(np.quantile(errors, 0.9))


def _changed(problem: Problem, fit: Fit) -> list[ServingParameter]:
    """Numbers that the deployments move by more than rounding."""
    own = {p.name for p in problem.parameters}
    shipped = {p.name: p.value for p in serving_costs.parameters()}
    found = [p for p in problem.fitted(fit) if p.name in own and p.rows]
    return [
        replace(p, prior=shipped[p.name])
        for p in found
        if abs(p.value / shipped[p.name] - 1) > 1e-3
    ]


def _told(figures: tuple[float, float]) -> str:
    return "-" if math.isnan(figures[0]) else f"{100 * figures[0]:.1f} ({100 * figures[1]:.0f})"
