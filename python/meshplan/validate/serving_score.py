"""Error figures of serving predictions: TTFT and TPOT, ranking of configurations, regret of the pick.

Conventions: the error is predicted / measured − 1. Every measured row is a point of the error
quantiles; in rankings the rows of one ``config_key`` (a configuration measured again) are one point,
the median of each side. A row without a prediction, or predicted not to run, is *not covered*: it
is left out of the quantiles, infinite in ``median_all``, and still an alternative that a pick is
held against.

A pick is the configuration of a ``ranking_group`` with the most predicted output tokens per second
and GPU among those predicted to meet a TPOT limit. Its regret is the share of the best measured
throughput within the limit that it loses; a pick that misses the limit by more than 5 %, and no
pick, cost 1.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.validate.score import measured, quantile, tau_b

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

LIMITS_MS = (None, 50.0, 30.0, 15.0)
"""TPOT limits of the picks."""

FEWEST = 4
"""Fewest configurations of a group that is ranked."""

SLACK = 0.05
"""How far a pick may miss its limit."""

FLOOR_MS = (1000.0, 20.0)
"""TTFT and TPOT of the predictor that knows nothing: its tau-b is the floor of the tokens/s/GPU."""

METRICS = ("tpot", "ttft")


@dataclass(frozen=True)
class Outcome:
    """A measured deployment and its prediction.

    Attributes
    ----------
    row
        The recorded row: the columns of docs/inputs.md, blanks included.
    ttft_ms, tpot_ms
        Predictions; none where it is not covered.
    """

    row: Mapping[str, str]
    ttft_ms: float | None
    tpot_ms: float | None

    def error(self, metric: str) -> float | None:
        """Error of ``ttft`` or ``tpot``."""
        truth, guess = measured(self.row, f"{metric}_ms"), getattr(self, f"{metric}_ms")
        return None if truth is None or guess is None else guess / truth - 1

    def scored(self, metric: str) -> bool:
        """Whether the measured value counts: its ``score_…`` column, else that it is there."""
        flag = self.row.get(f"score_{metric}")
        return measured(self.row, f"{metric}_ms") is not None and flag in ("true", None, "")

    @property
    def spec(self) -> str:
        """Without (stp) or with (mtp) speculative decoding."""
        drafts = self.row.get("spec_tokens") or ""
        return "stp" if drafts == "0" else "mtp" if drafts else "unknown"

    def throughput(self, ttft_ms: float, tpot_ms: float) -> float:
        """Output tokens per second and GPU of a closed loop at given latencies.

        C · O / (TTFT + (O − 1) · TPOT) / GPUs with the mean output length O.
        """
        low = measured(self.row, "length_range_low") or 1.0
        tokens = float(self.row["osl_nominal"]) * (1 + low) / 2
        request_ms = ttft_ms + (tokens - 1) * tpot_ms
        return float(self.row["concurrency"]) * tokens * 1e3 / request_ms / float(self.row["gpus"])


DIMENSIONS: dict[str, Callable[[Outcome], str]] = {
    "all": lambda o: "all",
    "backend": lambda o: o.row["backend"],
    "gpu": lambda o: o.row["gpu"],
    "mode": lambda o: o.row["mode"],
    "model": lambda o: o.row["model"],
    "spec": lambda o: o.spec,
    "trust": lambda o: o.row.get("trust") or "A",
    "backend+mode": lambda o: f"{o.row['backend']} {o.row['mode']}",
    "cell": lambda o: " ".join(o.row[k] for k in ("model", "gpu", "backend", "mode")),
}
"""How rows are grouped."""


def score(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Every figure of some outcomes, ready for JSON.

    Returns
    -------
    dict
        ``errors``: grouping → name → metric → ``n covered median p90 signed median_all`` (for all
        rows also ``macro_cell_median``, the mean over cells); ``ranking``: tau-b and regret.
    """
    found = list(outcomes)
    known = [(m, o, o.error(m)) for m in METRICS for o in found if o.scored(m)]
    errors: dict[str, dict[str, dict[str, Any]]] = {}
    for dimension, name in DIMENSIONS.items():
        groups: dict[str, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
        for metric, o, error in known:
            groups[name(o)][metric].append(error)
        errors[dimension] = {
            group: {metric: level(values) for metric, values in sorted(metrics.items())}
            for group, metrics in sorted(groups.items())
        }
    total = errors["all"].setdefault("all", {})
    for metric in METRICS:
        cells = [cell[metric]["median"] for cell in errors["cell"].values() if metric in cell]
        mean = _mean([median for median in cells if median is not None])
        total.setdefault(metric, level([]))["macro_cell_median"] = mean
    return {"errors": errors, "ranking": ranking(found)}


def level(errors: Sequence[float | None]) -> dict[str, Any]:
    """Quantiles of errors, of which some are not covered.

    >>> level([0.1, -0.3, None])["median"], level([0.1, -0.3, None])["median_all"]
    (0.2, 0.3)
    """
    covered = sorted(e for e in errors if e is not None)
    sizes = sorted(abs(e) for e in covered)
    # The uncovered as infinite: the median is finite where both of its neighbours are.
    middle = sizes[(len(errors) - 1) // 2 : len(errors) // 2 + 1]
    finite = len(errors) // 2 < len(sizes)
    return {
        "n": len(errors),
        "covered": len(covered),
        "median": _quantile(sizes, 0.5),
        "p90": _quantile(sizes, 0.9),
        "signed": _quantile(covered, 0.5),
        "median_all": _quantile(middle, 0.5) if finite else None,
    }


@dataclass(frozen=True)
class Point:
    """A configuration: medians of its repeats."""

    key: str
    tpot: float
    throughput: float
    predicted_tpot: float | None
    predicted_throughput: float | None
    floor: float

    @classmethod
    def of(cls, key: str, repeats: Sequence[Outcome]) -> Point:
        """One point of repeated measurements."""
        told = [(o, o.ttft_ms, o.tpot_ms) for o in repeats]
        guesses = [(o, a, b) for o, a, b in told if a is not None and b is not None]
        truths = [(o, float(o.row["ttft_ms"]), float(o.row["tpot_ms"])) for o in repeats]
        return cls(
            key,
            _median(tpot for _, _, tpot in truths),
            _median(o.throughput(a, b) for o, a, b in truths),
            _median(b for _, _, b in guesses) if guesses else None,
            _median(o.throughput(a, b) for o, a, b in guesses) if guesses else None,
            repeats[0].throughput(*FLOOR_MS),
        )


def ranking(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """tau-b of TPOT and of tokens/s/GPU in groups and at equal concurrency, and regret."""
    usable = [o for o in outcomes if o.scored("tpot") and _placed(o)]
    best = [o for o in usable if DIMENSIONS["trust"](o) == "A"]
    found: dict[str, dict[str, Any]] = {}
    for label, group in (("group", _group), ("equal concurrency", _group_at_concurrency)):
        fast, rich = _points(usable, group), _points(best, group)
        found[f"tau_b tpot, {label}"] = _taus(fast, lambda p: (p.tpot, p.predicted_tpot))
        found[f"tau_b output_tokens_per_s_per_gpu, {label}"] = {
            **_taus(rich, lambda p: (p.throughput, p.predicted_throughput)),
            "floor": _taus(rich, lambda p: (p.throughput, p.floor))["mean"],
        }
        if group is _group:
            for limit in LIMITS_MS:
                name = "none" if limit is None else f"{limit:g}"
                found[f"regret tpot<={name}"] = _regrets(rich, limit)
    return found


def regret(points: Sequence[Point], limit_ms: float | None) -> tuple[float, str] | None:
    """Regret of the pick of one group and how it came about: ``met``, ``missed`` or ``no pick``.

    None where no configuration meets the limit.
    """

    def within(tpot: float | None) -> bool:
        return tpot is not None and (limit_ms is None or tpot <= limit_ms)

    good = [p.throughput for p in points if within(p.tpot)]
    if not good:
        return None
    picks = [
        (-(p.predicted_throughput or 0.0), p.key, p) for p in points if within(p.predicted_tpot)
    ]
    if not picks:
        return 1.0, "no pick"
    pick = min(picks, key=lambda entry: entry[:2])[2]
    if limit_ms is not None and pick.tpot > limit_ms * (1 + SLACK):
        return 1.0, "missed"
    return max(0.0, 1 - pick.throughput / max(good)), "met"


def _group(o: Outcome) -> str:
    columns = ("model", "gpu", "isl_nominal", "osl_nominal")
    return o.row.get("ranking_group") or "|".join(o.row[k] for k in columns)


def _group_at_concurrency(o: Outcome) -> str:
    return f"{_group(o)}|c{o.row['concurrency']}"


def _placed(o: Outcome) -> bool:
    """Whether its throughput can be told."""
    columns = ("concurrency", "gpus", "osl_nominal", "ttft_ms")
    return all(measured(o.row, column) is not None for column in columns)


def _points(outcomes: Iterable[Outcome], group: Callable[[Outcome], str]) -> list[list[Point]]:
    """Configurations of each group that has enough of them."""
    groups: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for o in outcomes:
        key = o.row.get("config_key") or o.row["deployment_id"]
        groups[group(o)][key].append(o)
    return [
        [Point.of(key, repeats) for key, repeats in sorted(configurations.items())]
        for _, configurations in sorted(groups.items())
        if len(configurations) >= FEWEST
    ]


def _taus(
    groups: Iterable[Sequence[Point]], sides: Callable[[Point], tuple[float, float | None]]
) -> dict[str, Any]:
    """tau-b of measured against predicted over the groups with enough covered points."""
    taus = []
    for points in groups:
        pairs = [sides(p) for p in points if p.predicted_tpot is not None]
        if len(pairs) >= FEWEST:
            taus.append(tau_b([a for a, _ in pairs], [b or 0.0 for _, b in pairs]))
    return {"groups": len(taus), **_summary(sorted(taus)), "p10": _quantile(sorted(taus), 0.1)}


def _regrets(groups: Iterable[Sequence[Point]], limit_ms: float | None) -> dict[str, Any]:
    found = [entry for points in groups if (entry := regret(points, limit_ms))]
    ways = [way for _, way in found]
    return {
        "groups": len(found),
        **_summary(sorted(cost for cost, _ in found)),
        "mean_when_met": _mean([cost for cost, way in found if way == "met"]),
        "limit_missed": ways.count("missed"),
        "no_pick": ways.count("no pick"),
    }


def _summary(ordered: list[float]) -> dict[str, float | None]:
    return {"mean": _mean(ordered), "median": _quantile(ordered, 0.5)}


def _quantile(ordered: list[float], q: float) -> float | None:
    return quantile(ordered, q) if ordered else None


def _median(values: Iterable[float]) -> float:
    return quantile(sorted(values), 0.5)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
