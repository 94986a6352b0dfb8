"""Field types that read what people write: quantities, switches, names, lists and ranges.

Each is a pydantic annotation. A value that cannot be read raises `refuse`, whose rule and hint
reach the user next to the place where the value was written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat
from pydantic_core import PydanticCustomError

from meshplan import units

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_COUNT = 2**40
LAST = 2**31
"""Largest value of an axis; the end of a range that is open upwards."""


def refuse(rule: str, hint: str = "") -> PydanticCustomError:
    """Error of a field: the rule that its value breaks, and what to write instead."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "hint": hint})


def _quantity(parse: Callable[[units.Quantity], float]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return parse(value)
        except units.UnitError as error:
            raise refuse(error.rule, error.hint) from None

    return read


Bytes = Annotated[FiniteFloat, Field(gt=0), BeforeValidator(_quantity(units.parse_bytes))]
BytesPerSecond = Annotated[
    FiniteFloat, Field(gt=0), BeforeValidator(_quantity(units.parse_bytes_per_s))
]
Flops = Annotated[FiniteFloat, Field(gt=0), BeforeValidator(_quantity(units.parse_flops))]
Seconds = Annotated[FiniteFloat, Field(ge=0), BeforeValidator(_quantity(units.parse_seconds))]
PerSecond = Annotated[FiniteFloat, Field(gt=0), BeforeValidator(_quantity(units.parse_per_second))]
Ratio = Annotated[FiniteFloat, Field(ge=0), BeforeValidator(_quantity(units.parse_ratio))]
Share = Annotated[Ratio, Field(le=1)]


def _count(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refuse("must be a whole number", "write 1024 or '8k'")
    return _quantity(units.parse_count)(value)


Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT), BeforeValidator(_count)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_COUNT), BeforeValidator(_count)]

_SWITCHES = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _switch(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _SWITCHES:
        return _SWITCHES[value.lower()]
    raise refuse("must be on or off", "write on or off")


Switch = Annotated[bool, BeforeValidator(_switch)]

_RANGE = re.compile(r"(\d*)\.\.(\d*)")


class Bounds(tuple[int, int]):
    """Closed interval of an axis."""

    __slots__ = ()


def read_axis(value: Any, least: int = 1) -> tuple[int, ...] | Bounds | None:
    """Values of a numeric axis: ``8``, ``"1,2,4"``, ``[1, 2, 4]``, ``"1..8"``, ``"any"``.

    Parameters
    ----------
    value
        What was written.
    least
        Smallest value that makes sense: 0 where it stands for "none".

    Examples
    --------
    >>> read_axis("1,2, 4"), read_axis(8), read_axis("2..16"), read_axis("any")
    ((1, 2, 4), (8,), (2, 16), None)
    """
    hint = "write 8, '1,2,4', '1..8' or any"
    if value is None or (isinstance(value, str) and value.strip().lower() in ("any", "all")):
        return None
    if isinstance(value, str):
        bounds = _RANGE.fullmatch(value.strip())
        if bounds:
            return _bounds(bounds[1], bounds[2], hint, least)
        value = value.split(",")
    if not isinstance(value, list | tuple):
        value = [value]
    if not 1 <= len(value) <= 1024:
        raise refuse("must hold 1 to 1024 values", hint)
    return tuple(sorted({_axis_value(item, hint, least) for item in value}))


def _axis_value(item: Any, hint: str, least: int) -> int:
    if isinstance(item, str) and item.strip().isdecimal() and len(item.strip()) <= 12:
        item = int(item)
    if isinstance(item, bool) or not isinstance(item, int):
        raise refuse("must be whole numbers", hint)
    if not least <= item <= LAST:
        raise refuse(f"must be between {least} and 2147483648", hint)
    return item


def _bounds(low: str, high: str, hint: str, least: int) -> Bounds:
    if len(low) > 12 or len(high) > 12:
        raise refuse(f"must be between {least} and 2147483648", hint)
    first, last = int(low or least), int(high or LAST)
    if not least <= first <= last <= LAST:
        raise refuse(f"must rise from at least {least}", hint)
    return Bounds((first, last))
