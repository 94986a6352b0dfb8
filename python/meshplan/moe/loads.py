"""Recorded expert loads: read CSV, Parquet or JSON, and refuse what cannot be a recording."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from meshplan.errors import InputError, Problem
from meshplan.moe.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from meshplan.moe.tables import Row

TOLERANCE = 1e-3
"""Relative difference that a stated total may have from the sum of its row (rounded counts)."""
TOKENS_TOLERANCE = 0.05
"""The same for tokens × top_k: recordings that average over samples lose up to 3 %."""
MOST_TOKENS = 1e18
"""Counts from here on are mistakes."""
MOST_PROBLEMS = 20
"""Problems of a file that are told at once."""


@dataclass(frozen=True)
class Loads:
    """Tokens per expert, layer by layer, for one or several snapshots.

    Attributes
    ----------
    layers
        Number of each MoE layer, as recorded.
    snapshots
        One matrix (layers × experts) per snapshot: a domain, a time window or a step.
    names
        Name of each snapshot.
    dense
        Layers that were recorded and hold no expert (left out on request).
    top_k
        Experts per token, where single tokens were recorded.
    """

    layers: list[int]
    snapshots: list[list[list[float]]]
    names: list[str]
    dense: list[int] = field(default_factory=list)
    top_k: int | None = None

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return len(self.snapshots[0][0])

    @property
    def total(self) -> list[list[float]]:
        """Sum of the snapshots: layers × experts."""
        first, *others = self.snapshots
        summed = [list(row) for row in first]
        for snapshot in others:
            for mine, theirs in zip(summed, snapshot, strict=True):
                for e, count in enumerate(theirs):
                    mine[e] += count
        return summed


def read_loads(
    path: str | Path,
    *,
    ranks: int | None = None,
    top_k: int | None = None,
    skip_dense: bool = False,
    where: dict[str, str] | None = None,
) -> Loads:
    """Read recorded loads and check that they can be true.

    Parameters
    ----------
    path
        CSV or Parquet with one row per layer and one column per expert (``e0``, ``e1``, … or
        plain numbers; other columns are labels), CSV or Parquet with the columns ``layer``,
        ``expert``, ``count``, a CSV of bare numbers, or JSON: a matrix, a list of matrices, or an
        object with one of them under ``loads``, ``logical_count`` or ``counts``. CSV, Parquet or
        JSON lines with a column ``experts`` record single tokens: the experts that a token chose.
    ranks
        Ranks of the expert-parallel group: a recording with the experts of one rank only is
        refused.
    top_k
        Experts per token: rows with a ``tokens`` column must sum to ``tokens × top_k``.
    skip_dense
        Leave out layers without any load instead of refusing them.
    where
        Label → value: read only these rows.

    Raises
    ------
    InputError
        With every problem of the file at once.
    """
    table = read_table(path)
    rows = [row for row in table.rows if _matches(row, where or {})]
    if not rows and table.problems:
        raise InputError.all_of(table.problems[:MOST_PROBLEMS])
    if not rows:
        raise InputError(
            "no row is left",
            field="where",
            value=", ".join(f"{k}={v}" for k, v in (where or {}).items()),
            where=str(path),
            hint=f"labels of this file: {', '.join(table.labels) or 'none'}",
        )
    if table.top_k is not None and top_k not in (None, table.top_k):
        rule = f"each recorded token chose {table.top_k} experts"
        raise InputError(rule, field="top_k", value=str(top_k), where=str(path))
    problems = [*table.problems, *_check_rows(rows, top_k, str(path))][:MOST_PROBLEMS]
    if problems:
        raise InputError.all_of(problems)
    loads = _arrange(rows, str(path))
    return replace(_check_layers(loads, ranks, skip_dense, str(path)), top_k=table.top_k)


def _matches(row: Row, where: dict[str, str]) -> bool:
    return all(row.labels.get(key) == value for key, value in where.items())


def _check_rows(rows: list[Row], top_k: int | None, path: str) -> list[Problem]:
    """Widths, values and totals, row by row."""
    problems: list[Problem] = []
    width = len(rows[0].counts)
    for row in rows:
        where = f"{path}:{row.line}" if row.line else path
        layer = "" if row.line else f"layer {row.layer}, "
        if len(row.counts) != width:
            rule = f"has {len(row.counts)} experts, the first row has {width}"
            problems.append(Problem(rule, field=f"{layer}row" if layer else "", where=where))
        bad = [e for e, count in enumerate(row.counts) if not 0 <= count < MOST_TOKENS]
        for e in bad:
            count, word = row.counts[e], row.words.get(e)
            rule = f"counts are finite and not negative, below {MOST_TOKENS:.0e}"
            if word is not None or count != count:
                rule = "not a number"
            value = f"{count:g}" if word is None else word
            problems.append(Problem(rule, field=f"{layer}expert {e}", value=value, where=where))
        if not bad:
            problems += _check_total(row, top_k, where)
        if len(problems) >= MOST_PROBLEMS:
            break
    return problems


def _finite(text: str) -> float:
    """Read a finite number; NaN if it is none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _check_total(row: Row, top_k: int | None, where: str) -> list[Problem]:
    """A stated total must be the sum of its row."""
    stated = {"total_assignments": 1, "total": 1, **({"tokens": top_k} if top_k else {})}
    found = sum(row.counts)
    problems = []
    for label, factor in stated.items():
        text = row.labels.get(label)
        if text is None or factor is None:
            continue
        expected = _finite(text) * factor
        if expected != expected:
            rule = "a stated total is a finite number"
            problems.append(Problem(rule, field=label, value=text[:40], where=where))
            continue
        allowed = TOKENS_TOLERANCE if label == "tokens" else TOLERANCE
        if abs(found - expected) > allowed * max(expected, 1.0):
            times = f" × {factor}" if factor != 1 else ""
            copies = round(found / expected) if expected > 0 else 0
            problems.append(
                Problem(
                    f"the counts sum to {found:g}, not to {label}{times} = {expected:g}",
                    where=where,
                    hint="a recording that lost tokens cannot be balanced; record it again"
                    if copies < 2
                    else f"{copies} times as many: naive data-parallel dispatch counts a token "
                    "once on every rank; divide by the data-parallel size",
                )
            )
    return problems


def _arrange(rows: list[Row], path: str) -> Loads:
    """Rows to snapshots: rows that share their labels, the layer apart, are one snapshot."""
    snapshots: dict[str, dict[int, list[float]]] = {}
    for i, row in enumerate(rows):
        name = row.snapshot
        layer = i if row.layer is None else row.layer
        layers = snapshots.setdefault(name, {})
        if layer in layers:
            raise InputError(
                "recorded twice",
                field="layer",
                value=str(layer),
                where=f"{path}:{row.line}" if row.line else path,
                hint="give each snapshot a label column, or keep one row per layer",
            )
        layers[layer] = row.counts
    first = list(next(iter(snapshots.values())))
    for name, layers in snapshots.items():
        if set(layers) != set(first):
            missing = sorted(set(first) ^ set(layers))
            raise InputError(
                f"layers differ between snapshots: {missing[:8]}", field=name, where=path
            )
    matrices = [[layers[n] for n in first] for layers in snapshots.values()]
    return Loads(layers=first, snapshots=matrices, names=list(snapshots))


def _check_layers(loads: Loads, ranks: int | None, skip_dense: bool, path: str) -> Loads:
    """Layers without load, and recordings of one rank."""
    total = loads.total
    idle = [i for i, row in enumerate(total) if sum(row) <= 0]
    if idle and len(idle) == len(total):
        raise InputError("no expert of any layer has a load", field="loads", where=path)
    if idle and not skip_dense:
        numbers = ", ".join(str(loads.layers[i]) for i in idle[:12])
        raise InputError(
            "no expert has a load; a dense layer, or a recording that failed",
            field="layer",
            value=numbers,
            where=path,
            hint="--skip-dense leaves such layers out and keeps the numbers of the others",
        )
    kept = [i for i in range(len(total)) if i not in set(idle)]
    _refuse_one_rank([total[i] for i in kept], ranks, path)
    return Loads(
        layers=[loads.layers[i] for i in kept],
        snapshots=[[snapshot[i] for i in kept] for snapshot in loads.snapshots],
        names=loads.names,
        dense=[loads.layers[i] for i in idle],
    )


def _refuse_one_rank(total: list[list[float]], ranks: int | None, path: str) -> None:
    """Loads on the experts of one rank only: the recorder did not sum over the ranks."""
    experts = len(total[0])
    busy = [e for e in range(experts) if any(row[e] > 0 for row in total)]
    counts = [ranks] if ranks else [n for n in range(2, experts + 1) if experts % n == 0]
    for n in counts:
        size = experts // n if n else 0
        if n > 1 and size > 1 and busy[0] // size == busy[-1] // size:
            raise InputError(
                f"only experts {busy[0]} to {busy[-1]} of {experts} have a load, in every layer: "
                f"this is one rank's part of a recording over {n} ranks",
                field="loads",
                where=path,
                hint="sum the recordings of all ranks (SGLang: dump_record gathers them)",
            )
