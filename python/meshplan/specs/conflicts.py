"""Contradictions inside a plan: values that are fine one by one and make no sense together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from meshplan.specs.fields import Bounds
from meshplan.specs.software import load_software

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshplan.specs.plan import Plan
    from meshplan.specs.toml import Path


@dataclass(frozen=True)
class Conflict:
    """A value that contradicts another one."""

    path: Path
    value: Any
    rule: str
    hint: str = ""


def conflicts(plan: Plan) -> list[Conflict]:
    """Every contradiction of a plan."""
    degrees = list(_degrees(plan))
    found = [*_node(plan), *degrees, *_schedule(plan), *_sharing(plan), *_framework(plan)]
    if not degrees:
        found += _batch(plan)
    return found + list(_precision(plan))


def divisors(number: int) -> list[int]:
    """Divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def _node(plan: Plan) -> Iterator[Conflict]:
    node, gpus = plan.cluster.gpus_per_node, plan.gpus
    if gpus > node and gpus % node:
        near = f"{gpus // node * node} or {(gpus // node + 1) * node}"
        rule = f"must be a multiple of the node's {node} GPUs"
        yield Conflict(("gpus",), gpus, rule, f"use {near}, or change cluster.gpus_per_node")


def _degrees(plan: Plan) -> Iterator[Conflict]:
    """Degrees that cannot multiply to the number of GPUs."""
    known = divisors(plan.gpus)
    pins: dict[str, int] = {}
    for axis in ("tp", "cp", "pp", "dp"):
        limits, value = getattr(plan.space, axis), plan.space.pinned(axis)
        if isinstance(limits, Bounds):
            if not any(limits[0] <= d <= limits[1] for d in known):
                rule = f"must hold a divisor of the {plan.gpus} GPUs"
                shown = f"{limits[0]}..{limits[1]}"
                yield Conflict(("space", axis), shown, rule, _near(plan.gpus, limits[0]))
            continue
        wrong = [d for d in limits or () if d not in known]
        if wrong:
            rule = f"must divide the {plan.gpus} GPUs"
            yield Conflict(("space", axis), wrong[0], rule, _near(plan.gpus, wrong[0]))
        elif value is not None:
            pins[axis] = value
    total = math.prod(pins.values())
    whole = len(pins) == 4
    if pins and (plan.gpus % total or (whole and total != plan.gpus)):
        names = " · ".join(pins)
        verb = "must equal" if whole else "must divide"
        axis = next(reversed(pins))
        rule = f"{names} = {total} {verb} gpus = {plan.gpus}"
        yield Conflict(("space", axis), pins[axis], rule, "leave one of them open")


def _near(gpus: int, value: int) -> str:
    known = divisors(gpus)
    below = [d for d in known if d < value][-1:]
    above = [d for d in known if d > value][:1]
    return "use " + " or ".join(str(d) for d in below + above)


def _axis_text(limits: tuple[Any, ...]) -> str:
    return ",".join(str(item) for item in limits)


def _batch(plan: Plan) -> Iterator[Conflict]:
    """Find a batch that no data-parallel degree within the space divides."""
    batch, known = plan.workload.global_batch, divisors(plan.gpus)
    allowed = {a: [d for d in known if plan.space.allows(a, d)] for a in ("tp", "cp", "pp", "dp")}
    inner = {math.prod(c) for c in product(allowed["tp"], allowed["cp"], allowed["pp"])}
    dps = [d for d in allowed["dp"] if plan.gpus % d == 0 and plan.gpus // d in inner]
    micro = plan.space.micro_batch
    least = (1,) if micro is None else (micro[0],) if isinstance(micro, Bounds) else micro
    passes = sorted({dp * m for dp in dps for m in least})
    if not passes or any(batch % p == 0 for p in passes):
        return
    step = passes[0]
    near = [n for n in (batch // step * step, (batch // step + 1) * step) if n]
    rule = "no data-parallel degree of the space divides it"
    if len(passes) == 1:
        rule = f"must be a multiple of micro_batch · dp = {step}"
    hint = "use " + " or ".join(str(n) for n in near) + ", or open tp, pp or cp"
    yield Conflict(("workload", "global_batch"), batch, rule, hint)


def _schedule(plan: Plan) -> Iterator[Conflict]:
    space = plan.space
    vpp, pp, schedules = space.pinned("vpp"), space.pinned("pp"), space.schedule
    path: Path = ("space", "vpp")
    if pp == 1 and vpp is not None and vpp > 1:
        yield Conflict(path, vpp, "virtual chunks need pp above 1", "raise pp or drop vpp")
    elif vpp is not None and vpp > 1 and schedules and "interleaved" not in schedules:
        rule = "virtual chunks need the interleaved schedule"
        yield Conflict(path, vpp, rule, "use schedule interleaved or drop vpp")
    if schedules == ("interleaved",):
        if vpp == 1:
            yield Conflict(path, vpp, "the interleaved schedule needs vpp above 1", "raise vpp")
        if pp == 1:
            rule = "the interleaved schedule needs pp above 1"
            yield Conflict(("space", "schedule"), "interleaved", rule, "raise pp or use 1f1b")
    if space.sequence_parallel == (True,) and space.pinned("tp") == 1:
        rule = "sequence parallelism needs tp above 1"
        hint = "raise tp or switch it off"
        yield Conflict(("space", "sequence_parallel"), True, rule, hint)


def _sharing(plan: Plan) -> Iterator[Conflict]:
    """Axes that mean something only beside a certain value of another."""
    space = plan.space
    for axis, owner, name in (
        ("recompute_layers", "recompute", "block"),
        ("shard_group", "sharding", "hsdp"),
    ):
        chosen = getattr(space, owner)
        if getattr(space, axis) is not None and chosen is not None and name not in chosen:
            rule = f"means something only with {owner} {name}"
            shown = _axis_text(getattr(space, axis))
            yield Conflict(("space", axis), shown, rule, f"add {name} to {owner} or drop {axis}")


def _framework(plan: Plan) -> Iterator[Conflict]:
    """A generation of another framework."""
    version, framework = plan.framework_version, plan.framework
    if version is None or framework == "generic":
        return
    known = load_software(framework, version).frameworks
    if not any(name.startswith(framework) for name in known):
        rule = f"is a generation of {known[0]}, not of {framework}"
        hint = "drop it for the newest generation, or change framework"
        yield Conflict(("framework_version",), version, rule, hint)


def _precision(plan: Plan) -> Iterator[Conflict]:
    device = plan.cluster.device
    dtype = plan.workload.canonical(())["compute_dtype"]
    if dtype not in device.gemm or dtype not in device.peak:
        known = [name for name in device.peak if name in device.gemm]
        rule = f"{device.name} has no {dtype} peak and GEMM curve"
        path: Path = ("workload", "precision")
        yield Conflict(path, plan.workload.precision, rule, "it has " + ", ".join(sorted(known)))
