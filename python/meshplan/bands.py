"""Error bands of predictions: how far measured runs of the nearest kind were from theirs.

``presets/bands.toml`` holds quantiles of the cross-validated error |predicted / measured − 1|
(whole (model, GPU) groups left out of the fit) by kind: framework family, architecture and class of
parallelism of the layout. A prediction takes the nearest kind that enough runs inform, and says
which.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from meshplan.specs import software as generations
from meshplan.specs.toml import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "not calibrated"
"""Kind of frameworks and devices that no run informs: whole sources were left out, each counts
alike."""

COLUMNS = (
    ("error_q50_ratio", "1", "Median error of measured runs of the nearest kind"),
    ("error_q90_ratio", "1", "Ninth decile of the same"),
    ("error_rows", "1", "Measured runs of that kind"),
    ("error_kind", "", "The kind: family, architecture, class of parallelism"),
)
"""Columns that a band adds to a row, as (name, unit, doc)."""


@dataclass(frozen=True)
class Band:
    """Error quantiles of a kind of prediction.

    Attributes
    ----------
    q50, q90
        Quantiles of |predicted / measured − 1| of the step time.
    rows
        Measured configurations behind them.
    kind
        What kind it is.
    """

    q50: float
    q90: float
    rows: int
    kind: str

    def to_dict(self) -> dict[str, Any]:
        """The columns that a band adds to a row."""
        values = (self.q50, self.q90, self.rows, self.kind)
        return {name: value for (name, _, _), value in zip(COLUMNS, values, strict=True)}


def parallelism(row: Mapping[str, Any]) -> str:
    """Class of parallelism of a layout.

    >>> parallelism({"ep": 8, "pp": 4, "tp": 1, "cp": 1})
    'expert'
    >>> parallelism({"ep": 1, "pp": 1, "tp": 8, "cp": 1})
    'tensor'
    """
    if int(row["ep"]) > 1:
        return "expert"
    if int(row["pp"]) > 1:
        return "pipeline"
    return "tensor" if int(row["tp"]) > 1 or int(row["cp"]) > 1 else "data"


def family(software: str) -> str:
    """Family of a framework generation: what it inherits its calibration from."""
    tables = generations.tables()
    for name in generations.ancestry(software, tables):
        if "family" in tables[name]:
            return str(tables[name]["family"])
    return software


def kinds(software: str, architecture: str, row: Mapping[str, Any]) -> list[str]:
    """Kinds of a prediction, nearest first."""
    group, shape = family(software), parallelism(row)
    return [
        f"{group}, {architecture}, {shape}",
        f"{group}, {architecture}",
        f"{group}, {shape}",
        group,
        UNKNOWN,
    ]


def band(software: str, architecture: str, row: Mapping[str, Any]) -> Band:
    """Error band of one layout.

    Parameters
    ----------
    software
        Framework generation.
    architecture
        Architecture of the device.
    row
        The layout: at least ``tp pp cp ep``.
    """
    known = _bands()
    return next(known[kind] for kind in kinds(software, architecture, row) if kind in known)


@functools.cache
def _bands() -> dict[str, Band]:
    text = resources.files("meshplan").joinpath("presets/bands.toml").read_text("utf-8")
    return {kind: Band(kind=kind, **values) for kind, values in parse(text)[0].items()}
