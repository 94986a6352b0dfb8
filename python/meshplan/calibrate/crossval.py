"""Errors on runs that a fit has not seen.

Three errors belong together: fitted (every run seen), cross-validated (whole (model, GPU) groups
left out, in folds) and source left out (nothing of the source seen). Fits start from the full one
and are run to convergence on what is left.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from meshplan.calibrate.training import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshplan.calibrate.training import Array
    from meshplan.validate.predict import Batch

Predicted = dict[int, tuple[float, float]]
"""Run → step time (s) and peak memory (bytes)."""


def by_model_and_gpu(batch: Batch, folds: int = 5) -> list[list[int]]:
    """Folds of runs in which no (model, GPU) is split."""
    found: list[list[int]] = [[] for _ in range(folds)]
    for i, run in enumerate(batch.runs):
        key = f"{run.model}|{run.device}"
        found[zlib.crc32(key.encode()) % folds].append(i)
    return [fold for fold in found if fold]


def by_source(batch: Batch) -> list[list[int]]:
    """One fold for each source."""
    found: dict[str, list[int]] = {}
    for i, run in enumerate(batch.runs):
        found.setdefault(run.row["source"], []).append(i)
    return list(found.values())


def left_out(
    batch: Batch,
    folds: Sequence[Sequence[int]],
    start: Array | None = None,
    *,
    max_steps: int = 6,
    known: int = 0,
    on_fold: Callable[[int], None] | None = None,
) -> Predicted:
    """Predict each fold with a fit to the others.

    Parameters
    ----------
    batch
        Interpreted runs.
    folds
        Runs to leave out together.
    start
        Logarithms of the values to start from (the presets' unless given).
    max_steps
        Evaluations of each fit.
    known
        Runs of each fold that the fit may see after all: the user's own few.
    on_fold
        Called with the number of each fold when it is done.
    """
    found: Predicted = {}
    for number, fold in enumerate(folds):
        seen = list(spread(fold, known))
        out = set(fold) - set(seen)
        rest = [i for i in range(len(batch.runs)) if i not in out]
        problem = Problem(batch, rest, boost=seen)
        fit = problem.solve(start, max_steps)
        found |= problem.predictions(np.log(fit.values), sorted(out))
        if on_fold:
            on_fold(number)
    return found


def spread(fold: Sequence[int], count: int) -> Sequence[int]:
    """`count` runs, evenly spread over a fold.

    >>> spread([3, 4, 5, 6, 7], 2)
    [3, 7]
    """
    if count <= 0 or not fold:
        return []
    places = np.linspace(0, len(fold) - 1, min(count, len(fold)))
    return [fold[round(float(p))] for p in places]
