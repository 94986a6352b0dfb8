"""A view of a ``config.json`` that collects every problem and knows which fields were read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from meshplan.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_WIDTH: Final = 2**20
"""Largest width (hidden, intermediate, head) that makes sense."""
MAX_LAYERS: Final = 2048
"""Most decoder layers that make sense."""
MAX_HEADS: Final = 2**14
"""Most attention heads that make sense."""
MAX_EXPERTS: Final = 2**14
"""Most routed experts that make sense."""
MAX_VOCAB: Final = 2**26
"""Largest vocabulary that makes sense."""
MAX_POSITIONS: Final = 2**31
"""Longest context that makes sense."""


class _Missing:
    """Marks a field that has no default."""


MISSING: Final = _Missing()


def shown(value: object) -> str:
    """Print a value from a config as JSON would, shortened to fit a message."""
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, int) and abs(value) >= 10**40:
        text = f"an integer of {value.bit_length()} bits"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """Typed access to the fields of one JSON object.

    A field that is missing or wrong adds a :class:`~meshplan.errors.Problem` and yields a harmless
    value, so that one pass over a config finds everything that is wrong with it.

    Parameters
    ----------
    data
        The object.
    prefix
        Dotted name of the object inside the file, with a trailing dot.
    parent
        The view that this one was taken from; problems and assumptions are shared with it.
    """

    def __init__(
        self, data: Mapping[str, Any], prefix: str = "", parent: Fields | None = None
    ) -> None:
        self.data = data
        self.prefix = prefix
        self.problems: list[Problem] = parent.problems if parent else []
        self.assumptions: list[str] = parent.assumptions if parent else []
        self.read: set[str] = set()
        self.children: list[Fields] = []
        self._bad: set[str] = set()
        self._defaults: dict[str, Any] = {}

    # -- what is there -----------------------------------------------------------------

    def has(self, *names: str) -> bool:
        """Say whether one of the fields is there and not null."""
        return any(self.data.get(name) is not None for name in names)

    def default(self, name: str, value: Any) -> None:
        """Let ``name`` stand for ``value`` where the config does not give it."""
        self._defaults[name] = value

    def first(self, *names: str) -> str:
        """Name of the first field that is there, or the first name; the others count as read."""
        self.read.update(names)
        return next((name for name in names if self.has(name)), names[0])

    def ignore(self, *names: str) -> None:
        """Count fields as understood."""
        self.read.update(names)

    def get(self, *names: str) -> tuple[str, Any]:
        """Find the first field that is there, and mark all spellings as read.

        Two spellings of one thing with different values are a problem.
        """
        self.read.update(names)
        found = [(name, self.data[name]) for name in names if self.data.get(name) is not None]
        if not found:
            for name in names:
                if name in self._defaults:
                    return name, self._defaults[name]
            return names[0], None
        name, value = found[0]
        for other, second in found[1:]:
            if second != value:
                self.problem(
                    other,
                    f"must equal {name} = {shown(value)}, which means the same",
                    hint=f"remove one of {name} and {other}",
                )
        return name, value

    # -- problems ----------------------------------------------------------------------

    def problem(self, name: str, rule: str, *, hint: str = "", value: object = MISSING) -> None:
        """Record that a field breaks a rule."""
        given = self.data.get(name) if isinstance(value, _Missing) else value
        text = "" if given is None and name not in self.data else shown(given)
        self._bad.add(name)
        problem = Problem(rule, self.prefix + name, text, hint)
        if problem not in self.problems:
            self.problems.append(problem)

    def rule(self, holds: bool, name: str, rule: str, *, hint: str = "", of: str = "") -> None:
        """Record a problem unless ``holds``; say nothing when a field involved is wrong already."""
        if not holds and not ({name, of} & self._bad):
            self.problem(name, rule, hint=hint)

    def assume(self, text: str) -> None:
        """Record an assumption that the reader of the result should know."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    # -- typed fields ------------------------------------------------------------------

    def whole(
        self, *names: str, low: int = 1, high: int = MAX_WIDTH, default: int | _Missing = MISSING
    ) -> int:
        """Read a whole number from the first of the spellings that is there."""
        name, value = self.get(*names)
        fallback = low if isinstance(default, _Missing) else default
        if value is None:
            if isinstance(default, _Missing):
                self.problem(
                    name,
                    "must be given" if len(names) == 1 else f"one of {', '.join(names)} is due",
                    hint=f"add {name} to the config",
                )
            return fallback
        return self._whole(name, value, low, high, fallback)

    def _whole(self, name: str, value: object, low: int, high: int, fallback: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            if isinstance(value, float) and not math.isfinite(value):
                self.problem(name, "must be a finite whole number", value=value)
            else:
                self.problem(
                    name,
                    "must be a whole number",
                    value=value,
                    hint=f"write {name} as an integer without quotes",
                )
            return fallback
        if not low <= value <= high:
            self.problem(name, f"must lie between {low} and {high}", value=value)
            return fallback
        return value

    def real(self, name: str, *, low: float, high: float, default: float) -> float:
        """Read a number."""
        _, value = self.get(name)
        if value is None:
            return default
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number:
            self.problem(name, "must be a number")
        elif not low <= value <= high:  # false for NaN too
            self.problem(name, f"must lie between {low:g} and {high:g}")
        else:
            return float(value)
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """Read a truth value."""
        name, value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(name, "must be true or false", value=value)
            return default
        return value

    def text(self, *names: str, default: str = "") -> str:
        """Read a string."""
        name, value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            self.problem(name, "must be a string", value=value)
            return default
        return value

    def table(self, *names: str, whole: bool = True) -> Fields | None:
        """Read an object, or nothing where it is missing or null.

        ``whole`` says that each of its fields must be understood.
        """
        name, value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.problem(name, "must be an object", value=value)
            return None
        child = Fields(value, f"{self.prefix}{name}.", self)
        if whole:
            self.children.append(child)
        return child

    def items(self, *names: str, count: int | None = None) -> list[Any] | None:
        """Read an array, of ``count`` entries if that is given."""
        name, value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, list):
            self.problem(name, "must be an array", value=value)
            return None
        if count is not None and len(value) < count:
            self.problem(name, f"must have an entry for each of the {count} layers")
            return None
        if len(value) > MAX_LAYERS * 2:
            self.problem(name, f"must have at most {MAX_LAYERS * 2} entries")
            return None
        return value if count is None else value[:count]

    def names(
        self, *names: str, count: int | None = None, known: Iterable[str] = ()
    ) -> list[str] | None:
        """Read an array of strings, each one of ``known`` if that is given."""
        value = self.items(*names, count=count)
        if value is None:
            return None
        name, _ = self.get(*names)
        known = list(known)
        for entry in value:
            if not isinstance(entry, str) or (known and entry not in known):
                self.problem(name, f"has the entry {shown(entry)}, not one of {', '.join(known)}")
                return None
        return value

    def wholes(
        self, *names: str, count: int | None = None, low: int = 0, high: int = MAX_WIDTH
    ) -> list[int] | None:
        """Read an array of whole numbers."""
        value = self.items(*names, count=count)
        if value is None:
            return None
        name, _ = self.get(*names)
        for entry in value:
            whole = isinstance(entry, int) and not isinstance(entry, bool)
            if not whole or not low <= entry <= high:
                self.problem(
                    name, f"has the entry {shown(entry)}, not a whole number from {low} to {high}"
                )
                return None
        return value

    def unread(self) -> list[str]:
        """Fields that nobody has looked at, in the order of the file."""
        return [name for name in self.data if name not in self.read]
