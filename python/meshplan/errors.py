"""Exceptions of the planner, and the exit statuses that they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ExitStatus(IntEnum):
    """Exit status of every ``planner`` command."""

    FOUND = 0
    """The question was answered, and the answer is printed."""
    NOTHING_FEASIBLE = 1
    """The question was answered: no layout satisfies every constraint."""
    ERROR = 2
    """The question makes no sense, an input is wrong, or the program failed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an input.

    Attributes
    ----------
    rule
        What must hold, as a sentence without a full stop.
    field
        Dotted name of the field, if one is to blame.
    value
        The value as given.
    hint
        What to do about it.
    where
        Place in a file, such as ``plan.toml:12:7``.
    """

    rule: str
    field: str = ""
    value: str = ""
    hint: str = ""
    where: str = ""

    def __str__(self) -> str:
        subject = f"{self.field} = {self.value}" if self.value else self.field
        return ": ".join(part for part in (self.where, subject, self.rule) if part)


class PlannerError(Exception):
    """Base class of every exception that the planner raises on purpose."""

    status = ExitStatus.ERROR

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What went wrong, one entry per message that a user should read."""
        return (Problem(str(self), hint=self.hint),)


class InputError(PlannerError):
    """An input makes no sense.

    Parameters
    ----------
    rule
        The rule that is broken.
    field, value, hint, where
        As in :class:`Problem`.

    Examples
    --------
    >>> str(InputError("must be at least 1", field="gpus", value="0"))
    'gpus = 0: must be at least 1'
    """

    def __init__(
        self, rule: str, *, field: str = "", value: str = "", hint: str = "", where: str = ""
    ) -> None:
        self._problems: tuple[Problem, ...] = (Problem(rule, field, value, hint, where),)
        super().__init__(str(self._problems[0]), hint=hint)

    @classmethod
    def all_of(cls, problems: Sequence[Problem]) -> InputError:
        """Make one exception of every problem found in one input."""
        first = problems[0]
        error = cls(
            first.rule, field=first.field, value=first.value, hint=first.hint, where=first.where
        )
        error._problems = tuple(problems)
        error.args = ("\n".join(str(problem) for problem in problems),)
        return error

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem of the input, in the order of the input."""
        return self._problems


def require_finite(**numbers: float | Sequence[float] | None) -> None:
    """Refuse numbers that are infinite or not numbers, every one of them at once.

    Raises
    ------
    InputError
        With the name of each.
    """
    problems = []
    for name, value in numbers.items():
        values = [value] if isinstance(value, int | float) else value or ()
        problems += [
            Problem("must be a finite number", name, str(v)) for v in values if not isfinite(v)
        ]
    if problems:
        raise InputError.all_of(problems)


class Infeasible(PlannerError):
    """The question makes sense, and nothing satisfies every constraint."""

    status = ExitStatus.NOTHING_FEASIBLE
