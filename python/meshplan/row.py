"""One row of a table, readable by key and by attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Row(Mapping[str, Any]):
    """Values by column.

    Examples
    --------
    >>> row = Row({"tp": 8, "step_time_s": 5.25})
    >>> row.tp, row["step_time_s"]
    (8, 5.25)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    @property
    def feasible(self) -> bool:
        """Whether it obeys every rule, fits and keeps every limit."""
        return bool(self._values["status"] == "ok")

    def to_dict(self) -> dict[str, Any]:
        """Values by column; what is unknown is None, so that the result is valid JSON."""
        return {name: None if item != item else item for name, item in self._values.items()}
