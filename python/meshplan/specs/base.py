"""The base of every spec, and the one place that turns pydantic's errors into ours."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from meshplan.specs.toml import Path

MAX_SHOWN = 60
"""Longest value that a message repeats."""


class Spec(BaseModel):
    """A frozen description of an input: unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=4096, validate_default=True
    )


SpecType = TypeVar("SpecType", bound=Spec)


def show(value: Any) -> str:
    """Value as a message repeats it: TOML spelling, cut when long.

    >>> show("400 Gb"), show(True), show("x" * 100)[-4:]
    ('"400 Gb"', 'true', 'xxx…')
    """
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = '"' + value[: MAX_SHOWN + 1].replace("\n", "\\n") + '"'
        text = text if len(value) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    elif isinstance(value, Mapping):
        text = "a table"
    elif isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        text = "a huge number"
    else:
        text = str(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def nearest(name: str, known: list[str], *, count: int = 3) -> list[str]:
    """Known names that look like the given one.

    >>> nearest("lama-3.1-70b", ["llama-3.1-70b", "h100"])
    ['llama-3.1-70b']
    """
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name[:200].lower(), list(folded), n=count, cutoff=0.5)
    return [folded[c] for c in close]


def suggest(name: str, known: list[str]) -> str:
    """Hint that names the nearest of the known names, or all of them when few."""
    close = nearest(name, known)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(known[:40]) + (", …" if len(known) > 40 else "")


def build(
    kind: type[SpecType], data: Mapping[str, Any], origins: Mapping[Path, str] | None = None
) -> SpecType:
    """Validate raw values into a spec.

    Parameters
    ----------
    kind
        Class of the spec.
    data
        Raw values.
    origins
        Where values came from: ``plan.toml:12:7``, or a flag such as ``--tp``.

    Raises
    ------
    InputError
        With every problem of the input.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = [_problem(kind, item, origins or {}) for item in error.errors()]
        raise InputError.all_of(problems) from None


def problem_at(
    path: Path, value: Any, rule: str, hint: str = "", origins: Mapping[Path, str] | None = None
) -> Problem:
    """Problem of the value at a path, under the name by which the user wrote it."""
    field = ".".join(str(part) for part in path)
    where = _origin(path, origins or {})
    shown = "" if value is _ABSENT else show(value)
    if where.startswith("--"):
        return Problem(field=where, value=shown, rule=rule, hint=hint)
    return Problem(field=field, value=shown, rule=rule, hint=hint, where=where)


_ABSENT = object()


def _origin(path: Path, origins: Mapping[Path, str]) -> str:
    for length in range(len(path), 0, -1):
        where = origins.get(path[:length])
        if where:
            return where
    return origins.get((), "")


def _problem(kind: type[Spec], error: Any, origins: Mapping[Path, str]) -> Problem:
    path: Path = tuple(error["loc"])
    value = _ABSENT if error["type"] == "missing" else error["input"]
    rule, hint = _words(kind, error)
    return problem_at(path, value, rule, hint, origins)


def _words(kind: type[Spec], error: Any) -> tuple[str, str]:
    """Rule and hint of a pydantic error."""
    name, context = error["type"], error.get("ctx", {})
    if name == "rule":
        return context["rule"], context["hint"]
    if name == "missing":
        return "is required", _MISSING.get(str(error["loc"][-1]), "add it")
    if name == "extra_forbidden":
        owner = _spec_at(kind, error["loc"][:-1])
        known = sorted(owner.model_fields) if owner else []
        return "is not a known key", suggest(str(error["loc"][-1]), known)
    if name == "literal_error":
        known = [part.strip(" '") for part in context["expected"].replace(" or ", ", ").split(",")]
        given = error["input"] if isinstance(error["input"], str) else ""
        close = nearest(given, known, count=1)
        hint = f"did you mean {close[0]}?" if close else ""
        return "must be one of " + ", ".join(known), hint
    for bound, sign in _BOUNDS.items():
        if name == bound:
            return f"must be {sign} {_number(context[bound_key(bound)])}", ""
    return _TYPES.get(name, error["msg"][:1].lower() + error["msg"][1:]), ""


def _number(bound: float) -> str:
    """Bound in full where it is whole: 16777216, not 1.67772e+07."""
    return str(int(bound)) if float(bound).is_integer() and bound < 1e15 else f"{bound:g}"


_MISSING = dict.fromkeys(
    ("gemm", "training", "scale_up_fabric", "scale_out_fabric"),
    "add it, or borrow it: preset = a device or cluster that is like it",
) | {"gpus": "say how many GPUs: --gpus 1024, or gpus = 1024 in the plan"}
"""Hints for keys that few people can write themselves."""

_BOUNDS = {
    "greater_than": "greater than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}

_TYPES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be finite",
    "string_type": "must be a text",
    "string_too_long": "is too long",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
}


def bound_key(error_type: str) -> str:
    """Key under which pydantic's context holds the bound.

    >>> bound_key("less_than_equal")
    'le'
    """
    return {
        "greater_than": "gt",
        "greater_than_equal": "ge",
        "less_than": "lt",
        "less_than_equal": "le",
    }[error_type]


def _spec_at(kind: type[Spec], path: Path) -> type[Spec] | None:
    """Spec class that holds the value at a path."""
    current: Any = kind
    for part in path:
        if isinstance(current, type) and issubclass(current, Spec):
            field = current.model_fields.get(str(part))
            current = _inner(field.annotation) if field else None
    return current if isinstance(current, type) and issubclass(current, Spec) else None


def _inner(annotation: Any) -> Any:
    """Spec class inside Optional, tuple, list or mapping annotations, if there is one."""
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict):
        for item in get_args(annotation):
            found = _inner(item)
            if isinstance(found, type) and issubclass(found, Spec):
                return found
        return None
    return annotation
