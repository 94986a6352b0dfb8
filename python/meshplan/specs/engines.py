"""The space of engines: every axis open, bounded, listed or pinned."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from meshplan.specs.base import Spec, suggest
from meshplan.specs.fields import LAST, Bounds, read_axis, refuse
from meshplan.specs.space import Axis

Some: TypeAlias = Annotated[Any, BeforeValidator(partial(read_axis, least=0))]
"""Values of an axis whose 0 stands for "none"."""


def names_of(known: tuple[str, ...], *, also: tuple[str, ...] = ()) -> BeforeValidator:
    """Reader of a name or a list of names: ``vllm,sglang``, ``any``."""

    def read(value: Any) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not items:
            raise refuse("must be a name or a list of names", "known: " + ", ".join(known))
        chosen = [str(item).strip().lower() for item in items]
        if chosen in (["any"], ["all"]):
            return known
        for name in chosen:
            if name not in known and name not in also:
                rule = "must be of " + ", ".join((*also, *known, "any"))
                raise refuse(rule, suggest(name, list(known)))
        return tuple(name for name in (*also, *known) if name in chosen)

    return BeforeValidator(read)


class Engines(Spec):
    """Axes of engines of one kind.

    Examples
    --------
    >>> Engines(tp="1..8", spec_tokens=0).pinned("spec_tokens")
    0
    """

    tp: Axis = None
    """GPUs of a pipeline stage, attention replicas included."""
    pp: Axis = None
    """Pipeline stages."""
    attention_dp: Axis = None
    """Attention replicas inside a stage."""
    pcp: Axis = None
    """Prefill context parallelism, inside tp; 1 unless asked for."""
    ep: Axis = None
    """Expert parallelism."""
    moe_tp: Axis = None
    """Tensor parallelism inside an expert."""
    dcp: Axis = None
    """Decode context parallelism."""
    max_batch: Axis = None
    """Request slots of an engine."""
    max_batched_tokens: Axis = None
    """Token budget of a step of an engine."""
    block_tokens: Axis = None
    """Tokens in a KV block."""
    spec_tokens: Some = None
    """Draft tokens of a step; 0: no speculation."""
    redundant_experts: Some = None
    """Copies of experts beyond one each."""
    workers: Axis = None
    """Engines."""

    def canonical(self) -> dict[str, Any]:
        """Axes of the core: a list, bounds, or null for an open axis."""
        axes: dict[str, Any] = {}
        for axis in Engines.model_fields:
            limits = getattr(self, axis)
            if isinstance(limits, Bounds):
                low, high = limits
                axes[axis] = {"min": low, "max": high if high < LAST else None}
            else:
                axes[axis] = limits if limits is None else list(limits)
        return axes

    def pinned(self, axis: str) -> Any:
        """Return the one value of an axis, or None when it has several."""
        limits = getattr(self, axis)
        if limits is None:
            return None
        return limits[0] if limits[0] == limits[-1] else None


class ServingSpace(Engines):
    """Axes of engines that decode, alone or besides prefill, and of engines that only prefill."""

    prefill: Engines = Engines()
    """Where engines that only prefill differ."""

    def canonical_prefill(self) -> dict[str, Any]:
        """Axes of prefill engines: those of the others where nothing else is said."""
        own, shared = self.prefill.canonical(), self.canonical()
        shared["workers"] = None
        return {axis: shared[axis] if limits is None else limits for axis, limits in own.items()}
