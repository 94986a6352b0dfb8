"""Error bands of serving predictions: how ``presets/serving_bands.toml`` is written."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from meshplan.bands import UNKNOWN
from meshplan.calibrate.bands import bands_architecture
from meshplan.serving import sla
from meshplan.validate.score import measured, quantile
from meshplan.validate.serving_score import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    import numpy as np

    from meshplan.validate.deployments import Recorded
    from meshplan.validate.serving_batch import Batch

    Array = np.ndarray[Any, np.dtype[np.float64]]

FEWEST = 20
"""Fewest rows of a kind that gets a band of its own."""

HEAD = """\
# Error factors of serving predictions by kind of deployment: half of the measured rows lie within
# x/: (1 + q50) of the prediction, nine in ten within (1 + q90). Whole (model, GPU, backend) cells
# were left out of the fit; "not calibrated": whole models were left out, each counts alike. Rows
# that count in the figures of docs/accuracy.md.
"""


def outcomes(batch: Batch, logs: Array) -> list[tuple[Recorded, Outcome]]:
    """Deployments beside what a fit says of them.

    Parameters
    ----------
    batch
        Interpreted deployments.
    logs
        log(predicted / measured) of each: a column of TPOT, one of TTFT, as of
        `meshplan.calibrate.serving.Problem.left_out`.
    """
    found = []
    for job, (tpot, ttft) in zip(batch.recorded, logs, strict=True):
        told = (_predicted(job, "ttft_ms", float(ttft)), _predicted(job, "tpot_ms", float(tpot)))
        found.append((job, Outcome(job.row, *told)))
    return found


def _predicted(job: Recorded, column: str, log: float) -> float | None:
    truth = measured(job.row, column)
    return None if truth is None or not math.isfinite(log) else truth * math.exp(log)


def factors(found: Iterable[tuple[Recorded, Outcome]], metric: str) -> dict[str, list[float]]:
    """Error factors less 1 by kind, of rows that count."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for job, outcome in found:
        size = _factor(outcome, metric)
        if size is None:
            continue
        mode = "disagg" if job.deployment["prefill"] else "agg"
        for kind in sla.kinds(job.backend, mode, bands_architecture(job.device)):
            kinds[kind].append(size)
    return kinds


def balanced(found: Iterable[tuple[Recorded, Outcome]], metric: str) -> list[float]:
    """Error factors less 1 in which every model counts alike: twenty quantiles of each."""
    models: dict[str, list[float]] = defaultdict(list)
    for job, outcome in found:
        size = _factor(outcome, metric)
        if size is not None:
            models[job.model].append(size)
    points = [(2 * n + 1) / 40 for n in range(20)]
    return [quantile(sorted(values), q) for values in models.values() for q in points]


def _factor(outcome: Outcome, metric: str) -> float | None:
    guess, truth = getattr(outcome, f"{metric}_ms"), measured(outcome.row, f"{metric}_ms")
    if guess is None or truth is None or not outcome.scored(metric):
        return None
    return math.exp(abs(math.log(guess / truth))) - 1


def to_toml(
    cells_left_out: Iterable[tuple[Recorded, Outcome]],
    models_left_out: Iterable[tuple[Recorded, Outcome]],
) -> str:
    """Text of ``presets/serving_bands.toml``."""
    cells, models = list(cells_left_out), list(models_left_out)
    tables = [HEAD]
    for metric in sla.METRICS:
        found = factors(cells, metric)
        rows = {k: v for k, v in found.items() if k != UNKNOWN and len(v) >= FEWEST}
        rows[UNKNOWN] = balanced(models, metric)
        for kind, values in sorted(rows.items()):
            ordered = sorted(values)
            q50, q90 = (round(quantile(ordered, q), 3) for q in (0.5, 0.9))
            count = len(found[kind])
            tables.append(f'[{metric}."{kind}"]\nq50 = {q50}\nq90 = {q90}\nrows = {count}\n')
    return "\n".join(tables)


def reliability(
    found: Iterable[tuple[Recorded, Outcome]],
    limits_ms: Iterable[float],
    edges: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0),
) -> list[tuple[float, float, int, float, float]]:
    """How often limits on TPOT are kept that were said to be kept with some probability.

    Returns
    -------
    list
        Per bin of the probability: its edges, the number of (deployment, limit) in it, the mean
        probability, and the share that kept the limit.
    """
    limits = list(limits_ms)
    said: list[tuple[float, bool]] = []
    for job, outcome in found:
        for limit in limits:
            p = _probability(job, outcome, limit)
            truth = measured(outcome.row, "tpot_ms")
            if p is not None and truth is not None and outcome.scored("tpot"):
                said.append((p, truth <= limit))
    rows = []
    for low, high in itertools.pairwise(edges):
        own = [(p, kept) for p, kept in said if low <= p < high or p == high == edges[-1]]
        if own:
            share = sum(kept for _, kept in own) / len(own)
            rows.append((low, high, len(own), sum(p for p, _ in own) / len(own), share))
    return rows


def sure_picks(
    found: Iterable[tuple[Recorded, Outcome]], limit_ms: float, least: float = 0.9
) -> list[tuple[Outcome, float]]:
    """The pick of each ranking group among deployments that keep a limit with enough probability.

    Returns
    -------
    list
        Per group that has one: the deployment of most predicted output tokens per second and GPU,
        and its probability.
    """
    groups: dict[str, list[tuple[float, Outcome, float]]] = defaultdict(list)
    for job, outcome in found:
        p = _probability(job, outcome, limit_ms)
        ttft, tpot = outcome.ttft_ms, outcome.tpot_ms
        if p is None or p < least or ttft is None or tpot is None or not outcome.scored("tpot"):
            continue
        group = outcome.row.get("ranking_group") or job.model
        groups[group].append((outcome.throughput(ttft, tpot), outcome, p))
    picks = [max(rows, key=lambda row: row[0]) for _, rows in sorted(groups.items())]
    return [(outcome, p) for _, outcome, p in picks]


def _probability(job: Recorded, outcome: Outcome, limit_ms: float) -> float | None:
    """Probability that a deployment keeps a limit on TPOT."""
    if outcome.tpot_ms is None:
        return None
    mode = "disagg" if job.deployment["prefill"] else "agg"
    band = sla.band("tpot", job.backend, mode, bands_architecture(job.device))
    return sla.probability(limit_ms, outcome.tpot_ms, band)
