"""The formulas that engineers quote, as functions with names, units and sources.

>>> calculate("all-reduce", ranks=8, bytes="1 GiB")
{'sent_bytes': 1879048192.0, 'steps': 14.0}
>>> calculator("tp-message").equation
'B·s·H·b'
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import meshplan._core as _core
from meshplan import units
from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SWITCH = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "on": 1.0, "off": 0.0}
"""Words for a switch, beside 1 and 0."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a calculator."""

    name: str
    symbol: str
    unit: str
    doc: str
    default: float | None
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result of a calculator."""

    name: str
    unit: str
    doc: str


@dataclass(frozen=True, slots=True)
class Calculator:
    """A named formula."""

    name: str
    doc: str
    equation: str
    source: str
    code: str
    parameters: tuple[Parameter, ...]
    results: tuple[Outcome, ...]
    example: tuple[float, ...]

    @property
    def usage(self) -> str:
        """How it is called: optional arguments in brackets, with their defaults."""
        words = [
            f"{p.name}=…" if p.default is None else f"[{p.name}={p.default:g}]"
            for p in self.parameters
        ]
        return " ".join(["planner calc", self.name, *words])


@functools.cache
def groups() -> dict[str, tuple[Calculator, ...]]:
    """Every calculator, by subject."""
    return {
        group["title"]: tuple(_calculator(raw) for raw in group["calculators"])
        for group in json.loads(_core.calculators())
    }


def _calculator(raw: dict[str, Any]) -> Calculator:
    return Calculator(
        **{key: raw[key] for key in ("name", "doc", "equation", "source", "code")},
        parameters=tuple(Parameter(**p) for p in raw["parameters"]),
        results=tuple(Outcome(**r) for r in raw["results"]),
        example=tuple(raw["example"]),
    )


def calculator(name: str) -> Calculator:
    """Look a calculator up by name.

    Raises
    ------
    InputError
        With the nearest names, when there is none of that name.
    """
    known = {c.name: c for members in groups().values() for c in members}
    if name in known:
        return known[name]
    from meshplan.specs.base import show, suggest

    raise InputError(
        "is not a calculator",
        field="calculator",
        value=show(name),
        hint=suggest(name, list(known)) + " `planner calc` lists them all",
    )


def calculate(name: str, /, **arguments: units.Quantity) -> dict[str, float]:
    """Call a calculator.

    Parameters
    ----------
    name
        Name of the calculator.
    **arguments
        Its arguments: numbers in SI units, or text with a unit such as ``"1 GiB"``.

    Returns
    -------
    dict[str, float]
        Results by name, in SI units.

    Raises
    ------
    InputError
        With every problem of the arguments.
    """
    chosen = calculator(name)
    values, problems = _read(chosen, arguments)
    answer = json.loads(_core.calculate(name, values))
    unread = {problem.field for problem in problems}
    problems += [
        Problem(
            rule=raw["rule"],
            field=raw["field"],
            value=raw["value"],
            hint=raw["hint"] or f"{chosen.usage}",
        )
        for raw in answer.get("problems", [])
        if raw["field"] not in unread
    ]
    if problems:
        raise InputError.all_of(problems)
    return dict(answer["results"])


def _read(
    chosen: Calculator, arguments: Mapping[str, units.Quantity]
) -> tuple[dict[str, float], list[Problem]]:
    """Arguments as SI numbers, and what could not be read; unknown names are left to the core."""
    wanted = {p.name: p for p in chosen.parameters}
    values: dict[str, float] = {}
    problems: list[Problem] = []
    for name, value in arguments.items():
        parameter = wanted.get(name)
        parse = parser(parameter.unit) if parameter else _anything
        try:
            values[name] = float(parse(value))
        except units.UnitError as error:
            problems.append(Problem(error.rule, field=name, value=error.value, hint=error.hint))
    return values, problems


def parser(unit: str) -> Callable[[units.Quantity], float]:
    """Parser of a parameter's unit: those of `meshplan.units`, and switches."""
    return _switch if unit == "switch" else units.PARSERS[unit]


def _switch(value: units.Quantity) -> float:
    if isinstance(value, bool):
        return float(value)
    text = str(value).strip().lower()
    if text in SWITCH:
        return SWITCH[text]
    if text in {"0", "1", "0.0", "1.0"}:
        return float(text)
    raise units.UnitError(value, "must be yes or no", "write yes or no")


def _anything(value: units.Quantity) -> float:
    """Stand for a value whose name is wrong anyway: the name is the problem to tell."""
    try:
        return float(units.parse_number(value))
    except units.UnitError:
        return 0.0
