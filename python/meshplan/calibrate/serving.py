"""Fit of the serving numbers to measured deployments.

An observation is a deployment's mean TPOT or mean TTFT; its residual is log(predicted / measured).
The loss is pseudo-Huber, with a scale of 0.08 for TPOT and 0.2 for TTFT, since one row in ten is
special or wrong; a (model, GPU, backend, mode) cell of n observations counts by n^0.65. A parameter
θ adds ((log θ − log prior) / log spread)². Gauss-Newton on the reweighted squares; for a column of
the Jacobian only the deployments are predicted that the parameter can move. A fit without some rows
starts from the full one and keeps its Jacobian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshplan.specs import serving_costs
from meshplan.validate.serving_batch import architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshplan.specs.serving_costs import ServingParameter
    from meshplan.validate.serving_batch import Batch

Array = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Groups = np.ndarray[Any, np.dtype[np.str_]]

SCALES = np.array([0.08, 0.2])
"""Relative errors of TPOT and TTFT from which a residual counts linearly rather than squared."""

CELL_EXPONENT = 0.35
"""Observations of a cell of n count n^−exponent each."""

FAR = 3.0
"""Largest logarithm of an error, also that of a deployment that is predicted not to run."""

STEP = 0.01
"""Step of a finite difference, in the logarithm."""

LONGEST = 0.7
"""Longest move of a parameter in one iteration, in the logarithm."""

ONLY_SPLIT = ("transfer_s", "transfer_bytes_per_s", "disaggregated_")
ONLY_DRAFTS = ("acceptance", "draft_s", "speculative_ttft_s")
ONLY_JOINT = ("mixed_decode_share", "ttft_s")


@dataclass(frozen=True)
class Fit:
    """Where a fit ended.

    Attributes
    ----------
    theta
        Logarithms of the values.
    logs
        log(predicted / measured): a column of TPOT, one of TTFT.
    jacobian
        Their derivatives: deployments × 2 × parameters.
    cost
        Loss.
    """

    theta: Array
    logs: Array
    jacobian: Array
    cost: float


class Problem:
    """Measured deployments, parameters, and how the latter move the former.

    Parameters
    ----------
    batch
        Interpreted deployments.
    parameters
        What is fitted (every fitted parameter of the presets unless given).
    """

    def __init__(self, batch: Batch, parameters: Sequence[ServingParameter] | None = None) -> None:
        self.batch = batch
        chosen = serving_costs.parameters() if parameters is None else parameters
        self.parameters = [p for p in chosen if p.fitted]
        rows = [job.row for job in batch.recorded]
        measured = [[_positive(r, "tpot_ms"), _positive(r, "ttft_ms")] for r in rows]
        self.measured = np.array(measured) / 1e3
        wanted = [[_true(r, "score_tpot"), _true(r, "score_ttft")] for r in rows]
        self.counts = np.array(wanted) & ~np.isnan(self.measured)
        self.only: Whole = np.flatnonzero(self.counts.any(axis=1)).astype(np.int64)
        self.cells = np.array([cell(job.row) for job in batch.recorded])
        self.moved = [self._moved(p) for p in self.parameters]
        self.priors = np.log([p.prior for p in self.parameters])
        self.stiffness = 1 / np.log([p.spread for p in self.parameters])

    def _moved(self, parameter: ServingParameter) -> Whole:
        """Deployments that a parameter can move."""
        found = np.zeros(len(self.batch.recorded), dtype=bool)
        architectures = [
            serving_costs.ARCHITECTURES[architecture(job.device)] for job in self.batch.recorded
        ]
        for target in parameter.targets:
            kind, name, *path = target.split(".")
            if not path:
                found[:] = True
                continue
            field = path[0]
            for i, job in enumerate(self.batch.recorded):
                own = architectures[i] if kind == "hardware" else job.backend
                if name in ("*", own) and _concerned(field, job.deployment):
                    found[i] = True
        moved: Whole = self.only[found[self.only]]
        return moved

    def weights(self, left_out: Mask | None = None) -> Array:
        """Weight of each observation: none for rows left out, cells by n^0.65, 1 on average."""
        counted = self.counts if left_out is None else self.counts & ~left_out[:, None]
        found = np.zeros(counted.shape)
        for column in (0, 1):
            own = counted[:, column]
            names, place, n = np.unique(self.cells[own], return_inverse=True, return_counts=True)
            if len(names):
                found[own, column] = n[place] ** -CELL_EXPONENT
        return found / max(float(found[counted].mean()), 1e-12)

    def start(self) -> Array:
        """Logarithms of the present values."""
        return np.array([math.log(p.value) for p in self.parameters])

    def values(self, theta: Array) -> dict[str, float]:
        """Values by name."""
        return {p.name: math.exp(t) for p, t in zip(self.parameters, theta, strict=True)}

    def logs(self, theta: Array, rows: Whole) -> Array:
        """log(predicted / measured) of some deployments."""
        tables = serving_costs.tables(self.values(theta))
        frame = self.batch.predict(tables, rows.tolist())
        predicted = frame.select("tpot_mean_s", "ttft_mean_s").to_numpy()
        runs = frame["fits"].to_numpy() & (frame["rejected"].to_numpy() == 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(predicted / self.measured[rows])
        found[~runs] = FAR
        kept: Array = np.nan_to_num(found, nan=FAR).clip(-FAR, FAR)
        return kept

    def all_logs(self, theta: Array) -> Array:
        """The same of every deployment that counts; 0 for the others."""
        found = np.zeros(self.measured.shape)
        found[self.only] = self.logs(theta, self.only)
        return found

    def jacobian(self, theta: Array, logs: Array) -> Array:
        """Derivatives by forward differences."""
        found = np.zeros((*logs.shape, len(theta)))
        for j, rows in enumerate(self.moved):
            if len(rows):
                moved = theta.copy()
                moved[j] += STEP
                found[rows, :, j] = (self.logs(moved, rows) - logs[rows]) / STEP
        return found.clip(-5.0, 5.0)

    def cost(self, theta: Array, logs: Array, weights: Array) -> float:
        """Loss of residuals and priors."""
        rows = weights * 2 * (np.sqrt(1 + (logs / SCALES) ** 2) - 1)
        prior = ((theta - self.priors) * self.stiffness) ** 2
        return float(rows.sum() + prior.sum())

    def direction(self, theta: Array, fit: tuple[Array, Array], weights: Array) -> Array:
        """Gauss-Newton step."""
        logs, jacobian = fit
        matrix, gradient = self._normal(theta, logs, jacobian, weights)
        step: Array = -np.linalg.solve(matrix, gradient).clip(-LONGEST, LONGEST)
        return step

    def _normal(
        self, theta: Array, logs: Array, jacobian: Array, weights: Array
    ) -> tuple[Array, Array]:
        reweighted = weights / np.sqrt(1 + (logs / SCALES) ** 2) / SCALES**2
        stiff = self.stiffness**2
        matrix = np.einsum("ikj,ik,ikl->jl", jacobian, reweighted, jacobian, optimize=True)
        gradient = np.einsum("ikj,ik->j", jacobian, reweighted * logs, optimize=True)
        return matrix + np.diag(stiff), gradient + stiff * (theta - self.priors)

    def descend(self, fit: Fit, weights: Array, steps: int) -> Fit:
        """Steps along a Jacobian that stays as it is."""
        theta, logs = fit.theta, fit.logs
        cost = self.cost(theta, logs, weights)
        for _ in range(steps):
            step = self.direction(theta, (logs, fit.jacobian), weights)
            before = cost
            for share in (1.0, 0.5, 0.2):
                tried = theta + share * step
                found = self.all_logs(tried)
                reached = self.cost(tried, found, weights)
                if reached < before:
                    theta, logs, cost = tried, found, reached
                    break
            if before - cost < 0.5:
                break
        return Fit(theta, logs, fit.jacobian, cost)

    def solve(self, start: Array | None = None, rounds: int = 6) -> Fit:
        """Fit to every row.

        Parameters
        ----------
        start
            Logarithms of the values to start from (the presets' unless given).
        rounds
            Jacobians, at most.
        """
        theta = self.start() if start is None else start
        logs, weights = self.all_logs(theta), self.weights()
        cost = self.cost(theta, logs, weights)
        fit = Fit(theta, logs, self.jacobian(theta, logs), cost)
        for _ in range(rounds):
            found = self.descend(fit, weights, 3)
            fit = replace(found, jacobian=self.jacobian(found.theta, found.logs))
            if cost - fit.cost < 1.0:
                break
            cost = fit.cost
        return fit

    def left_out(
        self, fit: Fit, groups: Groups, on_group: Callable[[str], None] | None = None
    ) -> Array:
        """log(predicted / measured) of each group under a fit to the others.

        Parameters
        ----------
        fit
            Fit to every row, from which those without a group start.
        groups
            Group of each deployment.
        on_group
            Called with each group when it is done.
        """
        found = np.full(self.measured.shape, np.nan)
        for group in np.unique(groups[self.only]):
            out = groups == group
            without = self.descend(fit, self.weights(out), 4)
            found[out] = without.logs[out]
            if on_group:
                on_group(str(group))
        return found

    def fitted(self, fit: Fit) -> list[ServingParameter]:
        """Every number of the presets, with the values of a fit."""
        matrix, _ = self._normal(fit.theta, fit.logs, fit.jacobian, self.weights())
        sigmas = np.sqrt(np.diag(np.linalg.inv(matrix)))
        effect = np.abs(fit.jacobian).max(axis=1) * np.log([p.spread for p in self.parameters])
        rows = (effect > 0.01).sum(axis=0)
        new = {
            p.name: replace(
                p,
                value=float(f"{math.exp(t):.4g}"),
                sigma=float(f"{s:.2g}"),
                rows=int(n),
            )
            for p, t, s, n in zip(self.parameters, fit.theta, sigmas, rows, strict=True)
        }
        return [new.get(p.name, p) for p in serving_costs.parameters()]


def cell(row: Mapping[str, str]) -> str:
    """Cell of a row: model, GPU, backend, mode."""
    return " ".join(row.get(k, "") for k in ("model", "gpu", "backend", "mode"))


def cell_left_out(row: Mapping[str, str]) -> str:
    """What is left out together: model, GPU and backend, aggregated or not."""
    return " ".join(row.get(k, "") for k in ("model", "gpu", "backend"))


def _concerned(field: str, deployment: Mapping[str, Any]) -> bool:
    """Whether a field of the software matters to a deployment at all."""
    split = deployment["prefill"] is not None
    if field.startswith(ONLY_SPLIT):
        return split
    if field in ONLY_JOINT:
        return not split
    if field in ONLY_DRAFTS:
        return bool(deployment["decode"]["engine"]["spec_tokens"])
    return True


def _positive(row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row.get(column, ""))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and value > 0 else math.nan


def _true(row: Mapping[str, str], column: str) -> bool:
    """Whether a row says so; rows without the column all count."""
    return row.get(column, "true").lower() == "true"


HEAD = """\
# Numbers of serving: what kernels reach on a GPU architecture, and what a backend adds.
#
# One table each. `targets` are fields of the core's Hardware (by architecture), Software (by
# backend) and Routing (a default that a measured routing overrides); `*` stands for every one.
# `prior` and `spread` (a factor; 1: fixed) say what was believed before the fit and why (`source`);
# `value` and `sigma` (of the logarithm, from the Gauss-Newton covariance) what the measured
# deployments say; `rows` how many of them it moves by more than 1 % when it moves by its spread.
# docs/serving-model.md has the equations.
"""


def to_toml(parameters: Sequence[ServingParameter]) -> str:
    """Text of ``presets/serving.toml``."""
    tables = [HEAD]
    for p in parameters:
        targets = ", ".join(f'"{target}"' for target in p.targets)
        tables.append(
            f'["{p.name}"]\ntargets = [{targets}]\nunit = "{p.unit}"\nsource = "{p.source}"\n'
            f"prior = {p.prior!r}\nspread = {p.spread!r}\n"
            f"value = {p.value!r}\nsigma = {p.sigma!r}\nrows = {p.rows}\n"
        )
    return "\n".join(tables)
