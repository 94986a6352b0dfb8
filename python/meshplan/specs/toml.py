"""TOML with positions: which line and column each value came from.

The values come from the standard library's parser. `places` then walks the text once more and
notes where each value starts, so that a complaint about ``cluster.nic`` can say ``plan.toml:12:7``.
It relies on the text being valid TOML, which the parser has just checked.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

Path = tuple[str | int, ...]
Place = tuple[int, int]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}\n#]+")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_WHERE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


class TomlSyntaxError(ValueError):
    """The text is not TOML; carries the place, if the parser named one."""

    def __init__(self, message: str, place: Place | None) -> None:
        super().__init__(message)
        self.place = place


def parse(text: str) -> tuple[dict[str, Any], dict[Path, Place]]:
    """Values of a TOML text, and the line and column (from 1) where each of them starts.

    Raises
    ------
    TomlSyntaxError
        When the text is not TOML.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        where = _WHERE.search(message)
        place = (int(where[1]), int(where[2])) if where and where[1] else None
        raise TomlSyntaxError(_WHERE.sub("", message), place) from None
    except RecursionError:
        raise TomlSyntaxError("is nested too deeply", None) from None
    return data, _Walk(text.replace("\r\n", "\n")).run()


class _Walk:
    """One pass over valid TOML that notes where values start."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.line_start = 0
        self.places: dict[Path, Place] = {}
        self.lengths: dict[Path, int] = {}

    def run(self) -> dict[Path, Place]:
        table: Path = ()
        self._blank()
        while self.at < len(self.text):
            if self.text.startswith("[", self.at):
                table = self._header()
            else:
                self._pair(table)
            self._blank()
        return self.places

    def _move(self, to: int) -> None:
        passed = self.text.count("\n", self.at, to)
        if passed:
            self.line += passed
            self.line_start = self.text.rfind("\n", self.at, to) + 1
        self.at = to

    def _blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        if match:
            self._move(match.end())

    def _note(self, path: Path) -> None:
        self.places[path] = (self.line, self.at - self.line_start + 1)

    def _key(self) -> tuple[str, ...]:
        """Read a dotted key."""
        parts: list[str] = []
        while True:
            self._blank()
            bare = _BARE_KEY.match(self.text, self.at)
            if bare:
                parts.append(bare[0])
                self._move(bare.end())
            else:
                start = self.at
                self._string()
                parts.append(next(iter(tomllib.loads(self.text[start : self.at] + "=0"))))
            self._blank()
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self._move(self.at + 1)

    def _resolve(self, path: Path, keys: tuple[str, ...]) -> Path:
        """Follow keys, entering the last element of each array of tables on the way."""
        for key in keys:
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
            path = (*path, key)
            self.places.setdefault(path, (self.line, self.at - self.line_start + 1))
        return path

    def _header(self) -> Path:
        brackets = 2 if self.text.startswith("[[", self.at) else 1
        place = (self.line, self.at - self.line_start + 1)
        self._move(self.at + brackets)
        path = self._resolve((), self._key())
        self._move(self.at + brackets)
        self.places.setdefault(path, place)
        if brackets == 2:
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            path = (*path, index)
            self.places[path] = place
        return path

    def _pair(self, table: Path) -> None:
        path = self._resolve(table, self._key())
        self._move(self.at + 1)
        self._blank()
        self._value(path)

    def _value(self, path: Path) -> None:
        self._note(path)
        first = self.text[self.at]
        if first == "[":
            self._items(path, "]", pairs=False)
        elif first == "{":
            self._items(path, "}", pairs=True)
        elif first in "\"'":
            self._string()
        else:
            bare = _BARE_VALUE.match(self.text, self.at)
            self._move(bare.end() if bare else self.at + 1)

    def _items(self, path: Path, close: str, *, pairs: bool) -> None:
        self._move(self.at + 1)
        index = 0
        self._blank()
        while not self.text.startswith(close, self.at):
            if pairs:
                self._pair(path)
            else:
                self._value((*path, index))
            index += 1
            self._blank()
            if self.text.startswith(",", self.at):
                self._move(self.at + 1)
                self._blank()
        self._move(self.at + 1)

    def _string(self) -> None:
        for pattern in _STRINGS:
            match = pattern.match(self.text, self.at)
            if match:
                self._move(match.end())
                return
        raise TomlSyntaxError("holds a string that cannot be followed", (self.line, 1))
