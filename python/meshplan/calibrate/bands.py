"""Error bands from cross-validated predictions: how ``presets/bands.toml`` is written."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from meshplan import bands
from meshplan.validate.score import measured, quantile

if TYPE_CHECKING:
    from meshplan.calibrate.crossval import Predicted
    from meshplan.validate.predict import Batch

FEWEST = 5
"""Fewest configurations of a kind that gets a band of its own."""

HEAD = """\
# Quantiles of |predicted / measured - 1| of step times by kind of prediction: framework family,
# architecture, class of parallelism. Cross-validated: whole (model, GPU) groups were left out of
# the fit; "not calibrated": whole sources were left out, each counts alike. Runs of trust A and B.
# docs/accuracy.md.
"""


def errors(batch: Batch, found: Predicted) -> dict[str, list[float]]:
    """Errors of the step time by kind, one for each configuration."""
    by_key: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i, (time, _) in found.items():
        run = batch.runs[i]
        truth = measured(run.row, "step_time_s")
        if truth is None or run.row["trust"] not in "AB":
            continue
        architecture = bands_architecture(run.device)
        for kind in bands.kinds(run.software, architecture, run.layouts[0]):
            key = run.row.get("config_key") or run.run_id
            by_key[kind, key].append(abs(time / truth - 1))
    kinds: dict[str, list[float]] = defaultdict(list)
    for (kind, _), values in by_key.items():
        kinds[kind].append(sorted(values)[len(values) // 2])
    return kinds


def balanced(batch: Batch, found: Predicted) -> list[float]:
    """Errors of the step time in which every source counts alike: twenty quantiles of each."""
    sources: dict[str, list[float]] = defaultdict(list)
    for i, (time, _) in found.items():
        row = batch.runs[i].row
        truth = measured(row, "step_time_s")
        if truth is not None and row["trust"] in "AB":
            sources[row["source"]].append(abs(time / truth - 1))
    points = [(2 * n + 1) / 40 for n in range(20)]
    return [quantile(sorted(values), q) for values in sources.values() for q in points]


def bands_architecture(device: str) -> str:
    """Architecture of a device preset."""
    from meshplan.specs import presets

    return str(presets.raw("devices", device, (), {})["architecture"])


def to_toml(cross_validated: dict[str, list[float]], source_left_out: list[float]) -> str:
    """Text of ``presets/bands.toml``."""
    rows = {k: v for k, v in cross_validated.items() if k != bands.UNKNOWN and len(v) >= FEWEST}
    rows[bands.UNKNOWN] = source_left_out
    tables = [HEAD]
    for kind, values in sorted(rows.items()):
        ordered = sorted(values)
        q50, q90 = (round(quantile(ordered, q), 3) for q in (0.5, 0.9))
        count = len(cross_validated[kind])
        tables.append(f'["{kind}"]\nq50 = {q50}\nq90 = {q90}\nrows = {count}\n')
    return "\n".join(tables)
