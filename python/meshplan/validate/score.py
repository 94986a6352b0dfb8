"""Error figures of predictions: per source and overall, level, ranking, memory and fit.

Conventions: the error is predicted / measured − 1. Rows of one ``config_key`` (the same
configuration measured again) are one point: the median of each side. ``macro`` is the plain mean
over sources with at least `MIN_POINTS` points. In a ``ranking_group`` the time per token orders the
layouts; groups count from four layouts that are predicted to fit; tau-b is Kendall's, regret is
what the predicted best costs over the measured best of the whole group.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MIN_POINTS = 3
"""Fewest points of a source that counts in a macro average."""

MIN_LAYOUTS = 4
"""Fewest layouts of a ranking group."""


@dataclass(frozen=True)
class Outcome:
    """A run and its prediction.

    Attributes
    ----------
    row
        The recorded row.
    step_time_s, peak_memory_bytes
        Predictions.
    feasible
        Predicted to fit.
    """

    row: Mapping[str, str]
    step_time_s: float
    peak_memory_bytes: float
    feasible: bool


@dataclass(frozen=True)
class Errors:
    """Quantiles of the errors of a source, as ratios."""

    n: int
    median: float
    p90: float
    signed_median: float

    @classmethod
    def of(cls, errors: list[float]) -> Errors:
        """Summary of errors."""
        sizes = sorted(abs(e) for e in errors)
        return cls(
            len(errors), statistics.median(sizes), quantile(sizes, 0.9), statistics.median(errors)
        )


@dataclass(frozen=True)
class Ranking:
    """How well layouts of one job are ordered, over the groups of a source."""

    groups: int
    tau_b: float
    regret: float
    worst_regret: float
    best_of_three_regret: float


@dataclass
class Score:
    """Figures of a validation."""

    step_time: dict[str, Errors] = field(default_factory=dict)
    memory: dict[str, Errors] = field(default_factory=dict)
    ranking: dict[str, Ranking] = field(default_factory=dict)
    fits: dict[str, int] = field(default_factory=dict)

    @property
    def macro(self) -> dict[str, float | None]:
        """Means over sources: step-time median and p90, memory median, tau-b and regret."""
        times = [e for e in self.step_time.values() if e.n >= MIN_POINTS]
        peaks = [e for e in self.memory.values() if e.n >= MIN_POINTS]
        ranks = list(self.ranking.values())
        return {
            "step_time_median": _mean(e.median for e in times),
            "step_time_p90": _mean(e.p90 for e in times),
            "memory_median": _mean(e.median for e in peaks),
            "tau_b": _mean(r.tau_b for r in ranks),
            "regret": _mean(r.regret for r in ranks),
        }

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON."""
        return {
            "step_time": {k: asdict(v) for k, v in self.step_time.items()},
            "memory": {k: asdict(v) for k, v in self.memory.items()},
            "ranking": {k: asdict(v) for k, v in self.ranking.items()},
            "fits": self.fits,
            "macro": self.macro,
        }


def quantile(ordered: list[float], q: float) -> float:
    """Quantile of ordered values, linear between neighbours.

    >>> quantile([0.0, 1.0, 2.0, 3.0], 0.9)
    2.7
    """
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def tau_b(x: list[float], y: list[float]) -> float:
    """Kendall's tau-b; 0 where one side is constant.

    >>> tau_b([1, 2, 3], [1, 3, 2])
    0.3333333333333333
    """
    agree = ties_x = ties_y = 0
    pairs = len(x) * (len(x) - 1) // 2
    for i in range(len(x)):
        for j in range(i):
            a = (x[i] > x[j]) - (x[i] < x[j])
            b = (y[i] > y[j]) - (y[i] < y[j])
            ties_x += a == 0
            ties_y += b == 0
            agree += a * b
    scale = math.sqrt((pairs - ties_x) * (pairs - ties_y))
    return agree / scale if scale else 0.0


def score(outcomes: Iterable[Outcome]) -> Score:
    """Compute every figure of some outcomes."""
    found = list(outcomes)
    return Score(
        step_time=_levels(found, "step_time_s"),
        memory=_levels(found, "peak_memory_bytes"),
        ranking=_rankings(found),
        fits=_fits(found),
    )


def measured(row: Mapping[str, str], column: str) -> float | None:
    """Positive number of a column, if it holds one."""
    try:
        value = float(row.get(column) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _levels(outcomes: list[Outcome], column: str) -> dict[str, Errors]:
    points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for o in outcomes:
        value = measured(o.row, column)
        if value is not None:
            points[o.row["source"], _key(o.row)].append((value, getattr(o, column)))
    errors: dict[str, list[float]] = defaultdict(list)
    for (source, _), values in points.items():
        truth = statistics.median(a for a, _ in values)
        errors[source].append(statistics.median(b for _, b in values) / truth - 1)
    return {source: Errors.of(errors[source]) for source in sorted(errors)}


def _key(row: Mapping[str, str]) -> str:
    return row.get("config_key") or row["run_id"]


def _rankings(outcomes: list[Outcome]) -> dict[str, Ranking]:
    groups: dict[tuple[str, str], dict[str, list[tuple[float, float | None]]]] = {}
    for o in outcomes:
        time = measured(o.row, "step_time_s")
        group = o.row.get("ranking_group")
        if time is None or not group:
            continue
        tokens = int(o.row["global_batch"]) * int(o.row["seq_len"])
        guess = o.step_time_s / tokens if o.feasible else None
        layouts = groups.setdefault((o.row["source"], group), defaultdict(list))
        layouts[_key(o.row)].append((time / tokens, guess))
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for (source, _), layouts in groups.items():
        figures = _rank(layouts)
        if figures:
            found[source].append(figures)
    return {
        source: Ranking(
            len(v),
            statistics.mean(x[0] for x in v),
            statistics.mean(x[1] for x in v),
            max(x[1] for x in v),
            statistics.mean(x[2] for x in v),
        )
        for source, v in sorted(found.items())
    }


def _rank(
    layouts: Mapping[str, list[tuple[float, float | None]]],
) -> tuple[float, float, float] | None:
    """tau-b, regret, and regret of the best of the predicted top three, of one group."""
    truth = {k: statistics.median(a for a, _ in v) for k, v in layouts.items()}
    guess = {
        k: statistics.median(b for _, b in v if b is not None)
        for k, v in layouts.items()
        if any(b is not None for _, b in v)
    }
    if len(guess) < MIN_LAYOUTS:
        return None
    keys = list(guess)
    best, floor = min(guess.values()), min(truth.values())
    tied = [k for k in keys if guess[k] <= best * (1 + 1e-12)]
    top = sorted(keys, key=lambda k: guess[k])[:3]
    return (
        tau_b([guess[k] for k in keys], [truth[k] for k in keys]),
        statistics.mean(truth[k] for k in tied) / floor - 1,
        min(truth[k] for k in top) / floor - 1,
    )


def _fits(outcomes: list[Outcome]) -> dict[str, int]:
    counts = dict.fromkeys(("measured_oom", "false_fit", "measured_ran", "false_misfit"), 0)
    for o in outcomes:
        if (o.row.get("oom") or "").lower() == "true":
            counts["measured_oom"] += 1
            counts["false_fit"] += o.feasible
        elif measured(o.row, "step_time_s") or measured(o.row, "peak_memory_bytes"):
            counts["measured_ran"] += 1
            counts["false_misfit"] += not o.feasible
    return counts


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.mean(listed) if listed else None
