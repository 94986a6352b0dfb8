"""Hold the collective model against measured collectives, by operation, size and span.

Times are compared, out of place. Bus bandwidths are printed beside them; algorithm bandwidths are
another quantity and are never averaged with them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.collectives import logs, span, table
from meshplan.collectives.measurement import factor
from meshplan.errors import InputError
from meshplan.validate.score import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meshplan.collectives.measurement import Measurement
    from meshplan.specs.cluster import Cluster

SMALL = 1 << 20
"""Size from which bandwidth, not latency, decides: the bars are on these sizes."""

SIZES = (
    (0, "below 1 MiB"),
    (1 << 20, "1 to 16 MiB"),
    (1 << 24, "16 to 256 MiB"),
    (1 << 28, "256 MiB and more"),
)
"""Lower ends of the classes of size."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A measurement beside its prediction."""

    measurement: Measurement
    cluster: str
    ranks: int
    domains: int
    predicted_s: float

    @property
    def error(self) -> float:
        """Signed relative error of the predicted time."""
        return self.predicted_s / self.measurement.time_s - 1.0

    @property
    def size_class(self) -> str:
        """Class of size."""
        return [name for low, name in SIZES if self.measurement.size_bytes >= low][-1]

    @property
    def span(self) -> str:
        """Whether the ranks share one scale-up domain."""
        return "one domain" if self.domains == 1 else "several domains"

    def row(self) -> dict[str, Any]:
        """The comparison as a row."""
        m = self.measurement
        bus = factor(m.operation, self.ranks) * m.size_bytes
        return {
            "where": m.where,
            "cluster": self.cluster,
            "operation": m.operation,
            "size_bytes": m.size_bytes,
            "ranks": self.ranks,
            "domains": self.domains,
            "time_s": m.time_s,
            "predicted_time_s": self.predicted_s,
            "bus_bytes_per_s": bus / m.time_s,
            "predicted_bus_bytes_per_s": bus / self.predicted_s,
            "error_ratio": self.error,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared, and what was not and why."""

    compared: list[Compared]
    skipped: dict[str, int]
    files: int

    def quantiles(self, rows: Iterable[Compared]) -> dict[str, Any]:
        """Number, median, signed median and ninth decile of the absolute error."""
        errors = sorted(abs(r.error) for r in rows)
        if not errors:
            return {"n": 0, "median": None, "p90": None}
        return {
            "n": len(errors),
            "median": quantile(errors, 0.5),
            "p90": quantile(errors, 0.9),
        }

    def groups(self) -> list[dict[str, Any]]:
        """Quantiles by operation, span and class of size."""
        parts: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
        for row in self.compared:
            parts[row.measurement.operation, row.span, row.size_class].append(row)
        order = [name for _, name in SIZES]
        return [
            {"operation": op, "span": where, "size": size, **self.quantiles(rows)}
            for (op, where, size), rows in sorted(
                parts.items(), key=lambda item: (*item[0][:2], order.index(item[0][2]))
            )
        ]

    def clusters(self) -> list[dict[str, Any]]:
        """Quantiles by cluster, from 1 MiB up."""
        parts: dict[str, list[Compared]] = defaultdict(list)
        for row in self.compared:
            if row.measurement.size_bytes >= SMALL:
                parts[row.cluster].append(row)
        return [{"cluster": k, **self.quantiles(v)} for k, v in sorted(parts.items())]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for ``--json``."""
        large = [r for r in self.compared if r.measurement.size_bytes >= SMALL]
        several = [r for r in large if r.domains > 1]
        return {
            "files": self.files,
            "overall": self.quantiles(self.compared),
            "from_1_mib": self.quantiles(large),
            "from_1_mib_several_domains": self.quantiles(several),
            "groups": self.groups(),
            "clusters_from_1_mib": self.clusters(),
            "skipped": self.skipped,
        }


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and those under folders except CSV files of another kind.

    Raises
    ------
    InputError
        When a path does not exist or a folder is empty.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [
                p
                for p in sorted(path.rglob("*"))
                if p.is_file() and (p.suffix.lower() != ".csv" or table.is_table(p))
            ]
            if not inside:
                raise InputError("holds no file", field="log", value=str(path))
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError("no such file or folder", field="log", value=str(path))
    return found


def read(paths: Sequence[Path]) -> list[Measurement]:
    """Measurements of logs, JSON reports, tables and folders of them; every bad line at once."""
    measurements: list[Measurement] = []
    problems: list[Any] = []
    for path in paths:
        try:
            reader = table.read if path.suffix.lower() == ".csv" else logs.read
            measurements += reader(path)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError.all_of(problems)
    return measurements


def validate(paths: Sequence[str | Path], clusters: Sequence[str] = ()) -> Report:
    """Compare measured collectives with the model.

    Parameters
    ----------
    paths
        Logs (text or JSON), tables (CSV), or folders of them.
    clusters
        Preset that stands for the machine: ``NAME`` for all, or ``PATTERN=NAME`` for the logs whose
        file or device name contains the pattern. Without, the name of the file or of the device
        tells (``collectives/known.toml``).
    """
    from meshplan.specs.presets import names

    files = files_of([Path(p) for p in paths])
    rules = span.rules_of(clusters, names("clusters"))
    placed: dict[str, list[span.Placed]] = defaultdict(list)
    skipped: dict[str, int] = defaultdict(int)
    for measurement in read(files):
        found = span.place(measurement, rules)
        if not found.cluster:
            skipped["no preset for its hardware"] += 1
        elif found.ranks < 2:
            skipped["number of ranks unknown"] += 1
        else:
            placed[found.cluster].append(found)
    compared = [row for name, rows in sorted(placed.items()) for row in _compare(name, rows)]
    return Report(compared, dict(skipped), len(files))


def _compare(name: str, rows: list[span.Placed]) -> list[Compared]:
    from meshplan._core import collective_times
    from meshplan.specs.reading import load_cluster

    cluster: Cluster = load_cluster(name)
    domain = cluster.nvlink_domain
    requests = []
    for row in rows:
        m = row.measurement
        alone = m.nodes == row.ranks and row.ranks > 1
        requests.append(
            {
                "operation": m.operation,
                "bytes": m.size_bytes,
                "ranks": row.ranks,
                "stride": domain if alone else 1,
            }
        )
    times = collective_times(json.dumps(cluster.canonical()), json.dumps(requests))
    return [
        Compared(
            row.measurement,
            name,
            row.ranks,
            row.ranks if request["stride"] != 1 else -(-row.ranks // domain),
            time,
        )
        for row, request, time in zip(rows, requests, times, strict=True)
    ]
