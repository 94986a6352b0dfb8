"""Validation of the training estimate against measured runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.validate import predict
from meshplan.validate import runs as recorded
from meshplan.validate.score import Outcome, Score, score

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Attributes
    ----------
    score
        Error figures.
    predictions
        One row per run: ``run_id``, the predicted row, ``feasible`` and what was assumed.
    failed
        Runs that could not be predicted: run → reason.
    outcomes
        Runs beside their predictions.
    """

    score: Score
    predictions: pl.DataFrame
    failed: dict[str, str]
    outcomes: tuple[Outcome, ...]

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON."""
        return {
            "predicted": len(self.outcomes),
            "failed": self.failed,
            **self.score.as_dict(),
        }


def validate_training(
    runs: str | Path,
    models: str | Path,
    *,
    split: str | None = None,
    trust: str = "AB",
    sources: Sequence[str] = (),
) -> Validation:
    """Predict measured runs and compare.

    Parameters
    ----------
    runs
        CSV or Parquet file of runs; docs/accuracy.md lists the columns.
    models
        Folder with ``NAME.json``, a ``config.json`` for each model that runs name; presets stand in
        for missing ones.
    split
        Only rows of this split.
    trust
        Grades that count in the figures; all rows are predicted.
    sources
        Only rows of these sources.

    Returns
    -------
    Validation
        Figures and predictions.

    Raises
    ------
    InputError
        When the file cannot be read, or no row is left.

    Examples
    --------
    >>> validate_training("runs.csv", "models").score.macro  # doctest: +SKIP
    {'step_time_median': 0.052, ...}
    """
    rows = recorded.read_rows(runs)
    rows = [r for r in rows if split is None or r["split"] == split]
    rows = [r for r in rows if not sources or r["source"] in sources]
    if not rows:
        raise InputError("leaves no row", field="--split or --source", hint="drop the filter")
    batch = predict.Batch.of(rows, predict.load_models(rows, models))
    failed = {row["run_id"]: str(error) for row, error in batch.failed}
    if not batch.runs:
        reason = next(iter(failed.values()))
        raise InputError(f"holds no run that can be predicted: {reason}", where=str(runs))
    best = predict.best(batch.predict())
    outcomes = tuple(
        Outcome(
            batch.runs[row["run"]].row,
            row["step_time_s"],
            predict.peak(row, batch.runs[row["run"]].row.get("peak_memory_kind", "")),
            row["status"] == "ok",
        )
        for row in best.iter_rows(named=True)
    )
    graded = [o for o in outcomes if o.row["trust"] in trust]
    return Validation(score(graded), _table(batch, best, outcomes), failed, outcomes)


def _table(batch: predict.Batch, best: pl.DataFrame, outcomes: Sequence[Outcome]) -> pl.DataFrame:
    import polars as pl

    runs = [batch.runs[i] for i in best["run"]]
    ids = pl.Series("run_id", [run.run_id for run in runs])
    extra = [
        pl.Series("peak_memory_bytes", [o.peak_memory_bytes for o in outcomes]),
        pl.Series("feasible", [o.feasible for o in outcomes]),
        pl.Series("assumed", ["; ".join(run.assumptions) for run in runs]),
    ]
    return best.drop("run").insert_column(0, ids).with_columns(*extra)
