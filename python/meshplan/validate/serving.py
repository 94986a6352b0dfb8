"""Validation of the serving estimate against measured deployments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError, Problem
from meshplan.specs import serving_costs
from meshplan.validate import deployments
from meshplan.validate.serving_batch import Batch, Row, load_models
from meshplan.validate.serving_score import Outcome, score

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

SPECS = ("all", "stp", "mtp")
"""All rows, those without and those with speculative decoding."""


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Attributes
    ----------
    outcomes
        Every row beside its prediction.
    predictions
        One row per deployment: ``deployment_id``, ``ttft_ms``, ``tpot_ms``, ``feasible``.
    failed
        Rows that could not be predicted: deployment → reason.
    infeasible
        Deployments that are predicted not to run: deployment → status.
    assumed
        What rows left open: phrase → rows.
    """

    outcomes: tuple[Outcome, ...]
    predictions: pl.DataFrame
    failed: dict[str, InputError]
    infeasible: dict[str, str]
    assumed: dict[str, int]

    @property
    def score(self) -> dict[str, Any]:
        """Error figures: `meshplan.validate.serving_score.score`."""
        return score(self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON."""
        return {
            "rows": len(self.outcomes),
            "predicted": sum(o.tpot_ms is not None for o in self.outcomes),
            "failed": {name: str(error) for name, error in self.failed.items()},
            "infeasible": self.infeasible,
            "assumed": self.assumed,
            **self.score,
        }


def validate_serving(
    path: str | Path,
    models: str | Path = "models",
    *,
    spec: str = "all",
    params: str | Path | None = None,
) -> Validation:
    """Predict measured deployments and compare.

    Parameters
    ----------
    path
        CSV file of deployments; docs/inputs.md lists the columns.
    models
        Folder with ``NAME.json``, a ``config.json`` for each model that rows name; presets stand in
        for missing ones.
    spec
        ``all`` rows, only those without (``stp``) or only those with (``mtp``) speculative
        decoding.
    params
        File of serving numbers that replace the shipped ones.

    Returns
    -------
    Validation
        Predictions and figures.

    Raises
    ------
    InputError
        When the file cannot be read, or no row can be predicted.

    Examples
    --------
    >>> found = validate_serving("deployments.csv", "models")  # doctest: +SKIP
    >>> found.score["errors"]["all"]["all"]["tpot"]["median"]  # doctest: +SKIP
    0.07
    """
    rows = deployments.read_rows(path)
    rows = [(where, row) for where, row in rows if spec in ("all", Outcome(row, None, None).spec)]
    if not rows:
        raise InputError("leaves no row", field="--spec", value=spec, hint="drop the filter")
    batch = Batch.of(rows, load_models(rows, models))
    if not batch.recorded:
        raise InputError.all_of(_problems(batch, str(path)))
    numbers = None if params is None else serving_costs.tables_of(params)
    return outcomes_of(rows, batch, batch.predict(numbers))


def outcomes_of(rows: Sequence[Row], batch: Batch, predicted: pl.DataFrame) -> Validation:
    """Put rows and predictions side by side.

    Parameters
    ----------
    rows
        Every row.
    batch
        Those that can be predicted.
    predicted
        What the core says of them, in order.
    """
    import polars as pl

    told = {
        job.name: (row["ttft_mean_s"] * 1e3, row["tpot_mean_s"] * 1e3, _status(row))
        for job, row in zip(batch.recorded, predicted.iter_rows(named=True), strict=True)
    }
    outcomes = tuple(_outcome(row, told) for _, row in rows)
    feasible = [_feasible(row, told) for _, row in rows]
    table = {
        "deployment_id": [row["deployment_id"] for _, row in rows],
        "ttft_ms": [o.ttft_ms for o in outcomes],
        "tpot_ms": [o.tpot_ms for o in outcomes],
        "feasible": feasible,
    }
    types = {"ttft_ms": pl.Float64, "tpot_ms": pl.Float64, "feasible": pl.Boolean}
    assumed: dict[str, int] = {}
    for job in batch.recorded:
        for words in job.assumptions:
            assumed[words] = assumed.get(words, 0) + 1
    return Validation(
        outcomes,
        pl.DataFrame(table, schema_overrides=types),
        {row["deployment_id"]: error for (_, row), error in batch.failed},
        {name: status for name, (_, _, status) in told.items() if status != "ok"},
        assumed,
    )


def _status(row: Mapping[str, Any]) -> str:
    return "ok" if row["fits"] and not row["rejected"] else "memory"


def _outcome(row: Mapping[str, str], told: Mapping[str, tuple[float, float, str]]) -> Outcome:
    ttft, tpot, status = told.get(row["deployment_id"], (0.0, 0.0, ""))
    return Outcome(row, ttft, tpot) if status == "ok" else Outcome(row, None, None)


def _feasible(row: Mapping[str, str], told: Mapping[str, tuple[float, float, str]]) -> bool | None:
    found = told.get(row["deployment_id"])
    return None if found is None else found[2] == "ok"


def _problems(batch: Batch, where: str) -> list[Problem]:
    found: Iterable[Problem] = (p for _, error in batch.failed for p in error.problems)
    return [Problem("holds no deployment that can be predicted", where=where), *found]
