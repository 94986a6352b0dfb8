"""Which cluster a measurement ran on, and how many domains its ranks span."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from meshplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshplan.collectives.measurement import Measurement

_GRID = re.compile(r"(?<![a-z0-9])(\d+)x(?:[a-z][a-z0-9]*x)?(\d+)(?=nodes|[^a-z0-9]|$)")
_NODES = re.compile(r"(?<![0-9])(\d+)[-_ ]?nodes?(?![a-z])")


@dataclass(frozen=True, slots=True)
class Placed:
    """A measurement with the preset that stands for its cluster; empty where none does."""

    measurement: Measurement
    cluster: str
    ranks: int


@functools.cache
def _known() -> tuple[tuple[str, str], ...]:
    text = resources.files("meshplan").joinpath("collectives/known.toml").read_text("utf-8")
    return tuple((rule["pattern"], rule["cluster"]) for rule in tomllib.loads(text)["rules"])


def rules_of(options: Sequence[str], names: Sequence[str]) -> list[tuple[str, str]]:
    """Rules of ``--cluster``: ``NAME`` for every log, or ``PATTERN=NAME``.

    Raises
    ------
    InputError
        When there is no preset of that name.
    """
    rules = []
    for option in options:
        pattern, _, name = option.rpartition("=")
        if name not in names:
            raise InputError(
                "is not a known preset of clusters",
                field="--cluster",
                value=option,
                hint="known: " + ", ".join(names),
            )
        rules.append((re.escape(pattern.lower()), name))
    return rules


def place(measurement: Measurement, rules: Sequence[tuple[str, str]]) -> Placed:
    """Find the cluster of a measurement, and its ranks where only the file's name tells them."""
    name = Path(measurement.where.rpartition(":")[0]).stem
    text = f"{name} {measurement.gpu}".lower()
    found = next(
        (cluster for pattern, cluster in (*rules, *_known()) if re.search(pattern, text)), ""
    )
    ranks = measurement.ranks
    if not ranks and (grid := _GRID.search(text)):
        ranks = int(grid[1]) * int(grid[2])
    if not ranks and (nodes := _NODES.search(text)):
        ranks = 8 * int(nodes[1])
    return Placed(measurement, found, ranks)
