"""Predictions of measured deployments, under the fitted numbers or under others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan import _core
from meshplan.errors import InputError
from meshplan.specs import presets, serving_costs
from meshplan.specs.cluster import Cluster
from meshplan.validate import deployments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from meshplan.hf import ModelSpec
    from meshplan.validate.deployments import Recorded

Row = tuple[str, dict[str, str]]
"""Place of a row, and its cells."""


def load_models(rows: Sequence[Row], folder: str | Path) -> dict[str, ModelSpec]:
    """Models that rows name: ``NAME.json`` in a folder, else presets."""
    from meshplan.validate import predict

    also: dict[str, str] = deployments.names()["models"]
    found = predict.load_models([row for _, row in rows], folder)
    missing = [n for n in dict.fromkeys(row["model"] for _, row in rows) if n not in found]
    stand_in = predict.load_models([{"model": also[n]} for n in missing if n in also], folder)
    return found | {n: stand_in[also[n]] for n in missing if also.get(n) in stand_in}


@dataclass(frozen=True)
class Batch:
    """Deployments that can be predicted, their jobs, and the rows that cannot be.

    Attributes
    ----------
    recorded
        Deployments in order; job `i` of `jobs` is deployment `i`.
    jobs
        Jobs of the core.
    clusters
        Canonical JSON of the clusters that jobs index.
    architectures, backends
        What hardware and software they index.
    failed
        Rows that cannot be predicted, and why.
    """

    recorded: list[Recorded]
    jobs: _core.ServingJobs
    clusters: list[str]
    architectures: list[str]
    backends: list[str]
    failed: list[tuple[Row, InputError]]

    @classmethod
    def of(cls, rows: Iterable[Row], models: Mapping[str, ModelSpec]) -> Batch:
        """Interpret rows and prepare their jobs."""
        good: list[Recorded] = []
        failed: list[tuple[Row, InputError]] = []
        for where, row in rows:
            try:
                good.append(deployments.interpret(where, row, models.get(row["model"])))
            except InputError as error:
                failed.append(((where, row), error))
        batch = cls._prepare(good, models, failed)
        problems = dict(batch.jobs.problems(batch.clusters, *batch.numbers()))
        if not problems:
            return batch
        kept = [job for i, job in enumerate(good) if i not in problems]
        for i, reason in problems.items():
            job = good[i]
            failed.append(((job.where, dict(job.row)), InputError(reason, where=job.where)))
        return cls._prepare(kept, models, failed)

    @classmethod
    def _prepare(
        cls,
        good: list[Recorded],
        models: Mapping[str, ModelSpec],
        failed: list[tuple[Row, InputError]],
    ) -> Batch:
        names = _distinct(job.model for job in good)
        clusters = _distinct((job.device, job.cluster) for job in good)
        architectures = _distinct(architecture(job.device) for job in good)
        backends = _distinct(job.backend for job in good)
        jobs = [
            {
                "model": names[job.model],
                "cluster": clusters[job.device, job.cluster],
                "hardware": architectures[architecture(job.device)],
                "software": backends[job.backend],
                "deployment": job.deployment,
                "load": job.load,
            }
            for job in good
        ]
        texts = [models[name].canonical_json() for name in names]
        return cls(
            good,
            _core.ServingJobs(texts, json.dumps(jobs)),
            [cluster_json(*key) for key in clusters],
            list(architectures),
            list(backends),
            failed,
        )

    def numbers(self, tables: Mapping[str, Any] | None = None) -> tuple[list[str], list[str], str]:
        """Canonical hardware and software that the jobs index, and routing.

        Parameters
        ----------
        tables
            As of `serving_costs.tables`; the fitted ones unless given.
        """
        if tables is None:
            return (
                [serving_costs.hardware_json(name) for name in self.architectures],
                [serving_costs.software_json(name) for name in self.backends],
                serving_costs.routing_json(),
            )
        measured = [serving_costs.ARCHITECTURES[name] for name in self.architectures]
        return (
            [json.dumps(tables["hardware"][name]) for name in measured],
            [json.dumps(tables["software"][name]) for name in self.backends],
            json.dumps(tables["routing"]),
        )

    def predict(
        self, tables: Mapping[str, Any] | None = None, only: Sequence[int] | None = None
    ) -> pl.DataFrame:
        """One row per deployment, in order.

        Parameters
        ----------
        tables
            Numbers of hardware and software instead of the fitted ones.
        only
            Deployments.
        """
        import polars as pl

        picked = None if only is None else list(only)
        return pl.DataFrame(self.jobs.predict(self.clusters, *self.numbers(tables), only=picked))


def architecture(device: str) -> str:
    """Architecture of a device preset."""
    return str(presets.raw("devices", device, (), {})["architecture"])


def cluster_json(device: str, cluster: str) -> str:
    """Canonical cluster of a preset, with this device."""
    expanded = presets.expand({"preset": cluster, "device": device}, (), {})
    return json.dumps(Cluster.model_validate(expanded).canonical())


def _distinct(keys: Iterable[Any]) -> dict[Any, int]:
    """Distinct keys with their numbers, in order of appearance."""
    return {key: i for i, key in enumerate(dict.fromkeys(keys))}
