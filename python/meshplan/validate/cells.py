"""Cells of a recorded row: text becomes numbers and switches, and problems are collected."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshplan.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 2**40
"""Largest whole number that a cell may hold."""


class Cells:
    """A row on its way to a meaning, with the problems met so far.

    Parameters
    ----------
    row
        Column → text; blank means unknown.
    where
        Place of the row, such as ``runs.csv:7``.
    """

    def __init__(self, row: Mapping[str, str], where: str) -> None:
        self.row = row
        self.where = where
        self.problems: list[Problem] = []

    def problem(self, column: str, rule: str, hint: str = "") -> None:
        """Note that a column breaks a rule."""
        value = self.row.get(column, "")[:60]
        self.problems.append(Problem(rule, column, value, hint, self.where))

    def text(self, column: str) -> str:
        """Text of a column; empty where it is missing."""
        return self.row.get(column) or ""

    def whole(self, column: str, blank: int = 0, least: int = 1) -> int:
        """Whole number of a column, or `blank` where it is empty."""
        text = self.text(column)
        if not text:
            return blank
        try:
            value = int(float(text)) if float(text).is_integer() else -1
        except (ValueError, OverflowError):
            value = -1
        if value < least or value > LARGEST:
            kind = "positive" if least else "non-negative"
            self.problem(column, f"must be a {kind} whole number")
            return max(blank, least)
        return value

    def number(self, column: str, unit: str) -> float | None:
        """Positive number of a column, or nothing where it is empty."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value > 0:
            return value
        self.problem(column, f"must be a positive number of {unit}")
        return None

    def flag(self, column: str) -> bool | None:
        """Switch of a column; nothing where it is blank or unknown."""
        return {"true": True, "1": True, "false": False, "0": False}.get(self.text(column).lower())
