"""MoE routing: recorded loads, expert placement, hot ranks, dispatch and combine.

Names are loaded when they are first used, so that importing this package stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LAZY: dict[str, str] = {
    "Loads": "meshplan.moe.loads",
    "read_loads": "meshplan.moe.loads",
    "balance": "meshplan.moe.api",
    "balance_robust": "meshplan.moe.api",
    "describe": "meshplan.moe.api",
    "dispatch": "meshplan.moe.api",
    "dispatch_question": "meshplan.moe.api",
    "expert_memory": "meshplan.moe.api",
    "imbalance": "meshplan.moe.api",
    "layer_time": "meshplan.moe.api",
    "read_routing": "meshplan.moe.api",
    "rebalance": "meshplan.moe.api",
    "simulate": "meshplan.moe.api",
    "sweep": "meshplan.moe.api",
}
"""Public name → module that defines it."""

__all__ = [
    "Loads",
    "balance",
    "balance_robust",
    "describe",
    "dispatch",
    "dispatch_question",
    "expert_memory",
    "imbalance",
    "layer_time",
    "read_loads",
    "read_routing",
    "rebalance",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
