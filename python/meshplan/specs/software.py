"""Framework generations: what software costs, and how it is run by default."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from meshplan.errors import InputError
from meshplan.specs.base import suggest
from meshplan.specs.overlay import apply
from meshplan.specs.toml import parse

NEWEST = {
    "generic": "megatron-core-2026",
    "megatron": "megatron-core-2026",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
}
"""Generation that a framework stands for when no version is given."""


@dataclass(frozen=True)
class Software:
    """A framework generation.

    Attributes
    ----------
    name
        Name of the preset.
    title
        One line about it.
    workload
        Defaults of :class:`meshplan.specs.training.Training` for it.
    costs
        Fields of the core's ``Software``, SI units.
    frameworks, since
        Names under which runs record it, and from which release or year.
    """

    name: str
    title: str
    workload: dict[str, Any]
    costs: dict[str, Any]
    frameworks: tuple[str, ...]
    since: str

    def canonical_json(self) -> str:
        """Software of the core."""
        return json.dumps({"name": self.name, **self.costs})


@functools.cache
def raw_tables() -> dict[str, dict[str, Any]]:
    """Tables of ``presets/software.toml`` as they are written."""
    text = resources.files("meshplan").joinpath("presets/software.toml").read_text("utf-8")
    return parse(text)[0]


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Tables of ``presets/software.toml``, fitted parameters put in."""
    return overlaid({})


def overlaid(values: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Tables under other values of fitted parameters."""
    tree = {"software": copy.deepcopy(raw_tables())}
    return cast("dict[str, dict[str, Any]]", apply("software", tree, values)["software"])


def ancestry(name: str, presets: dict[str, dict[str, Any]]) -> list[str]:
    """Name of a preset and of those that it inherits from, nearest first."""
    found = [name]
    while "base" in presets[found[-1]]:
        found.append(presets[found[-1]]["base"])
    return found


def resolve(name: str, presets: dict[str, dict[str, Any]]) -> Software:
    """Preset with everything that it inherits."""
    table = presets[name]
    base = resolve(table["base"], presets) if "base" in table else None
    return Software(
        name=name,
        title=table["title"],
        workload={**(base.workload if base else {}), **table.get("workload", {})},
        costs={**(base.costs if base else {}), **table.get("costs", {})},
        frameworks=tuple(table["frameworks"]),
        since=table["since"],
    )


def names() -> list[str]:
    """Names of the presets."""
    return list(tables())


def load_software(framework: str = "generic", version: str | None = None) -> Software:
    """Generation of a framework.

    Parameters
    ----------
    framework
        ``generic``, ``megatron``, ``torchtitan`` or ``deepspeed``.
    version
        Name of a preset, or nothing for the newest generation.

    Raises
    ------
    InputError
        When there is no such generation.
    """
    known = tables()
    name = version or NEWEST[framework]
    if name not in known:
        raise InputError(
            "is not a known framework generation",
            field="framework_version",
            value=name,
            hint=suggest(name, list(known)),
        )
    return resolve(name, known)
