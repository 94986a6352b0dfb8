"""A serving job: what ``plan.toml``, the command line and ``meshplan.sweep`` describe alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PrivateAttr

from meshplan.errors import InputError
from meshplan.specs.base import Spec, build, problem_at
from meshplan.specs.cluster import Cluster
from meshplan.specs.engines import ServingSpace, names_of
from meshplan.specs.fields import Count, Ratio, Switch
from meshplan.specs.plan import DEFAULT_MODEL
from meshplan.specs.reading import draft_of, read_toml
from meshplan.specs.serving import BACKENDS, CACHES, MODES, WEIGHTS, Objective, Serving
from meshplan.specs.toml import Path

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


class ServingPlan(Spec):
    """A model to be served, and the space of its deployments."""

    model: str = DEFAULT_MODEL
    """Preset, path of a ``config.json`` or of the folder that holds it."""
    cluster: Cluster
    """The cluster; in a file, also the name of a preset or the path of a TOML file."""
    gpus: Annotated[Count, Field(le=2**20)]
    """GPUs that may be used."""
    workload: Serving
    """What is served."""
    backend: Annotated[tuple[str, ...], names_of(BACKENDS)] = BACKENDS
    """Serving engines."""
    mode: Annotated[tuple[str, ...], names_of(MODES)] = MODES
    """Aggregated, disaggregated, or both."""
    precision: Annotated[tuple[str, ...], names_of(WEIGHTS, also=("auto",))] = ("auto",)
    """Formats of the weights; ``auto``: that of the checkpoint."""
    kv_dtype: Annotated[tuple[str, ...], names_of(CACHES, also=("auto",))] = ("auto",)
    """Formats of keys and values; ``auto``: 16 bits, as engines do."""
    recv_interval: Annotated[Count, Field(le=10_000)] = 1
    """Decode steps between two looks at the queue (SGLang)."""
    memory_share: Annotated[Ratio, Field(gt=0, le=1)] | None = None
    """Share of memory that weights and cache may take; otherwise the backend's own default."""
    serving_params: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File of serving numbers that replace the shipped ones, as ``planner calibrate --serving``
    writes it."""
    space: ServingSpace = ServingSpace()
    """Axes of the search."""
    objective: Objective = "throughput"
    """Most tokens per second and GPU, least cost of a token, or fewest GPUs for a rate."""
    price: Annotated[Ratio, Field(le=1e6)] | None = None
    """Price of a GPU-hour; otherwise the cluster's."""
    top: Annotated[Count, Field(le=10_000)] = 10
    """Best deployments to keep."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the search; 0: one per core."""
    exhaustive: Switch = False
    """Skip nothing by bounds."""
    output: str | None = None
    """File for every deployment that runs, in closed form: ``.parquet``, ``.csv`` or ``.arrow``."""

    _origins: dict[Path, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> dict[Path, str]:
        """Where values came from, for complaints that are made later."""
        return self._origins

    @property
    def price_per_gpu_hour(self) -> float | None:
        """Price of a GPU-hour, if anything states one."""
        return self.cluster.price_per_gpu_hour if self.price is None else self.price


def is_serving(config: str | os.PathLike[str] | None, workload: Any) -> bool:
    """Whether a job is about serving: by its word, by its workload, or by its file.

    Examples
    --------
    >>> is_serving(None, "serving"), is_serving(None, None), is_serving(None, {"seq_len": 8192})
    (True, False, False)
    """
    if isinstance(workload, Serving) or workload == "serving":
        return True
    if isinstance(workload, str) and workload != "training":
        hint = "planner sweep --workload serving ..."
        raise InputError(
            "must be training or serving", field="--workload", value=workload, hint=hint
        )
    if workload is None and config is not None:
        workload = read_toml(config).data.get("workload")
    return isinstance(workload, dict) and workload.get("kind") == "serving"


def read_serving_plan(
    config: str | os.PathLike[str] | None = None,
    given: Mapping[Path, tuple[Any, str]] | None = None,
    axes: Mapping[str, Any] | None = None,
) -> ServingPlan:
    """Plan from a file and from flags or arguments, which override the file.

    Parameters
    ----------
    config
        Path of a ``plan.toml``.
    given
        Path of a value → the value and its origin (a flag such as ``--tp``).
    axes
        Values of axes that neither the file nor `given` mentions.

    Raises
    ------
    InputError
        With every problem of the plan.
    """
    draft = draft_of(config, given, axes)
    plan = build(ServingPlan, draft.data, draft.origins)
    plan.origins.update(draft.origins)
    problems = [
        problem_at(path, value, rule, hint, draft.origins)
        for path, value, rule, hint in _conflicts(plan, whole_nodes=axes is None)
    ]
    if problems:
        raise InputError.all_of(problems)
    return plan


Conflict = tuple[Path, Any, str, str]


def _conflicts(plan: ServingPlan, *, whole_nodes: bool) -> list[Conflict]:
    """Values that are fine one by one and make no sense together.

    `whole_nodes`: a job is given whole nodes; a single deployment takes the GPUs of its engines.
    """
    found: list[Conflict] = []
    node, gpus, work = plan.cluster.gpus_per_node, plan.gpus, plan.workload
    ways = ("concurrency", "rate") if work.trace is None else ("trace", "concurrency")
    given = [name for name in ways if getattr(work, name) is not None]
    for name in given[1:]:
        rule = f"contradicts {given[0]}: requests come in one way"
        found.append((("workload", name), getattr(work, name), rule, f"drop {name} or {given[0]}"))
    for name in ("isl", "osl"):
        if work.trace is None and getattr(work, name) is None:
            rule = "how many tokens prompts and answers have must be known"
            hint = f"add --{name}, such as --{name} 1024, or --trace FILE"
            found.append((("workload", name), "nothing", rule, hint))
    if whole_nodes and gpus > node and gpus % node:
        near = f"{gpus // node * node} or {(gpus // node + 1) * node}"
        rule = f"must be a multiple of the node's {node} GPUs"
        found.append((("gpus",), gpus, rule, f"use {near}, or change cluster.gpus_per_node"))
    if plan.objective == "gpus" and work.rate is None and work.trace is None:
        rule = "the fewest GPUs are for a rate of requests"
        found.append((("objective",), "gpus", rule, "add --rate, such as --rate 20/s"))
    if plan.objective == "cost" and plan.price_per_gpu_hour is None:
        rule = f"{plan.cluster.name} states no price of a GPU-hour"
        found.append((("objective",), "cost", rule, "add --price, such as --price 2.5"))
    if "agg" not in plan.mode and len(plan.mode) == 1 and gpus < 2:
        rule = "prefill and decode engines need a GPU each"
        found.append((("mode",), "disagg", rule, "use more GPUs, or mode agg"))
    return found
