"""Quantities as people write them: the one parser and the one formatter.

Inside, everything is SI: bytes, bytes per second, seconds, FLOP per second, plain counts. At the
edge people write ``80 GiB``, ``400 Gb/s`` or ``2.5 ms``. Case carries meaning here, so it is
never guessed: ``GiB`` is 2³⁰ bytes, ``GB`` is 10⁹ bytes, ``Gb`` is 10⁹ bits. Bits are understood
only in a rate, where ``Gb/s`` (or ``Gbps``) is divided by eight; where bytes are due, ``Gb`` is an
error.

A parser raises `UnitError`, which knows the value, the rule and a hint, but not the field: the
caller adds that.

>>> parse_bytes("80 GiB")
85899345920.0
>>> parse_bytes_per_s("400 Gb/s")
50000000000.0
>>> format_bytes(85899345920)
'80 GiB'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction

Quantity = str | int | float

_DECIMAL: Mapping[str, int] = {
    "": 0,
    "k": 3,
    "K": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY: Mapping[str, int] = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LIMIT = 10**30
_MAX_LENGTH = 64
_TEXT = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:_\d+)*)?(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*(?P<unit>\S*)",
    re.ASCII,
)


class UnitError(ValueError):
    """A quantity that cannot be read, with the rule that it breaks and a hint.

    Attributes
    ----------
    value
        What was given.
    rule
        What is expected.
    hint
        How to write it.
    """

    def __init__(self, value: object, rule: str, hint: str) -> None:
        shown = repr(value)
        self.value = shown if len(shown) <= _MAX_LENGTH else shown[: _MAX_LENGTH - 1] + "…"
        self.rule = rule
        self.hint = hint
        super().__init__(f"{self.value}: {rule}; {hint}")


def _decimal_units(stem: str, base: Fraction = Fraction(1)) -> dict[str, Fraction]:
    return {prefix + stem: base * 10**power for prefix, power in _DECIMAL.items()}


def _binary_units(stem: str) -> dict[str, Fraction]:
    return {prefix + stem: Fraction(2**power) for prefix, power in _BINARY.items()}


_BYTES = {**_decimal_units("B"), **_binary_units("B")}
_RATES = {
    **{f"{unit}/s": factor for unit, factor in _BYTES.items()},
    **_decimal_units("b/s", Fraction(1, 8)),
    **_decimal_units("bit/s", Fraction(1, 8)),
    **_decimal_units("bps", Fraction(1, 8)),
}
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "\u03bcs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_FLOP_RATES = {
    **_decimal_units("FLOP/s"),
    **_decimal_units("FLOPS"),
    **_decimal_units("FLOPs/s"),
}
_FREQUENCIES = {
    f"{what}/{per}": Fraction(1, seconds)
    for what in ("", "req", "requests")
    for per, seconds in {"s": 1, "min": 60, "h": 3600, "d": 86400}.items()
}
_COUNTS = {**_decimal_units(""), "B": Fraction(10**9)}
_RATIOS = {"": Fraction(1), "%": Fraction(1, 100)}


def _number(text: str, original: object, hint: str) -> Fraction:
    try:
        value = Decimal(text.replace("_", ""))
    except ArithmeticError:
        raise UnitError(original, "must be a number with a unit", hint) from None
    if value != 0 and abs(value.adjusted()) > 30:
        raise UnitError(original, "is out of every sensible range", hint)
    return Fraction(value)


def _split(value: Quantity, hint: str) -> tuple[Fraction, str]:
    """Read a value as an exact number and a unit (empty for bare numbers)."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnitError(value, "must be a number or a text such as " + hint, "write " + hint)
    if isinstance(value, int) and abs(value) > _LIMIT:
        raise UnitError("a huge integer", "is out of every sensible range", "write " + hint)
    text = value.strip() if isinstance(value, str) else repr(value)
    match = _TEXT.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None or not match["number"]:
        raise UnitError(value, "must be a number with a unit", "write " + hint)
    return _number(match["number"], value, "write " + hint), match["unit"]


def _parse(value: Quantity, units: Mapping[str, Fraction], bare: str, hint: str) -> Fraction:
    number, unit = _split(value, hint)
    factor = units.get(unit or bare)
    if factor is None:
        raise UnitError(value, *_explain(unit, units, hint))
    result = number * factor
    if result < 0:
        raise UnitError(value, "must not be negative", "write " + hint)
    if result > _LIMIT:
        raise UnitError(value, "is out of every sensible range", "write " + hint)
    return result


def _explain(unit: str, units: Mapping[str, Fraction], hint: str) -> tuple[str, str]:
    """Say why a unit is not one of those expected, and what was probably meant."""
    if units is _BYTES and re.fullmatch(r"[kKMGTPE]i?b(it|its)?", unit):
        good = unit[0] + ("i" if "i" in unit[1:2] else "") + "B"
        return f"is in bits ({unit}) where bytes are due", f"write {good} for bytes"
    folded = [u for u in units if u and u.casefold() == unit.casefold()]
    if folded:
        return f"has a unit with the wrong case ({unit})", "write " + " or ".join(folded)
    return f"has a unit that does not fit here ({unit})", "write " + hint


def parse_bytes(value: Quantity) -> float:
    """Bytes from ``80 GiB``, ``80 GB``, ``512 B`` or a bare number of bytes.

    Raises
    ------
    UnitError
        For bits (``Gb``), wrong case, other units, negative or non-finite values.
    """
    return float(_parse(value, _BYTES, "B", "'80 GiB' or '80 GB'"))


def parse_bytes_per_s(value: Quantity) -> float:
    """Bytes per second from ``450 GB/s``, ``400 Gb/s`` (bits: divided by 8) or a bare number.

    >>> parse_bytes_per_s("450 GB/s"), parse_bytes_per_s("450 Gbps")
    (450000000000.0, 56250000000.0)
    """
    return float(_parse(value, _RATES, "B/s", "'450 GB/s' (bytes) or '400 Gb/s' (bits)"))


def parse_seconds(value: Quantity) -> float:
    """Seconds from ``30 us``, ``2.5 ms``, ``3 h`` or a bare number of seconds."""
    return float(_parse(value, _SECONDS, "s", "'2.5 ms' or '30 us'"))


def parse_per_second(value: Quantity) -> float:
    """Requests per second from ``200/s``, ``12000 req/min`` or a bare number.

    >>> parse_per_second("200/s"), parse_per_second("12000 req/min")
    (200.0, 200.0)
    """
    return float(_parse(value, _FREQUENCIES, "/s", "'200/s' or '12000/min'"))


def parse_flops(value: Quantity) -> float:
    """FLOP per second from ``989 TFLOP/s`` or a bare number."""
    return float(_parse(value, _FLOP_RATES, "FLOP/s", "'989 TFLOP/s'"))


def parse_count(value: Quantity) -> int:
    """A whole count from ``1024``, ``1_024``, ``8k`` (8,000), ``70B`` (70·10⁹) or ``15T``."""
    hint = "'1024' or '8k' (8,000)"
    result = _parse(value, _COUNTS, "", hint)
    if result.denominator != 1:
        raise UnitError(value, "must be a whole number", "write " + hint)
    return int(result)


def parse_number(value: Quantity) -> float:
    """A non-negative real number, with a decimal prefix if wanted: ``0.5``, ``70B``."""
    return float(_parse(value, _COUNTS, "", "'0.5' or '70B' (billions)"))


def parse_ratio(value: Quantity) -> float:
    """A non-negative ratio from ``0.4`` or ``40 %``."""
    return float(_parse(value, _RATIOS, "", "'0.4' or '40%'"))


PARSERS: Mapping[str, Callable[[Quantity], float]] = {
    "bytes": parse_bytes,
    "bytes/s": parse_bytes_per_s,
    "s": parse_seconds,
    "flop/s": parse_flops,
    "count": parse_count,
    "number": parse_number,
    "1": parse_ratio,
}
"""Parser of each unit that a calculator or a spec may declare."""


def _scaled(value: float, steps: list[tuple[str, float]], digits: int) -> str:
    """Print a value in the largest unit of which it fills at least one, after rounding."""
    if value == 0 or value != value or value in (float("inf"), float("-inf")):
        return f"{value:g} {steps[0][0]}".rstrip()
    best = steps[0]
    for step in steps:
        if abs(float(f"{value / step[1]:.{digits}g}")) >= 1:
            best = step
    text = f"{value / best[1]:.{digits}g}"
    return f"{text} {best[0]}".rstrip()


def _steps(units: Mapping[str, Fraction], names: list[str]) -> list[tuple[str, float]]:
    return [(name, float(units[name])) for name in names]


def format_bytes(value: float, *, digits: int = 4, binary: bool = True) -> str:
    """Bytes in binary units (``GiB``), or in decimal ones (``GB``) on request.

    >>> format_bytes(1.5e9), format_bytes(1.5e9, binary=False)
    ('1.397 GiB', '1.5 GB')
    """
    names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    if not binary:
        names = ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    return _scaled(value, _steps(_BYTES, names), digits)


def format_bytes_per_s(value: float, *, digits: int = 4, bits: bool = False) -> str:
    """Bytes per second in decimal units, or bits per second on request.

    >>> format_bytes_per_s(50e9), format_bytes_per_s(50e9, bits=True)
    ('50 GB/s', '400 Gb/s')
    """
    stem = "b/s" if bits else "B/s"
    names = [prefix + stem for prefix in ["", "k", "M", "G", "T", "P", "E"]]
    return _scaled(value, _steps(_RATES, names), digits)


def format_seconds(value: float, *, digits: int = 4) -> str:
    """Seconds in the unit that reads best.

    >>> format_seconds(0.0025), format_seconds(12.5), format_seconds(7200)
    ('2.5 ms', '12.5 s', '2 h')
    """
    return _scaled(value, _steps(_SECONDS, ["ns", "us", "ms", "s", "min", "h", "d"]), digits)


def format_flops(value: float, *, digits: int = 4) -> str:
    """FLOP per second in decimal units."""
    names = [prefix + "FLOP/s" for prefix in ["", "k", "M", "G", "T", "P", "E"]]
    return _scaled(value, _steps(_FLOP_RATES, names), digits)


def format_count(value: float, *, digits: int = 4) -> str:
    """Counts: whole below a million, then with a prefix.

    >>> format_count(1024), format_count(70.55e9)
    ('1,024', '70.55 B')
    """
    if abs(value) < 1e6 and value == int(value):
        return f"{int(value):,}"
    return _scaled(value, [("", 1.0), ("M", 1e6), ("B", 1e9), ("T", 1e12)], digits)


def format_number(value: float, *, digits: int = 4) -> str:
    """A number without unit."""
    return f"{value:.{digits}g}"


FORMATTERS: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "bytes/s": format_bytes_per_s,
    "s": format_seconds,
    "flop/s": format_flops,
    "count": format_count,
    "number": format_number,
    "1": format_number,
}
"""Formatter of each unit, the counterpart of `PARSERS`."""
