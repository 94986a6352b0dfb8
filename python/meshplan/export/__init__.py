"""Launch arguments: a layout in the words of a training framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.errors import InputError
from meshplan.export.deepspeed import deepspeed
from meshplan.export.job import Job, Launch, Layout, NotExpressible
from meshplan.export.megatron import megatron_bridge, megatron_lm
from meshplan.export.torchtitan import torchtitan

if TYPE_CHECKING:
    from collections.abc import Callable

EXPORTERS: dict[str, Callable[[Job], Launch]] = {
    "megatron": megatron_lm,
    "megatron-bridge": megatron_bridge,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
}

__all__ = ["EXPORTERS", "Job", "Launch", "Layout", "NotExpressible", "export"]


def export(job: Job, target: str) -> Launch:
    """Write a layout for a framework.

    Parameters
    ----------
    job
        The layout and its job.
    target
        A key of `EXPORTERS`.

    Raises
    ------
    InputError
        When the framework is unknown.
    NotExpressible
        When the framework has no way to say the layout; every reason is named.
    """
    if target not in EXPORTERS:
        known = ", ".join(EXPORTERS)
        raise InputError(f"must be one of {known}", field="target", value=target)
    return EXPORTERS[target](job)
