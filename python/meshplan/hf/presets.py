"""Built-in models: the structural keys of published configs, each with its source.

They pass the same reader as a file does.
"""

from __future__ import annotations

import difflib
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


def known(name: str) -> bool:
    """Say whether a preset has this name, whatever the case of its letters."""
    return name.lower() in table()


def config(name: str) -> dict[str, Any]:
    """Return the config of a preset; a config made from another states only what differs."""
    entry = table()[name.lower()]
    base = config(entry["like"]) if "like" in entry else {}
    return {**base, **entry.get("config", {})}


def unknown(name: str) -> InputError:
    """Make the error for a name that is neither a preset nor a path."""
    near = difflib.get_close_matches(name.lower(), table(), n=3, cutoff=0.5)
    if not near:
        near = [preset for preset in table() if name.lower() in preset][:3]
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return InputError(
        "is neither a preset nor a path",
        field="model",
        value=f'"{name[:60]}"',
        hint=hint + "`planner models` lists the presets",
    )
