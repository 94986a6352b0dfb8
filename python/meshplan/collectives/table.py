"""Read a table of bus bandwidths: ``op, size_bytes, busbw`` and, where known, more.

``algbw`` (GB/s), ``gpus``, ``nodes``, ``gpu`` (device, or the name of the log) and ``notes`` may be
blank. The time is size / algbw; without ``algbw`` it follows from ``busbw`` and the number of GPUs.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from meshplan.collectives.logs import read_text, with_ranks
from meshplan.collectives.measurement import OPERATIONS, Measurement, factor, ranks_of
from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDED = ("op", "size_bytes", "busbw")


def read(path: str | Path) -> list[Measurement]:
    """Read one table.

    Raises
    ------
    InputError
        With every bad line: its place, what was found and what was expected.
    """
    path = Path(path)
    reader = csv.DictReader(io.StringIO(read_text(path)))
    missing = [name for name in NEEDED if name not in (reader.fieldnames or [])]
    if missing:
        raise InputError(
            f"must have the columns {', '.join(NEEDED)}; lacks {', '.join(missing)}",
            field="table",
            value=str(path),
        )
    found, problems = [], []
    for row in reader:
        where = f"{path}:{reader.line_num}"
        got = _measurement(row, where)
        if isinstance(got, Measurement):
            found.append(got)
        else:
            problems.append(Problem(got, "line", str(row.get("op", ""))[:40], where=where))
    if problems:
        raise InputError.all_of(problems)
    return [m for m in _with_ranks(found) if m.time_s > 0]


def is_table(path: Path) -> bool:
    """Whether a CSV file has the columns of such a table."""
    with path.open(encoding="utf-8", errors="replace") as file:
        names = file.readline(10_000).strip().split(",")
    return all(name in names for name in NEEDED)


def _with_ranks(found: list[Measurement]) -> list[Measurement]:
    """Give lines that cannot tell their ranks those of the lines of the same machine."""
    machines: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in found:
        machines[measurement.gpu].append(measurement)
    return [m for rows in machines.values() for m in with_ranks(rows)]


def _measurement(row: Mapping[str, str | None], where: str) -> Measurement | str:
    def value(name: str) -> float:
        return float((row.get(name) or "0").replace("_", ""))

    operation = OPERATIONS.get(str(row.get("op", "")).strip().lower(), "")
    if not operation:
        return "must name an operation in op: " + ", ".join(sorted(set(OPERATIONS.values())))
    try:
        size, bus, algorithm = value("size_bytes"), value("busbw"), value("algbw")
        ranks, nodes = int(value("gpus")), int(value("nodes"))
    except ValueError:
        return "must have numbers in size_bytes, busbw, algbw, gpus and nodes"
    if not (size > 0 and bus >= 0 and algorithm >= 0 and 0 <= ranks < 1 << 20):
        return "must have a positive size_bytes and no negative number"
    ranks = ranks or ranks_of(operation, bus, algorithm)
    if not algorithm and ranks > 1:
        algorithm = bus / factor(operation, ranks)
    return Measurement(
        operation=operation,
        size_bytes=size,
        time_s=size / (algorithm * 1e9) if algorithm else 0.0,
        bus_bytes_per_s=bus * 1e9,
        ranks=ranks,
        nodes=nodes,
        gpu=" ".join(filter(None, (row.get("gpu"), row.get("notes")))),
        where=where,
    )
