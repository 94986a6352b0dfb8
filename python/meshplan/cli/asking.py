"""What commands share: a plan from flags, and words on stderr."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from meshplan.cli.flags import AXES, JOB, SEARCH, Given, plan_values
from meshplan.hf import load_model
from meshplan.report.values import LAYOUT, value
from meshplan.request import EVALUATED, notes
from meshplan.specs.reading import read_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshplan.hf import ModelSpec
    from meshplan.specs.plan import Plan


def read(given: Given, axes: Mapping[str, Any] | None = None) -> tuple[Plan, ModelSpec]:
    """Plan and model that the flags describe; what was assumed is said on stderr.

    Parameters
    ----------
    given
        The flags that were used.
    axes
        Values of axes of which nothing is said.
    """
    plan = read_plan(given.get("config"), plan_values(given, *JOB, *AXES, *SEARCH), axes)
    model = load_model(plan.model)
    for note in notes(plan, model):
        print(f"note: {note}", file=sys.stderr)
    return plan, model


def command(name: str, given: Given, row: Mapping[str, Any]) -> str:
    """Command that asks about one layout of the job that the flags describe."""
    words = ["planner", name]
    for flag in JOB:
        if flag.parameter in given:
            words += [flag.name, str(given[flag.parameter])]
    for axis in LAYOUT:
        if axis == "dp" or (axis == "recompute_layers" and row["recompute"] != "block"):
            continue
        if axis == "shard_group" and row["sharding"] != "hsdp":
            continue
        if row[axis] != EVALUATED.get(axis):
            words += ["--" + axis.replace("_", "-"), value("", row[axis]).replace(",", "")]
    return shlex.join(words)
