"""From a plan to the canonical JSON that crosses to the core."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.specs.base import problem_at
from meshplan.specs.software import load_software

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshplan.hf import ModelSpec
    from meshplan.specs.plan import Plan
    from meshplan.specs.toml import Path

EVALUATED: dict[str, Any] = {
    **dict.fromkeys(("tp", "cp", "ep", "etp", "pp", "vpp", "micro_batch"), 1),
    "recompute": "none",
}
"""What one layout is taken to be where nothing is said: no parallelism but data parallelism, and
nothing recomputed. Sequence parallelism follows tp, the schedule follows vpp, and ZeRO-1 shards
over a data-parallel group of more than one rank."""


def job(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    """Model, cluster, workload and software of a plan, in canonical form.

    Raises
    ------
    InputError
        When the space asks for what the model does not have.
    """
    _fits(plan, model)
    training = plan.workload.canonical(plan.cluster.device.training_kernels)
    counted(training.get("routing", {}), plan.workload.routing, model, plan.origins)
    software = load_software(plan.framework, plan.framework_version)
    return {
        "model": model.canonical,
        "cluster": plan.cluster.canonical(),
        "training": training,
        "software": {
            "name": software.name,
            **software.costs,
            **plan.cluster.software.get(software.name, {}),
        },
        "framework": plan.framework,
        "gpus": plan.gpus,
    }


def question(plan: Plan, model: ModelSpec) -> str:
    """Question about the one layout that a plan pins down, as canonical JSON.

    Raises
    ------
    InputError
        When an axis has several values.
    """
    return json.dumps({**job(plan, model), "layout": stated(plan)})


def search(plan: Plan, model: ModelSpec) -> str:
    """Search over the space of a plan, as canonical JSON."""
    return json.dumps({**job(plan, model), "space": plan.space.canonical()})


def stated(plan: Plan) -> dict[str, Any]:
    """Layout that a plan pins down.

    Raises
    ------
    InputError
        When an axis has several values.
    """
    space, problems = plan.space, []
    layout: dict[str, Any] = {}
    for axis in type(space).model_fields:
        layout[axis] = space.pinned(axis)
        if layout[axis] is None and getattr(space, axis) is not None:
            rule = "must be one value: one layout is evaluated"
            hint = "pin it, or use planner sweep"
            problems.append(problem_at(("space", axis), "several values", rule, hint, plan.origins))
    if problems:
        raise InputError.all_of(problems)
    return layout


def notes(plan: Plan, model: ModelSpec) -> list[str]:
    """What a reader should know about how the input was understood, a sentence each."""
    said = [f"{model.name}: {text}" for text in model.assumptions]
    longest = model.canonical.get("max_positions")
    if longest is not None and plan.workload.seq_len > longest:
        said.append(f"seq_len {plan.workload.seq_len} is beyond the model's {longest} positions")
    return said


def _fits(plan: Plan, model: ModelSpec) -> None:
    """Refuse what speaks of experts where a model has none, and two words on their balance."""
    work, space = plan.workload, plan.space
    experts = experts_of(model)
    asked: list[tuple[Path, Any]] = []
    if work.routing:
        asked.append((("workload", "routing"), work.routing))
    if work.moe_imbalance != 1:
        asked.append((("workload", "moe_imbalance"), work.moe_imbalance))
    problems = []
    if experts and len(asked) > 1:
        rule, hint = "routing sets the imbalance itself", "drop routing or moe_imbalance"
        problems.append(problem_at(*asked[1], rule, hint, plan.origins))
    if not experts:
        for axis in ("ep", "etp"):
            values = getattr(space, axis)
            if values is not None and values[0] > 1:
                asked.append((("space", axis), values[0]))
        for path, value in asked:
            rule, hint = f"{model.name} has no experts", f"drop {path[-1]}"
            problems.append(problem_at(path, value, rule, hint, plan.origins))
    if problems:
        raise InputError.all_of(problems)


def experts_of(model: ModelSpec) -> int:
    """Routed experts of the first layer that has them; none: 0."""
    parts = (kind["feed_forward"] or {} for kind in model.canonical["kinds"])
    return next((part["experts"] for part in parts if part.get("kind") == "moe"), 0)


def has_sparse_attention(model: ModelSpec) -> bool:
    """Whether some layer attends to keys that an indexer picks."""
    return any((kind["mixer"] or {}).get("indexer") for kind in model.canonical["kinds"])


def counted(
    routing: Mapping[str, Any], stated: str, model: ModelSpec, origins: Mapping[Path, str]
) -> None:
    """Refuse recorded loads of another number of experts than the model has."""
    experts = experts_of(model)
    for row in routing.get("of", routing).get("layers", []):
        if len(row) != experts:
            rule = f"holds loads of {len(row)} experts, {model.name} has {experts}"
            hint = (
                "give loads that were recorded on this model; token records name their experts "
                "in a column num_experts"
            )
            path: Path = ("workload", "routing")
            raise InputError.all_of([problem_at(path, stated, rule, hint, origins)])
