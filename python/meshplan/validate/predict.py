"""Predictions of measured runs, under the presets or under other parameter values."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan import _core
from meshplan.specs import software
from meshplan.validate import runs as recorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from meshplan.errors import InputError
    from meshplan.hf import ModelSpec
    from meshplan.validate.runs import Run

CACHED_SHARE = 0.955
"""Share of the device that the caching allocator fills at most."""


def load_models(rows: Sequence[Mapping[str, str]], folder: str | Path) -> dict[str, ModelSpec]:
    """Models that rows name: ``NAME.json`` in a folder, else presets."""
    from meshplan.errors import InputError
    from meshplan.hf import load_model

    found: dict[str, ModelSpec] = {}
    for name in dict.fromkeys(row["model"] for row in rows):
        path = Path(folder) / f"{name}.json"
        try:
            found[name] = load_model(path if path.is_file() else name)
        except InputError:
            continue
    return found


@dataclass(frozen=True)
class Batch:
    """Runs that can be predicted, their jobs, and the rows that cannot be.

    Attributes
    ----------
    runs
        Runs in order.
    jobs
        Jobs of the core: every layout that a run leaves open, runs in order.
    owner
        Run of each job.
    failed
        Rows that cannot be predicted, and why.
    """

    runs: list[Run]
    jobs: _core.Jobs
    owner: list[int]
    failed: list[tuple[dict[str, str], InputError]]

    @functools.cached_property
    def clusters(self) -> list[Run]:
        """One run for each distinct cluster."""
        return _kinds(self.runs)[0]

    @functools.cached_property
    def softwares(self) -> list[str]:
        """Software of the runs."""
        return _kinds(self.runs)[1]

    @classmethod
    def of(
        cls,
        rows: list[dict[str, str]],
        models: Mapping[str, ModelSpec],
        cluster: str | None = None,
    ) -> Batch:
        """Interpret rows and prepare their jobs; `cluster` overrides that of the rows."""
        good: list[Run] = []
        failed = []
        for row, run in recorded.each(rows, models, cluster):
            if isinstance(run, recorded.Run):
                good.append(run)
            else:
                failed.append((row, run))
        runs, jobs, owner = _prepare(good, models)
        batch = cls(runs, jobs, owner, failed)
        problems = dict(jobs.problems(*batch.presets()))
        if not problems:
            return batch
        return cls._without(batch, problems, models)

    @classmethod
    def _without(
        cls, batch: Batch, problems: Mapping[int, str], models: Mapping[str, ModelSpec]
    ) -> Batch:
        """Drop layouts that the core refuses, and runs of which none is left."""
        from meshplan.errors import InputError

        kept: dict[int, list[Mapping[str, Any]]] = {}
        reasons: dict[int, str] = {}
        place = dict.fromkeys(range(len(batch.runs)), 0)
        for job, run in enumerate(batch.owner):
            layout = batch.runs[run].layouts[place[run]]
            place[run] += 1
            if job in problems:
                reasons.setdefault(run, problems[job])
            else:
                kept.setdefault(run, []).append(layout)
        good = [replace(batch.runs[run], layouts=tuple(found)) for run, found in kept.items()]
        lost = [
            (dict(batch.runs[run].row), InputError(reason))
            for run, reason in reasons.items()
            if run not in kept
        ]
        return cls(*_prepare(good, models), [*batch.failed, *lost])

    def presets(self) -> tuple[list[str], list[str]]:
        """Canonical clusters and software of the runs under the presets."""
        tables = software.tables()
        return (
            [recorded.cluster_json(run) for run in self.clusters],
            [software.resolve(name, tables).canonical_json() for name in self.softwares],
        )

    def subset(self, only: Sequence[int]) -> list[int]:
        """Jobs of some runs."""
        wanted = set(only)
        return [job for job, run in enumerate(self.owner) if run in wanted]

    def predict(self) -> pl.DataFrame:
        """One row per job under the presets, with its ``run`` number."""
        return self.predict_with(*self.presets(), range(len(self.runs)))

    def predict_with(
        self, clusters: list[str], softwares: list[str], only: Sequence[int]
    ) -> pl.DataFrame:
        """One row per job of some runs, under these clusters and this software.

        Parameters
        ----------
        clusters, softwares
            Canonical JSON, in the order of the properties of those names.
        only
            Runs.
        """
        import polars as pl

        jobs = self.subset(only)
        frame = pl.DataFrame(self.jobs.predict(clusters, softwares, only=jobs))
        owners = [self.owner[job] for job in jobs]
        return frame.with_columns(pl.Series("run", owners, dtype=pl.Int64))


def _kinds(good: list[Run]) -> tuple[list[Run], list[str]]:
    """One run for each distinct cluster, and the distinct software, in order of appearance."""
    clusters: dict[tuple[Any, ...], Run] = {}
    for run in good:
        clusters.setdefault(cluster_key(run), run)
    return list(clusters.values()), list(dict.fromkeys(run.software for run in good))


def cluster_key(run: Run) -> tuple[Any, ...]:
    """What tells the clusters of runs apart."""
    return (run.device, run.fabric, *sorted(run.cluster.items()))


def _prepare(
    good: list[Run], models: Mapping[str, ModelSpec]
) -> tuple[list[Run], _core.Jobs, list[int]]:
    names = list(dict.fromkeys(run.model for run in good))
    clusters, softwares = _kinds(good)
    place = {cluster_key(run): i for i, run in enumerate(clusters)}
    jobs, owner = [], []
    for number, run in enumerate(good):
        for layout in run.layouts:
            jobs.append(
                {
                    "model": names.index(run.model),
                    "cluster": place[cluster_key(run)],
                    "software": softwares.index(run.software),
                    "gpus": run.gpus,
                    "training": run.training,
                    "layout": layout,
                }
            )
            owner.append(number)
    texts = [models[name].canonical_json() for name in names]
    return good, _core.Jobs(texts, json.dumps(jobs)), owner


def best(frame: pl.DataFrame) -> pl.DataFrame:
    """Row of each run: the fastest feasible of its layouts, else the leanest."""
    import polars as pl

    return (
        frame.with_columns((pl.col("status").cast(pl.String) != "ok").alias("misfit"))
        .with_columns(
            pl.when("misfit").then("peak_memory_bytes").otherwise("step_time_s").alias("order")
        )
        .sort("run", "misfit", "order", maintain_order=True)
        .group_by("run", maintain_order=True)
        .first()
        .drop("misfit", "order")
    )


def peak(row: Mapping[str, Any], kind: str) -> float:
    """Peak memory as a tool would report it.

    Parameters
    ----------
    row
        Predicted row.
    kind
        ``max_allocated`` (what the framework allocates), ``max_reserved`` (with the allocator's
        cache, at most 95.5 % of the device), ``mlperf_logged`` (allocated and context) or
        ``nvidia_smi`` (cache and context).
    """
    cache, context = row["fragmentation_bytes"], row["context_bytes"]
    allocated = row["peak_memory_bytes"] - cache - context
    capacity = row["headroom_bytes"] + allocated + context
    if kind == "max_allocated":
        return float(allocated)
    if kind == "max_reserved":
        return float(min(allocated + cache, max(CACHED_SHARE * capacity, allocated)))
    if kind == "mlperf_logged":
        return float(allocated + context)
    return float(row["peak_memory_bytes"])
