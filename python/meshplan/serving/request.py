"""From a serving plan to the canonical JSON that crosses to the core."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.request import counted, experts_of
from meshplan.specs.base import problem_at
from meshplan.specs.serving import formats
from meshplan.specs.serving_costs import hardware, tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshplan.hf import ModelSpec
    from meshplan.specs.serving_plan import ServingPlan
    from meshplan.specs.toml import Path as Place

TRACE_BLOCK = 512
"""Tokens of a block that prompts of a trace share."""

EVALUATED: dict[str, Any] = dict.fromkeys(
    ("tp", "pp", "attention_dp", "pcp", "ep", "dcp", "workers"), 1
) | {"spec_tokens": 0}
"""What one deployment is taken to be where nothing is said: one engine of one GPU, without drafts."""


def request(plan: ServingPlan, model: ModelSpec, trace: dict[str, Any] | None = None) -> str:
    """Search over the space of a plan, as canonical JSON.

    Parameters
    ----------
    plan, model
        The job.
    trace
        Its trace, as `recorded` gives it.

    Raises
    ------
    InputError
        When the plan asks for what the model does not have, or a trace cannot be read.
    """
    _fits(plan, model)
    numbers = tables_of(plan.serving_params)
    kinds = [kind for backend in plan.backend for kind in _kinds(plan, model, backend)]
    return json.dumps(
        {
            "model": model.canonical,
            "cluster": plan.cluster.canonical(),
            "hardware": hardware(plan.cluster.device.architecture, numbers),
            "software": {name: numbers["software"][name] for name in plan.backend},
            "routing": numbers["routing"],
            "measured": _measured(plan, model),
            "kinds": kinds,
            "gpus": plan.gpus,
            "load": plan.workload.load(),
            "recorded": trace,
            "open_concurrency": plan.workload.open_concurrency,
            "goal": plan.workload.goal()
            | {"objective": plan.objective, "price_per_gpu_hour": plan.price_per_gpu_hour},
            "axes": {
                "modes": list(plan.mode),
                "engine": plan.space.canonical(),
                "prefill": plan.space.canonical_prefill(),
            },
        }
    )


def _kinds(plan: ServingPlan, model: ModelSpec, backend: str) -> list[dict[str, Any]]:
    """Formats of a backend with its flags where nothing is said."""
    from meshplan.validate.deployments import names

    facts = names()["backends"][backend]
    share = facts["memory_share"] if plan.memory_share is None else plan.memory_share
    defaults = {
        "memory_share": share,
        "recv_interval": plan.recv_interval if backend == "sglang" else 1,
        "block_tokens": facts["block_tokens"],
    }
    found: list[dict[str, Any]] = []
    for weights in plan.precision:
        for cache in plan.kv_dtype:
            label = str(model.canonical["weight_dtype"]) if weights == "auto" else weights
            kv = "bf16" if cache == "auto" else cache
            kind = {
                "backend": backend,
                "precision": formats(label, kv, moe=experts_of(model) > 0),
                "defaults": defaults,
            }
            if kind not in found:
                found.append(kind)
    return found


def _measured(plan: ServingPlan, model: ModelSpec) -> dict[str, Any] | None:
    """Routing that the plan states, as the core reads it."""
    stated = plan.workload.routing
    if not stated:
        return None
    from meshplan.moe.api import read_routing

    routing = dict(read_routing(stated))
    counted(routing, stated, model, plan.origins)
    return routing


def _fits(plan: ServingPlan, model: ModelSpec) -> None:
    """Refuse what speaks of experts or drafts where a model has none, and requests too long."""
    asked: list[tuple[Place, Any, str]] = []
    dense = f"{model.name} has no experts"
    if plan.workload.routing and not experts_of(model):
        asked.append((("workload", "routing"), plan.workload.routing, dense))
    for side, space in ((("space",), plan.space), (("space", "prefill"), plan.space.prefill)):
        for axis in ("ep", "attention_dp", "redundant_experts") if not experts_of(model) else ():
            values = getattr(space, axis)
            if values is not None and values[0] > (0 if axis == "redundant_experts" else 1):
                asked.append(((*side, axis), values[0], dense))
        drafts = space.spec_tokens
        if drafts is not None and drafts[0] > 0 and not model.canonical.get("mtp"):
            rule = f"{model.name} has no multi-token-prediction head"
            asked.append(((*side, "spec_tokens"), drafts[0], rule))
    problems = [
        problem_at(path, value, rule, f"drop {path[-1]}", plan.origins)
        for path, value, rule in asked
    ]
    work, longest = plan.workload, model.canonical.get("max_positions")
    if work.trace is None and longest is not None:
        context = (work.isl or 0) + (work.osl or 0)
        if context > longest:
            rule = f"isl + osl = {context} is beyond the {longest} positions of {model.name}"
            hint = f"shorten prompts or answers to {longest} tokens together"
            problems.append(problem_at(("workload", "isl"), work.isl, rule, hint, plan.origins))
    if problems:
        raise InputError.all_of(problems)


@contextmanager
def recorded(plan: ServingPlan) -> Iterator[dict[str, Any] | None]:
    """Trace of a plan as the core reads it, while the context lasts.

    Prefix hits are found in blocks of the trace (512 tokens).
    """
    work = plan.workload
    if work.trace is None:
        yield None
        return
    from meshplan.kv.traces import readable, trace_options

    with readable(Path(work.trace), None) as (path, form):
        options = json.loads(trace_options(form, TRACE_BLOCK))
        yield {"path": str(path), "options": options, "rate_per_s": work.rate}


def notes(plan: ServingPlan, model: ModelSpec) -> list[str]:
    """What a reader should know about how the input was understood, a sentence each."""
    from meshplan.specs.serving_costs import ARCHITECTURES, MEASURED

    said = [f"{model.name}: {text}" for text in model.assumptions]
    architecture = plan.cluster.device.architecture
    if architecture not in MEASURED and architecture in ARCHITECTURES:
        like = ARCHITECTURES[architecture]
        said.append(f"no measured deployment ran on {architecture}: it takes the numbers of {like}")
    return said
