"""Serving deployments in Python: what ``--workload serving`` asks, with typed answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from meshplan.errors import InputError
from meshplan.hf import load_model
from meshplan.specs.base import show, suggest
from meshplan.specs.engines import Engines
from meshplan.specs.plan import DEFAULT_MODEL
from meshplan.specs.reading import load_cluster
from meshplan.specs.serving import Serving
from meshplan.specs.serving_plan import ServingPlan, read_serving_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Required, Unpack

    from meshplan.api import Axis, ClusterSource, ModelSource, Names
    from meshplan.search import Progress
    from meshplan.serving.evaluate import Told
    from meshplan.serving.result import Deployment, ServingResult
    from meshplan.specs.toml import Path


class ServingJob(TypedDict, total=False):
    """What a question about serving is about.

    Axes take one value (``8``), several (``[1, 2, 4]``) or bounds (``"1..8"``); parts of
    :class:`~meshplan.specs.serving.Serving` may stand beside them instead of in `workload`.
    """

    gpus: Required[int]
    """GPUs that may be used; not needed where one deployment is evaluated."""
    model: ModelSource
    """Preset, path of a ``config.json``, its parsed content, or a loaded model."""
    cluster: ClusterSource
    """Preset, path of a TOML file, a description, or a `Cluster`."""
    backend: Names
    """``vllm``, ``sglang``, ``trtllm``."""
    mode: Names
    """``agg``, ``disagg``."""
    precision: Names
    """Formats of the weights."""
    kv_dtype: Names
    """Formats of the cache."""
    recv_interval: int
    memory_share: float
    serving_params: str
    """File of serving numbers that replace the shipped ones."""
    objective: str
    """``throughput``, ``cost`` or ``gpus``."""
    price: float
    """Price of a GPU-hour."""
    top: int
    """Best layouts to keep."""
    threads: int
    """Threads of a search; 0: one per core."""
    exhaustive: bool
    """Skip nothing by bounds."""
    isl: int
    osl: int
    low: float
    concurrency: int
    rate: float | str
    cv: float
    trace: str
    prefix_hit: float
    acceptance: float
    routing: str
    """How tokens choose experts: ``dirichlet:1.3``, a file of loads, …"""
    ttft: float | str
    tpot: float | str
    percentile: str
    margin: float
    requests: int
    seed: int
    tp: Axis
    pp: Axis
    attention_dp: Axis
    pcp: Axis
    """Prefill context parallelism; 1 unless given."""
    ep: Axis
    moe_tp: Axis
    dcp: Axis
    max_batch: Axis
    max_batched_tokens: Axis
    block_tokens: Axis
    spec_tokens: Axis
    redundant_experts: Axis
    workers: Axis
    """Engines; disaggregated: those that decode."""
    prefill: Mapping[str, Axis]
    """Where engines that only prefill differ."""


def values(job: Mapping[str, Any]) -> dict[Path, tuple[Any, str]]:
    """Values of a serving plan by path, as flags give them too.

    Raises
    ------
    InputError
        When a name is not a part of a serving job.
    """
    found: dict[Path, tuple[Any, str]] = {}
    workload = job.get("workload")
    if isinstance(workload, Serving):
        workload = workload.model_dump(exclude_unset=True)
    if workload is not None and not isinstance(workload, str):
        found["workload",] = (dict(workload), "")
    for name, item in job.items():
        if name in ("workload", "model"):
            continue
        if name == "cluster":
            found[name,] = (load_cluster(item), "")
        elif name in Serving.model_fields:
            found["workload", name] = (item, "")
        elif name in Engines.model_fields or name == "prefill":
            found["space", name] = (item, "")
        elif name in ServingPlan.model_fields:
            found[name,] = (item, "")
        else:
            known = [*ServingJob.__annotations__, "workload"]
            rule, hint = "is not a part of a serving job", suggest(name, known)
            raise InputError(rule, field=name, value=show(item), hint=hint)
    return found


def plan(job: Mapping[str, Any]) -> ServingPlan:
    """Check a job and put its presets in."""
    return read_serving_plan(None, values(job))


def sweep(*, progress: Progress | None = None, **job: Unpack[ServingJob]) -> ServingResult:
    """Find the best deployments of a job.

    Raises
    ------
    InputError
        With every problem of the job.

    Examples
    --------
    >>> from meshplan.serving.api import sweep
    >>> result = sweep(gpus=8, model="llama-3.1-70b", cluster="h100", backend="vllm", mode="agg",
    ...                isl=1024, osl=256, tpot="50ms", top=3)
    >>> result.proof.holds, len(result.top)
    (True, 3)
    """
    from meshplan.serving import search

    model = load_model(job.get("model", DEFAULT_MODEL))
    return search.run(plan(job), model, progress=progress)


def evaluate(**job: Unpack[ServingJob]) -> Deployment:
    """Estimate one deployment: every axis takes one value.

    Axes that are not given are 1, there are no drafts, and flags are the backend's own.

    Examples
    --------
    >>> from meshplan.serving.api import evaluate
    >>> row = evaluate(gpus=8, model="llama-3.1-70b", cluster="h200", tp=8, concurrency=16,
    ...                isl=1024, osl=256)
    >>> row.status, row.concurrency
    ('ok', 16)
    """
    return explain(**job).row


def explain(*, neighbours: bool = False, **job: Unpack[ServingJob]) -> Told:
    """Explain one deployment: terms, memory, latencies; and its better neighbours if asked for."""
    from meshplan.serving import evaluate as one

    model = load_model(job.get("model", DEFAULT_MODEL))
    checked = read_serving_plan(None, one.pinned(values(job)), one.EVALUATED)
    return one.explain(checked, model, neighbours=neighbours)
