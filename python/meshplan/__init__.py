"""How should a large model be laid out on a GPU cluster?

Names are loaded when they are first used, so that ``import meshplan`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from meshplan import _core as _core
from meshplan.errors import Infeasible, InputError, PlannerError

__version__ = _core.VERSION

_LAZY: dict[str, str] = {
    "ModelSpec": "meshplan.hf",
    "load_model": "meshplan.hf",
}
"""Public name → module that defines it."""

__all__ = [
    "Infeasible",
    "InputError",
    "ModelSpec",
    "PlannerError",
    "__version__",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
