"""Fit of the training parameters to measured runs.

An observation is a run's step time or its peak memory; its residual is log(predicted / measured),
weighted so that a source of n observations counts by n^0.35. Inside a ranking group, the deviations
of step times from their mean count once more, since a layout is chosen by order, not by level. A
parameter θ adds (log θ − log prior) / log spread. The loss is soft-L1; SciPy's least squares solves
it. Only the runs that a parameter can move are evaluated for its column of the Jacobian.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshplan.specs import overlay, software
from meshplan.validate import predict
from meshplan.validate import runs as recorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshplan.specs.overlay import Parameter
    from meshplan.validate.predict import Batch
    from meshplan.validate.runs import Run

Array = np.ndarray[Any, np.dtype[np.float64]]

SOFT = 0.05
"""Relative error from which a residual counts linearly rather than squared."""

RANKING_WEIGHT = 2.0
"""Weight of deviations inside a ranking group over that of levels."""


@dataclass
class Fit:
    """Fitted values.

    Attributes
    ----------
    names
        Parameters.
    values
        Their values.
    sigmas
        Standard deviations of the logarithms.
    rows
        Runs that each moves by more than 1 % when it moves by its spread.
    """

    names: list[str]
    values: Array
    sigmas: Array
    rows: list[int]


@dataclass(frozen=True)
class Observation:
    """A measured number of a run: its step time, or its peak memory."""

    run: int
    memory: bool
    measured: float


class Problem:
    """Runs, parameters, and how the latter move the former.

    Parameters
    ----------
    batch
        Interpreted runs.
    only
        Runs to fit to (all that measured something unless given).
    boost
        Runs that count like a whole source each: the user's own.
    parameters
        What is fitted (every parameter of the presets unless given).
    """

    def __init__(
        self,
        batch: Batch,
        only: Sequence[int] | None = None,
        boost: Sequence[int] = (),
        parameters: Sequence[Parameter] | None = None,
    ) -> None:
        self.batch = batch
        self.parameters = list(overlay.parameters() if parameters is None else parameters)
        self.base_clusters = [json.loads(recorded.cluster_json(r)) for r in batch.clusters]
        runs = range(len(batch.runs)) if only is None else only
        self.seen = [o for i in runs for o in _observations(i, batch.runs[i].row)]
        self.only = sorted({o.run for o in self.seen})
        self.logs_measured = np.log([o.measured for o in self.seen])
        self.weights = self._weights(set(boost))
        self.groups = self._groups()
        self.moved = [self._moved(p) for p in self.parameters]
        self._texts: dict[tuple[float, ...], str] = {}
        self._softwares: dict[tuple[float, ...], list[str]] = {}

    def _weights(self, boost: set[int]) -> Array:
        keys = [(self.batch.runs[o.run].row["source"], o.memory) for o in self.seen]
        count = {key: keys.count(key) for key in set(keys)}
        trust = [self.batch.runs[o.run].row["trust"] for o in self.seen]
        return np.array(
            [
                (1.0 if grade in "AB" else 0.3)
                * (1.0 if seen.run in boost else count[key] ** -0.325)
                for seen, grade, key in zip(self.seen, trust, keys, strict=True)
            ]
        )

    def _groups(self) -> list[Array]:
        found: dict[str, list[int]] = {}
        for place, seen in enumerate(self.seen):
            group = self.batch.runs[seen.run].row.get("ranking_group", "")
            if group and not seen.memory:
                found.setdefault(group, []).append(place)
        return [np.array(v) for v in found.values() if len(v) >= 4]

    def _moved(self, parameter: Parameter) -> list[int]:
        """Runs that a parameter can move."""
        tables = software.raw_tables()
        heads = [target.split(".")[:2] for target in parameter.targets]
        devices = {n for kind, n in heads if kind == "devices"}
        fabrics = {n for kind, n in heads if kind == "fabrics"}
        systems = {n for kind, n in heads if kind == "software"}
        moved = []
        for i in self.only:
            run = self.batch.runs[i]
            link = recorded.link(run)
            if (
                run.device in devices
                or run.fabric in fabrics
                or link in fabrics
                or systems.intersection(software.ancestry(run.software, tables))
            ):
                moved.append(i)
        return moved

    def predictions(self, theta: Array, only: Sequence[int]) -> dict[int, tuple[float, float]]:
        """Step time and peak memory of some runs, as their tools would print it."""
        values = {p.name: math.exp(t) for p, t in zip(self.parameters, theta, strict=True)}
        frame = self.batch.predict_with(self.clusters(values), self.software(values), only)
        found = {}
        for row in predict.best(frame).iter_rows(named=True):
            run = self.batch.runs[row["run"]]
            kind = run.row.get("peak_memory_kind", "")
            found[row["run"]] = (row["step_time_s"], predict.peak(row, kind))
        return found

    def clusters(self, values: Mapping[str, float]) -> list[str]:
        """Canonical clusters under parameter values."""
        texts = []
        for place, run in enumerate(self.batch.clusters):
            settings = self._settings(run)
            key = (place, *(values[name] for name, _, _ in settings))
            if key not in self._texts:
                cluster = copy.deepcopy(self.base_clusters[place])
                for name, part, path in settings:
                    branch = cluster
                    for step in part:
                        branch = branch[step]
                    overlay.assign(branch, path, values[name])
                self._texts[key] = json.dumps(cluster)
            texts.append(self._texts[key])
        return texts

    @functools.cache  # noqa: B019  (a problem lives as long as its fit)
    def _settings(self, run: Run) -> list[tuple[str, tuple[str, ...], list[str]]]:
        """What the parameters set in a cluster: parameter, part of the cluster, path in it."""
        parts = {
            ("devices", run.device): ("device",),
            ("fabrics", run.fabric): ("scale_out", "fabric"),
            ("fabrics", recorded.link(run)): ("scale_up", "fabric"),
        }
        found = []
        for p in self.parameters:
            for target in p.targets:
                kind, name, *path = target.split(".")
                if (kind, name) in parts:
                    found.append((p.name, parts[kind, name], path))
        return found

    def software(self, values: Mapping[str, float]) -> list[str]:
        """Canonical software under parameter values."""
        mine = [p.name for p in self.parameters if p.targets[0].startswith("software.")]
        key = tuple(values[name] for name in mine)
        if key not in self._softwares:
            tables = software.overlaid(dict(values))
            names = self.batch.softwares
            self._softwares[key] = [software.resolve(n, tables).canonical_json() for n in names]
        return self._softwares[key]

    def start(self) -> Array:
        """Logarithms of the present values."""
        return np.array([math.log(p.value) for p in self.parameters])

    def residuals(self, theta: Array) -> Array:
        """Weighted residuals of runs, ranking groups and priors."""
        return self._assemble(self.logs(theta), theta)

    def logs(self, theta: Array, only: Sequence[int] | None = None) -> Array:
        """log(predicted / measured) of the observations of some runs (all unless given)."""
        runs = self.only if only is None else only
        found = self.predictions(theta, runs)
        values = [found[o.run][o.memory] if o.run in found else math.nan for o in self.seen]
        logs: Array = np.log(values) - self.logs_measured
        return logs

    def _assemble(self, logs: Array, theta: Array) -> Array:
        level = _soft(logs / SOFT) * self.weights
        ranks = [
            RANKING_WEIGHT * _soft((logs[g] - logs[g].mean()) / SOFT) * self.weights[g]
            for g in self.groups
        ]
        prior = np.array(
            [
                (t - math.log(p.prior)) / math.log(p.spread)
                for p, t in zip(self.parameters, theta, strict=True)
            ]
        )
        return np.concatenate([level, *ranks, prior * PRIOR_WEIGHT])

    def jacobian(self, theta: Array) -> Array:
        """Forward differences, evaluating for each parameter the runs that it can move."""
        logs = self.logs(theta)
        base = self._assemble(logs, theta)
        columns = []
        for j, moved in enumerate(self.moved):
            step = theta.copy()
            step[j] += 1e-4
            changed = self.logs(step, moved) if moved else logs
            changed = np.where(np.isnan(changed), logs, changed)
            columns.append((self._assemble(changed, step) - base) / 1e-4)
        return np.stack(columns, axis=1)

    def solve(self, start: Array | None = None, max_steps: int = 30) -> Fit:
        """Fit, starting from the present values."""
        from scipy.optimize import least_squares

        theta = self.start() if start is None else start
        found = least_squares(
            self.residuals, theta, jac=self.jacobian, method="trf", max_nfev=max_steps, xtol=1e-5
        )
        jac = found.jac
        covariance = np.linalg.inv(jac.T @ jac)
        data = jac[: len(self.seen)]
        effect = np.abs(data / self.weights[:, None] * SOFT) * np.array(
            [math.log(p.spread) for p in self.parameters]
        )
        return Fit(
            [p.name for p in self.parameters],
            np.exp(found.x),
            np.sqrt(np.diag(covariance)),
            [int(n) for n in (effect > 0.01).sum(axis=0)],
        )


PRIOR_WEIGHT = 1.0
"""Weight of a prior against that of a run of weight 1 that is off by `SOFT`."""


def _soft(z: Array) -> Array:
    """Residual whose square is the soft-L1 loss, 2(√(1 + z²) − 1)."""
    signed: Array = np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z * z) - 1))
    return signed


def _observations(run: int, row: Mapping[str, str]) -> list[Observation]:
    found = []
    for column, memory in (("step_time_s", False), ("peak_memory_bytes", True)):
        try:
            value = float(row.get(column, ""))
        except ValueError:
            continue
        if math.isfinite(value) and value > 0:
            found.append(Observation(run, memory, value))
    return found
