"""A search over the space of a serving plan."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import meshplan._core as _core
from meshplan.found import Proof
from meshplan.serving import request
from meshplan.serving.nearest import nearest
from meshplan.serving.result import ServingResult

if TYPE_CHECKING:
    from meshplan.hf import ModelSpec
    from meshplan.search import Progress
    from meshplan.specs.serving_plan import ServingPlan


def run(plan: ServingPlan, model: ModelSpec, *, progress: Progress | None = None) -> ServingResult:
    """Search the space of a checked plan.

    Parameters
    ----------
    plan, model
        The job.
    progress
        Called some times a second with the layouts done.

    Raises
    ------
    InputError
        When the plan contradicts the model, or its trace cannot be read.
    KeyboardInterrupt
        On Ctrl-C, within 100 ms.
    """
    with request.recorded(plan) as trace:
        asked = request.request(plan, model, trace)
        started = time.perf_counter()
        text, top, pareto, best = _core.serving_sweep(
            asked,
            top=plan.top,
            exhaustive=plan.exhaustive,
            threads=plan.threads,
            on_progress=progress,
        )
    elapsed = time.perf_counter() - started
    account = json.loads(text)
    rules = [{**rule, "layouts": rule["deployments"]} for rule in account["rules"]]
    return ServingResult(
        plan=plan,
        model=model.name,
        spec=model,
        proof=Proof(
            total=account["total"],
            evaluated=account["evaluated"],
            pruned=account["pruned"],
            rejected=account["rejected"],
            rules=rules,
        ),
        replayed=account["replayed"],
        elapsed_s=elapsed,
        nearest="" if len(top) else nearest(plan, account),
        objectives=tuple(account["objectives"]),
        frames={"top": top, "pareto": pareto, "best": best},
    )
