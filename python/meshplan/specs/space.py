"""The space that is searched: every axis open, bounded, listed or pinned."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from meshplan.specs.base import Spec, suggest
from meshplan.specs.fields import LAST, Bounds, Switch, read_axis, refuse

Axis: TypeAlias = Annotated[Any, BeforeValidator(read_axis)]
"""Values of a numeric axis: a tuple, `Bounds`, or None for every value that the rules allow."""


def _listed(value: Any) -> Any:
    limits = read_axis(value)
    if isinstance(limits, Bounds):
        low, high = limits
        if high - low >= 1024:
            raise refuse("must hold 1 to 1024 values", "write a list, or a shorter range")
        return tuple(range(low, high + 1))
    return limits


Listed: TypeAlias = Annotated[Any, BeforeValidator(_listed)]
"""Values of an axis without limits of its own: a tuple, or None."""

SHARDING = ("none", "zero1", "zero2", "zero3", "hsdp")
RECOMPUTE = ("none", "selective", "block", "full")
SCHEDULE = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe")

_ALIASES = {"fsdp": "zero3", "fsdp2": "zero3", "ddp": "none", "0": "none"} | {
    str(stage): f"zero{stage}" for stage in (1, 2, 3)
}


def _names(known: tuple[str, ...]) -> BeforeValidator:
    def read(value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not items:
            raise refuse("must be a name or a list of names", "known: " + ", ".join(known))
        if [str(item).strip().lower() for item in items] in (["any"], ["all"]):
            return None
        chosen = {_name(str(item).strip().lower(), known) for item in items}
        return tuple(name for name in known if name in chosen)

    return BeforeValidator(read)


def _name(name: str, known: tuple[str, ...]) -> str:
    if known is SHARDING:
        name = _ALIASES.get(name, name)
    if name not in known:
        raise refuse("must be of " + ", ".join(known) + ", any", suggest(name, list(known)))
    return name


def _switches(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("any", "all")):
        return None
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]


class Space(Spec):
    """Axes of the search. What is not given is searched in full.

    Examples
    --------
    >>> space = Space(tp="1..8", pp=[4, 8], sharding="zero1,fsdp")
    >>> space.tp, space.pp, space.sharding
    ((1, 8), (4, 8), ('zero1', 'zero3'))
    """

    tp: Axis = None
    """Tensor-parallel degree."""
    cp: Axis = None
    """Context-parallel degree."""
    ep: Axis = None
    """Expert-parallel degree."""
    etp: Axis = None
    """Tensor-parallel degree inside an expert."""
    pp: Axis = None
    """Pipeline stages."""
    dp: Axis = None
    """Data-parallel degree."""
    vpp: Axis = None
    """Virtual chunks per stage."""
    micro_batch: Axis = None
    """Sequences in a micro-batch."""
    recompute_layers: Listed = None
    """Layers per stage that are recomputed whole, under ``recompute = "block"``."""
    shard_group: Listed = None
    """Ranks in a shard group, under ``sharding = "hsdp"``."""
    sequence_parallel: Annotated[tuple[Switch, ...] | None, BeforeValidator(_switches)] = None
    """Sequence parallelism on or off."""
    recompute: Annotated[tuple[str, ...] | None, _names(RECOMPUTE)] = None
    """What the backward pass recomputes."""
    sharding: Annotated[tuple[str, ...] | None, _names(SHARDING)] = None
    """What data-parallel ranks shard."""
    schedule: Annotated[tuple[str, ...] | None, _names(SCHEDULE)] = None
    """Pipeline schedule."""

    def canonical(self) -> dict[str, Any]:
        """Axes of the core: a list, bounds, or null for an open axis."""
        axes: dict[str, Any] = {}
        for axis in type(self).model_fields:
            limits = getattr(self, axis)
            if isinstance(limits, Bounds):
                low, high = limits
                axes[axis] = {"min": low, "max": high if high < LAST else None}
            else:
                axes[axis] = limits if limits is None else list(limits)
        return axes

    def allows(self, axis: str, value: object) -> bool:
        """Whether an axis may take a value."""
        limits = getattr(self, axis)
        if limits is None:
            return True
        if isinstance(limits, Bounds):
            return isinstance(value, int) and limits[0] <= value <= limits[1]
        return value in limits

    def pinned(self, axis: str) -> Any:
        """Return the one value of an axis, or None when it has several."""
        limits = getattr(self, axis)
        if limits is None:
            return None
        first, last = limits[0], limits[-1]
        return first if first == last else None
