"""Why not the neighbour: the best deployments that differ from a given one in one respect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.serving import search
from meshplan.serving.evaluate import Change
from meshplan.serving.result import Deployment
from meshplan.specs.base import build
from meshplan.specs.engines import Engines, ServingSpace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshplan.hf import ModelSpec
    from meshplan.specs.serving_plan import ServingPlan

RESPECTS = (
    ("tp", "ep", "moe_tp", "attention_dp", "redundant_experts"),
    ("attention_dp",),
    ("ep", "moe_tp", "redundant_experts"),
    ("pp",),
    ("dcp",),
    ("spec_tokens",),
    ("max_batch",),
    ("max_batched_tokens",),
    ("backend",),
    ("mode",),
)
"""Axes that are opened together, all others being held."""

SHOWN = (
    *("backend", "mode", "workers", "tp", "pp", "attention_dp", "pcp", "ep", "dcp"),
    "spec_tokens",
    *("redundant_experts", "max_batch", "max_batched_tokens"),
    *("prefill_workers", "prefill_tp", "prefill_attention_dp", "prefill_ep"),
    *("prefill_max_batched_tokens",),
)


def better(plan: ServingPlan, model: ModelSpec, row: Deployment) -> Iterator[Change]:
    """Better deployments that differ in one respect, the best first.

    Better is feasible where the given one is not; else more tokens a second and GPU, where the work
    is the same.
    """
    found: dict[str, Change] = {}
    for axes in RESPECTS:
        for changed in _opened(plan, axes):
            result = search.run(changed, model)
            if not result.feasible:
                continue
            best = result.best
            own = row["tokens_per_s_per_gpu"]
            if row.feasible and not best.tokens_per_s_per_gpu > own * 1.001:
                continue
            differing = {a: best[a] for a in SHOWN if best[a] != row[a]}
            if differing:
                found.setdefault(repr(differing), Change(differing, best))
    ranked = sorted(found.values(), key=lambda c: -float(c.row.tokens_per_s_per_gpu))
    yield from ranked


def _opened(plan: ServingPlan, axes: tuple[str, ...]) -> Iterator[ServingPlan]:
    """Plan with some axes open: engines as many as the GPUs hold."""
    update: dict[str, Any] = {"top": 1, "threads": 1}
    if axes == ("backend",):
        others = tuple(b for b in ("vllm", "sglang", "trtllm") if b not in plan.backend)
        # Blocks and token budgets are the backend's own.
        space = _space(plan.space, ("block_tokens", "max_batched_tokens"))
        yield plan.model_copy(update={**update, "backend": others, "space": space})
    elif axes == ("mode",):
        mode = ("agg",) if plan.mode == ("disagg",) else ("disagg",)
        if mode == ("disagg",) and plan.gpus < 2:
            return
        yield plan.model_copy(update={**update, "mode": mode, "space": ServingSpace()})
    else:
        yield plan.model_copy(update={**update, "space": _space(plan.space, axes)})


def _space(space: ServingSpace, axes: tuple[str, ...]) -> ServingSpace:
    def part(own: Engines) -> dict[str, Any]:
        free = {*axes, "workers"}
        return {a: getattr(own, a) for a in Engines.model_fields if a not in free}

    return build(ServingSpace, {**part(space), "prefill": part(space.prefill)})
