"""Fitted parameters, laid over the presets that they belong to.

``presets/parameters.toml`` is the one place of a fitted number. A parameter names its targets, such
as ``devices.h100-sxm.training.gemm_ratio.bf16`` or ``software.megatron-core.step_s``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

from meshplan.specs.toml import parse


@dataclass(frozen=True)
class Parameter:
    """A fitted number.

    Attributes
    ----------
    name
        Its name.
    targets
        Values that it sets, dotted.
    unit
        Unit.
    prior, spread
        Belief before the fit: centre, and one standard deviation as a factor.
    value, sigma
        Fitted value, and the standard deviation of its logarithm.
    rows
        Measured runs that it moves by more than 1 %.
    """

    name: str
    targets: tuple[str, ...]
    unit: str
    prior: float
    spread: float
    value: float
    sigma: float
    rows: int


@functools.cache
def parameters() -> tuple[Parameter, ...]:
    """Every fitted parameter of training."""
    text = resources.files("meshplan").joinpath("presets/parameters.toml").read_text("utf-8")
    tables = parse(text)[0]
    return tuple(
        Parameter(name=name, **{**t, "targets": tuple(t["targets"])}) for name, t in tables.items()
    )


def assign(tree: dict[str, Any], path: list[str], value: float) -> None:
    """Set a dotted value in nested tables (a number in the last part indexes a list)."""
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    leaf: Any = tree
    if path[-1].isdigit():
        leaf[int(path[-1])] = value
    else:
        leaf[path[-1]] = value


def apply(
    kind: str, tree: dict[str, Any], values: dict[str, float] | None = None
) -> dict[str, Any]:
    """Lay fitted values over the raw tables of one kind of preset.

    Parameters
    ----------
    kind
        ``devices``, ``fabrics`` or ``software``: the first part of the targets.
    tree
        Raw tables by kind and name; changed in place.
    values
        Value per parameter name, for those that differ from the fitted ones.
    """
    for parameter in parameters():
        value = (values or {}).get(parameter.name, parameter.value)
        for target in parameter.targets:
            head, name, *path = target.split(".")
            if head == kind and name in tree[kind]:
                prefix = ["costs"] if kind == "software" else []
                assign(tree[kind][name], [*prefix, *path], value)
    return tree
