"""Numbers of serving: hardware by GPU architecture, software by backend, a default of routing.

``presets/serving.toml`` is the one place of a number. Each is a parameter with its targets, such as
``hardware.blackwell.weight_read``, ``software.vllm.operator_s`` or ``routing.popularity_spread``;
``*`` stands for all.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError, Problem
from meshplan.specs.base import problem_at, suggest
from meshplan.specs.overlay import assign
from meshplan.specs.reading import read_toml
from meshplan.specs.toml import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURES = {
    "hopper": "hopper",
    "blackwell": "blackwell",
    "ampere": "hopper",
    "ada": "hopper",
    "volta": "hopper",
    "cdna3": "hopper",
    "cdna4": "blackwell",
}
"""Architecture whose numbers one takes; only Hopper and Blackwell were measured."""

MEASURED = ("hopper", "blackwell")
BACKENDS = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True)
class ServingParameter:
    """A number of the serving model.

    Attributes
    ----------
    name
        Its name.
    targets
        Fields that it sets, dotted.
    unit
        Unit.
    source
        Where the prior is from.
    prior, spread
        Belief before the fit: centre, and one standard deviation as a factor (1: not fitted).
    value, sigma
        Fitted value, and the standard deviation of its logarithm.
    rows
        Measured deployments that it moves by more than 1 %.
    """

    name: str
    targets: tuple[str, ...]
    unit: str
    source: str
    prior: float
    spread: float
    value: float
    sigma: float
    rows: int

    @property
    def fitted(self) -> bool:
        """Whether a fit may move it."""
        return self.spread > 1.0


@functools.cache
def parameters() -> tuple[ServingParameter, ...]:
    """Every number of the serving model."""
    text = resources.files("meshplan").joinpath("presets/serving.toml").read_text("utf-8")
    tables = parse(text)[0]
    return tuple(
        ServingParameter(name=name, **{**t, "targets": tuple(t["targets"])})
        for name, t in tables.items()
    )


def tables(values: Mapping[str, float] | None = None) -> dict[str, dict[str, Any]]:
    """Hardware by architecture, software by backend and routing, as the core reads them.

    Parameters
    ----------
    values
        Value per parameter name, for those that differ from the fitted ones.
    """
    tree: dict[str, dict[str, Any]] = {
        "hardware": {name: {} for name in MEASURED},
        "software": {name: {} for name in BACKENDS},
        "routing": {},
    }
    for parameter in parameters():
        value = (values or {}).get(parameter.name, parameter.value)
        for target in parameter.targets:
            kind, name, *path = target.split(".")
            if not path:
                tree[kind][name] = value
            for one in (tree[kind] if name == "*" else (name,)) if path else ():
                assign(tree[kind][one], path, value)
    return tree


LIMITS = (1e-12, 1e15)
"""Numbers that make any sense."""


def read_values(path: str | os.PathLike[str]) -> dict[str, float]:
    """Values by parameter name of a file in the form of ``presets/serving.toml``.

    Of each table only ``value`` is read; what the file does not name stays at the preset. Such a
    file is what ``planner calibrate --serving`` writes.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    draft = read_toml(path)
    known = {p.name for p in parameters()}
    values: dict[str, float] = {}
    problems: list[Problem] = []
    for name, table in draft.data.items():
        if name not in known:
            hint = suggest(name, sorted(known))
            rule = "is not a number of the serving model"
            problems.append(problem_at((name,), name, rule, hint, draft.origins))
            continue
        value = table.get("value") if isinstance(table, dict) else None
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not LIMITS[0] <= value <= LIMITS[1]
        ):
            rule = f"must be a number in [{LIMITS[0]:g}, {LIMITS[1]:g}]"
            hint = f'write ["{name}"] with value = 0.8 under it'
            problems.append(problem_at((name, "value"), value, rule, hint, draft.origins))
            continue
        values[name] = float(value)
    if not draft.data:
        rule, hint = "names no number", "planner calibrate --serving writes such a file"
        problems.append(Problem(rule, where=os.fspath(path), hint=hint))
    if problems:
        raise InputError.all_of(problems)
    return values


def tables_of(path: str | os.PathLike[str] | None) -> dict[str, dict[str, Any]]:
    """Numbers of a file laid over the presets; without one, the presets'."""
    return _fitted() if path is None else tables(read_values(path))


@functools.cache
def _fitted() -> dict[str, dict[str, Any]]:
    return tables()


def hardware(
    architecture: str, numbers: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Hardware of the core for a device's architecture.

    Parameters
    ----------
    architecture
        Architecture of a device preset.
    numbers
        As of `tables`; the fitted ones unless given.

    Raises
    ------
    InputError
        When the architecture has no numbers.
    """
    if architecture not in ARCHITECTURES:
        raise InputError(
            "has no serving numbers",
            field="device.architecture",
            value=architecture,
            hint=suggest(architecture, list(ARCHITECTURES)),
        )
    found: dict[str, Any] = (numbers or _fitted())["hardware"][ARCHITECTURES[architecture]]
    return found


def hardware_json(architecture: str) -> str:
    """The same as JSON."""
    return json.dumps(hardware(architecture))


def software_json(backend: str) -> str:
    """Software of the core for a backend.

    Raises
    ------
    InputError
        When the backend is not known.
    """
    if backend not in BACKENDS:
        raise InputError(
            "is not a known backend",
            field="backend",
            value=backend,
            hint=suggest(backend, list(BACKENDS)),
        )
    return json.dumps(_fitted()["software"][backend])


def routing_json() -> str:
    """How tokens choose experts where nothing was measured, as the core reads it."""
    return json.dumps(_fitted()["routing"])
