"""Built-in models: the structural keys of published configs, each with its source.

They pass the same reader as a file does.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.errors import InputError

FOLDER = Path(__file__).parent.parent / "presets"


@cache
def table() -> dict[str, dict[str, Any]]:
    """Read every ``presets/models*.toml``: name → ``{title, source, config}``."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(FOLDER.glob("models*.toml")):
        with file.open("rb") as stream:
            found.update(tomllib.load(stream))
    return found


def resolve(name: str) -> str | None:
    """Name of the preset that is meant, whatever the case and the separators, if there is one."""
    return _squeezed().get(_squeeze(name))


@cache
def _squeezed() -> dict[str, str]:
    return {_squeeze(name): name for name in table()}


def _squeeze(name: str) -> str:
    return re.sub(r"[-_. ]", "", name.lower())


def published(name: str) -> str | None:
    """Name of the preset whose structure a published name has, such as ``org/Name-Instruct-FP8``.

    >>> published("meta-llama/Llama-3.1-8B-Instruct")
    'llama-3.1-8b'
    >>> published("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")
    'qwen3-30b-a3b'
    """
    short = name.rstrip("/").rsplit("/", 1)[-1][:120].lower().removeprefix("meta-")
    while True:
        found = resolve(short)
        shorter = _TAIL.sub("", short)
        if found is not None or shorter == short:
            return found
        short = shorter


_TAIL = re.compile(
    r"[-_.](instruct|chat|base|hf|it|pt|fp8|bf16|nvfp4|mxfp4|int[48]|awq|gptq|dynamic|thinking"
    r"|w\d+a\d+|\d{4}|v\d[.\d]*)$"
)
"""Ends of published names that say nothing of the structure."""


def config(name: str) -> dict[str, Any]:
    """Return the config of a preset; a config made from another states only what differs."""
    entry = table()[name]
    base = config(entry["like"]) if "like" in entry else {}
    return {**base, **entry.get("config", {})}


def nearest(name: str) -> str:
    """Ask whether a preset with a name like this one is meant, if there is one."""
    name = re.sub(r"(-(instruct|chat|base|hf|it|fp8|v\d[.\d]*))+$", "", name.lower()[:60])
    near = difflib.get_close_matches(name, table(), n=3, cutoff=0.6)
    if not near and len(name) > 2:
        near = [preset for preset in table() if name in preset][:3]
    return f"did you mean {', '.join(near)}? " if near else ""


def unknown(name: str) -> InputError:
    """Make the error for a name that is neither a preset nor a path."""
    return InputError(
        "is neither a preset nor a path",
        field="model",
        value=f'"{name[:60]}"',
        hint=nearest(name) + "`planner models` lists the presets",
    )
