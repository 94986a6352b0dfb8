"""A search over the space of a plan: run it, and go through all of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import meshplan._core as _core
from meshplan import request
from meshplan.found import Proof
from meshplan.report.values import phrase
from meshplan.result import Result
from meshplan.specs.software import load_software

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from meshplan.hf import ModelSpec
    from meshplan.specs.plan import Plan

    Progress = Callable[[int, int], object]

RERANKED = 100
"""Layouts kept for each one wanted, when the upper band orders them."""

MOST_KEPT = 100_000
"""Layouts kept at most."""


def run(plan: Plan, model: ModelSpec, *, progress: Progress | None = None) -> Result:
    """Search the space of a checked plan.

    Parameters
    ----------
    plan, model
        The job.
    progress
        Called some times a second with the layouts done and the layouts in all.

    Raises
    ------
    InputError
        When the axes contradict each other or the model.
    KeyboardInterrupt
        On Ctrl-C, within 100 ms.
    """
    asked = request.search(plan, model)
    started = time.perf_counter()
    text, top, pareto = _core.sweep(
        asked,
        top=plan.top if plan.rank == "time" else min(MOST_KEPT, RERANKED * plan.top),
        exhaustive=plan.exhaustive,
        threads=plan.threads,
        on_progress=progress,
    )
    elapsed = time.perf_counter() - started
    account = json.loads(text)
    result = Result(
        plan=plan,
        model=model.name,
        software=load_software(plan.framework, plan.framework_version).name,
        proof=Proof(**{name: account[name] for name in Proof.__dataclass_fields__}),
        elapsed_s=elapsed,
        nearest="" if len(top) else nearest(account),
        request=asked,
        frames={"top": top, "pareto": pareto},
    )
    return result if plan.rank == "time" else by_upper_band(result)


def by_upper_band(result: Result) -> Result:
    """The best layouts in the order of step time · (1 + error q90).

    Kinds of layouts differ in how well measured runs bear them out; within a kind the order stays.
    """
    import polars as pl

    frame = pl.DataFrame(result.frames["top"])
    upper = [row["step_time_s"] * (1 + row["error_q90_ratio"]) for row in result.rows("top")]
    order = sorted(range(len(upper)), key=lambda i: (upper[i], i))[: result.plan.top]
    frames: dict[str, Any] = {**result.frames, "top": frame[order]}
    return replace(result, frames=frames)


def nearest(account: Mapping[str, Any]) -> str:
    """Say which constraint is nearest to giving way, where nothing is feasible."""
    said = f"none of {account['total']:,} layouts is feasible"
    found = account["nearest"]
    if found is None:
        return said
    rule = f"{found['status']} ({found['rule']})" if found["rule"] else found["status"]
    example = f"; for example {phrase(found['example'])}" if not found["rule"] else ""
    return f"{said}; nearest to giving way: {rule}: {found['text']}{example}"
