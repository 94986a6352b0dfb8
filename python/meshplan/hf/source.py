"""From a path, a folder, a preset name or a mapping to a JSON object, with every bound checked."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from meshplan.errors import InputError
from meshplan.hf import presets

MAX_BYTES: Final = 50_000_000
"""Largest ``config.json`` that is read; real ones have a few kilobytes."""
MAX_DEPTH: Final = 64
"""Deepest nesting of a ``config.json`` that is read."""
MAX_BRACKETS: Final = 2_000_000
"""Most brackets in a ``config.json`` that is read."""
CONFIG: Final = "config.json"
STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string, or what is left of one; never tried twice at one place."""
OTHERS: Final = re.compile(r"[^][{}]+")
"""What is no bracket."""
STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
"""Bracket → change of depth."""
CHUNK: Final = 2**16
"""Brackets looked at together."""


def load(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Find a config and return its display name and its top-level object."""
    if isinstance(source, Mapping):
        name = source.get("name", source.get("_name_or_path"))
        return (name if isinstance(name, str) and name else "model"), source
    preset = presets.resolve(source) if isinstance(source, str) else None
    if preset is not None:
        return preset, presets.config(preset)
    text = os.fspath(source)
    if "\0" in text or not text.strip():
        raise InputError("must be a path or a preset name", field="model", value=repr(text[:60]))
    path = Path(text)
    if isinstance(source, str) and not _exists(path) and not _looks_like_path(text):
        raise presets.unknown(source)
    return _name(path), parse(_read(path), str(_file(path)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _looks_like_path(text: str) -> bool:
    return text.endswith(".json") or os.sep in text or text.startswith(("~", "."))


def _file(path: Path) -> Path:
    return path / CONFIG if path.is_dir() else path


def _name(path: Path) -> str:
    file = _file(path)
    if file.name == CONFIG:
        return file.resolve().parent.name or "model"
    return file.stem or "model"


def _shown(path: Path) -> str:
    try:
        return str(_file(path))
    except (OSError, ValueError):
        return str(path)[:60]


def _read(path: Path) -> bytes:
    """Read a regular file of bounded size."""
    try:
        file = _file(path.expanduser())
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                "must be a config.json or a folder that holds one", field="model", value=str(path)
            )
        if status.st_size > MAX_BYTES:
            raise InputError(
                f"must be at most {MAX_BYTES // 10**6} MB, is {status.st_size / 1e6:.1f} MB",
                field="model",
                value=str(file),
                hint="a config.json has a few kilobytes; is this a weights file?",
            )
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"cannot be read: {reason.lower()}",
            field="model",
            value=_shown(path),
            hint=f"{presets.nearest(path.name.removesuffix('.json'))}give a config.json, "
            "a folder that holds one, or a name that `planner models` lists",
        ) from None


def parse(data: bytes, where: str) -> Mapping[str, Any]:
    """Parse a config and return its top-level object."""
    if not data.strip():
        raise InputError("is empty", field="model", value=where, hint="download the file again")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"must be UTF-8 text; byte {error.start} is not",
            field="model",
            value=where,
            hint="give the model's config.json, not its weights",
        ) from None
    brackets = OTHERS.sub("", STRING.sub("", text))
    if len(brackets) > MAX_BRACKETS and not _too_deep(brackets[:MAX_BRACKETS]):
        raise InputError(
            f"must hold at most {MAX_BRACKETS // 2} arrays and objects",
            field="model",
            value=where,
            hint="a config.json has a few dozen; is this another kind of file?",
        )
    if _too_deep(brackets):
        raise InputError(f"must nest at most {MAX_DEPTH} levels deep", field="model", value=where)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if text.lstrip()[0] != "{":
            hint = "give the model's config.json; this is another kind of file"
        else:
            hint = "the file ends too early; download it again" if text.rstrip()[-1] != "}" else ""
        raise InputError(
            f"must be JSON: {error.msg.lower()}",
            field="model",
            where=f"{where}:{error.lineno}:{error.colno}",
            hint=hint,
        ) from None
    except (ValueError, RecursionError):
        raise InputError(
            "must be JSON with numbers of at most 4300 digits", field="model", value=where
        ) from None
    if not isinstance(value, dict):
        raise InputError("must be a JSON object at the top", field="model", value=where)
    return value


def _too_deep(brackets: str) -> bool:
    """Say whether brackets nest too deep; linear in their number."""
    depth = 0
    for start in range(0, len(brackets), CHUNK):
        steps = map(STEP.__getitem__, brackets[start : start + CHUNK])
        depths = list(accumulate(steps, initial=depth))
        if max(depths) > MAX_DEPTH:
            return True
        depth = depths[-1]
    return False
