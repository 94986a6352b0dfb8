"""``--workload serving`` of ``sweep``, ``evaluate``, ``explain`` and ``export``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.cli.flags import Given, plan_values
from meshplan.cli.serving_flags import FLAGS, refuse_others
from meshplan.errors import Infeasible, InputError
from meshplan.hf import load_model
from meshplan.specs.serving_plan import is_serving, read_serving_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshplan.hf import ModelSpec
    from meshplan.specs.serving_plan import ServingPlan


SAID = (
    "every engine that runs at every setting; of numbers of engines, and of prefill engines beside "
    "a decode engine, those that no other beats"
)
"""Which deployments a file of a search holds."""


def asked(given: Given) -> bool:
    """Whether flags describe a serving job; flags of the other workload are refused.

    Raises
    ------
    InputError
        With every flag that does not belong.
    """
    serving = is_serving(given.get("config"), given.get("workload"))
    refuse_others(given, serving=serving)
    return serving


def read(given: Given, axes: Mapping[str, Any] | None = None) -> tuple[ServingPlan, ModelSpec]:
    """Plan and model that the flags describe; what was assumed is said on stderr."""
    from meshplan.serving.request import notes

    values = plan_values(given, *FLAGS)
    if axes is not None:
        from meshplan.serving.evaluate import pinned

        values = pinned(values)
    plan = read_serving_plan(given.get("config"), values, axes)
    model = load_model(plan.model)
    for note in notes(plan, model):
        print(f"note: {note}", file=sys.stderr)
    return plan, model


def sweep(given: Given, bar: Callable[[], Any]) -> None:
    """Find the best deployments."""
    from meshplan.output import check, write
    from meshplan.report import serving as report
    from meshplan.report.console import show
    from meshplan.serving import search

    plan, model = read(given)
    if plan.output:
        check(plan.output)
    if "plot" in given:
        check_plot(given["plot"])
    with bar() as progress:
        result = search.run(plan, model, progress=progress)
    if plan.output:
        rows = write(result.batches(), plan.output)
        said = f"wrote {rows:,} deployments to {plan.output}, in closed form"
        print(f"{said}: {SAID}", file=sys.stderr)
    if "json" in given:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        parts = report.parts(result)
        if result.feasible:
            parts.append("Why the first: " + command("explain", given, result.rows("top")[0]))
        show(*parts)
    if "plot" in given and result.rows("pareto"):
        from meshplan.kv.plot import save
        from meshplan.serving.plot import plot_front

        save(plot_front(result), Path(given["plot"]))
        print(f"wrote {given['plot']}", file=sys.stderr)
    result.check()


def check_plot(path: str) -> None:
    """Refuse, before any work is done, a chart that could not be written."""
    if Path(path).suffix.lower() not in (".png", ".svg", ".html"):
        raise InputError("must end in .png, .svg or .html", field="--plot", value=path)
    if not Path(path).parent.is_dir():
        rule = f'the folder "{Path(path).parent}" does not exist'
        raise InputError(rule, field="--plot", value=path, hint=f"mkdir -p {Path(path).parent}")


def evaluate(given: Given) -> None:
    """Estimate one deployment."""
    told = _told(given)
    if "json" in given:
        print(json.dumps(told.row.to_dict(), indent=2))
    else:
        from meshplan.report import serving as report
        from meshplan.report.console import show

        show(*report.evaluated(told))
    told.check()


def explain(given: Given) -> None:
    """Explain one deployment."""
    told = _told(given, neighbours=True)
    if "json" in given:
        print(json.dumps(told.to_dict(), indent=2))
    else:
        from meshplan.report import serving as report
        from meshplan.report.console import show

        show(*report.explained(told))
    told.check()


def _told(given: Given, *, neighbours: bool = False) -> Any:
    from meshplan.serving.evaluate import EVALUATED, explain

    if "plot" in given:
        check_plot(given["plot"])
    plan, model = read(given, EVALUATED)
    told = explain(plan, model, neighbours=neighbours, plot="plot" in given)
    if "plot" in given and told.chart is not None:
        from meshplan.kv.plot import save

        save(told.chart, Path(given["plot"]))
        print(f"wrote {given['plot']}", file=sys.stderr)
    return told


def command(name: str, given: Given, row: Mapping[str, Any]) -> str:
    """Command that asks about one deployment of the job that the flags describe."""
    from meshplan.serving.evaluate import flags_of

    pins = flags_of(row)
    words = ["planner", name, "--workload", "serving"]
    for flag in FLAGS:
        if flag.parameter in given and flag.name not in pins and flag.panel != "Output":
            words += [flag.name, str(given[flag.parameter])]
    for name_of, value in pins.items():
        words += [name_of, value]
    return shlex.join(words)


def export(given: Given, rank: int, folder: Path | None) -> None:
    """Write launch arguments for the best deployment, or the one that the axes pin down."""
    from meshplan.cli.export import hand_over
    from meshplan.export.serving import SHELL, engines, export
    from meshplan.request import experts_of, has_sparse_attention
    from meshplan.serving import search
    from meshplan.serving.evaluate import flags_of

    target = given.get("to")
    known = (*SHELL, "trtllm")
    if target is not None and target not in known:
        rule = "must be one of " + ", ".join(known)
        raise InputError(rule, field="--to", value=str(target), hint="drop it to take the best")
    asked = {name: value for name, value in given.items() if name not in ("rank", "top")}
    if target is not None:
        asked["backend"] = target
    plan, model = read({**asked, "top": str(rank)})
    result = search.run(plan, model)
    rows = result.rows("top")
    if len(rows) < rank:
        raise Infeasible(result.nearest or f"only {len(rows)} layouts keep every limit")
    row, work = rows[-1], plan.workload
    longest = (work.isl or 0) + (work.osl or 0) or int(model.canonical["max_positions"] or 0)
    found = engines(
        row,
        model=plan.model,
        max_len=longest,
        node=plan.cluster.gpus_per_node,
        experts=experts_of(model),
        sparse=has_sparse_attention(model),
    )
    launch = export(str(row["backend"]), found)
    hand_over(launch, dict(flags_of(row)), folder, as_json="json" in given)
