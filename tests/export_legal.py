"""What a framework accepts, from ``export/flags.toml``: faults of a written value, a command, a tree."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "export" / "flags.toml").read_text("utf-8")
)


def words(script: str, start: str) -> list[str]:
    """Arguments of the command of a script, behind the words that start it."""
    found = shlex.split(script.replace("\\\n", " "), comments=True)
    first = shlex.split(start)
    at = next(i for i in range(len(found)) if found[i : i + len(first)] == first)
    return [word for word in found[at + len(first) :] if word != "$@"]


def pairs(arguments: list[str]) -> list[tuple[str, list[str]]]:
    """Flags with the words that follow each."""
    found: list[tuple[str, list[str]]] = []
    for word in arguments:
        if word.startswith("--"):
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found


def faults_of_flags(framework: str, arguments: list[str]) -> Iterator[str]:
    """Unknown flags, flags said twice, values that the framework refuses."""
    known, seen = TABLE[framework]["flags"], set()
    for flag, values in pairs(arguments):
        if flag not in known:
            yield f"{flag} is unknown"
            continue
        if flag in seen:
            yield f"{flag} is said twice"
        seen.add(flag)
        rule = known[flag]
        if rule["type"] == "switch":
            if values:
                yield f"{flag} takes no value, not {values}"
        elif rule["type"] != "list" and len(values) != 1:
            yield f"{flag} takes one value, not {values}"
        else:
            for value in values:
                yield from faults(flag, value, rule, text=True)


def faults(name: str, value: Any, rule: dict[str, Any], *, text: bool = False) -> Iterator[str]:
    """Faults of one value; ``text``: it was written as a word of a shell."""
    if "fields" in rule:
        yield from _faults_of_fields(name, json.loads(value) if text else value, rule["fields"])
        return
    kind = rule["type"]
    if kind == "variable":
        if not str(value).startswith("$"):
            yield f"{name} is a variable of the launcher, not {value}"
        return
    if text and kind in ("int", "float"):
        try:
            value = {"int": int, "float": float}[kind](value)
        except ValueError:
            yield f"{name} must be of type {kind}, not {value!r}"
            return
    types = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": object}
    if not isinstance(value, types[kind]) or (kind != "bool" and isinstance(value, bool)):
        yield f"{name} must be of type {kind}, not {value!r}"
    elif "choices" in rule and value not in rule["choices"]:
        yield f"{name} must be one of {rule['choices']}, not {value!r}"
    elif not rule.get("least", value) <= value <= rule.get("most", value):
        yield f"{name} is out of range: {value!r}"


def _faults_of_fields(name: str, tree: Any, known: dict[str, Any]) -> Iterator[str]:
    if not isinstance(tree, dict):
        yield f"{name} must be a table, not {tree!r}"
        return
    for field, value in tree.items():
        if field not in known:
            yield f"{name}.{field} is unknown"
        else:
            yield from faults(f"{name}.{field}", value, known[field])


def faults_of_options(framework: str, tree: dict[str, Any]) -> list[str]:
    """Faults of a tree of options, a configuration file."""
    return list(_faults_of_fields(framework, tree, TABLE[framework]["options"]))
