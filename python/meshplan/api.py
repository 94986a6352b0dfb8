"""The planner in Python: the same questions as on the command line, with typed answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import meshplan._core as _core
from meshplan.bands import band
from meshplan.errors import InputError
from meshplan.estimate import Estimate, Explanation
from meshplan.hf import load_model
from meshplan.request import EVALUATED, question
from meshplan.specs import presets
from meshplan.specs.base import show, suggest
from meshplan.specs.cluster import Cluster
from meshplan.specs.plan import DEFAULT_MODEL, Plan
from meshplan.specs.reading import load_cluster, read_plan
from meshplan.specs.serving_plan import is_serving
from meshplan.specs.software import load_software

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Required, Unpack

    from meshplan.hf import ModelSpec
    from meshplan.result import Result
    from meshplan.search import Progress
    from meshplan.serving.api import ServingJob
    from meshplan.serving.evaluate import Told
    from meshplan.serving.result import Deployment, ServingResult
    from meshplan.specs.serving import Serving
    from meshplan.specs.toml import Path
    from meshplan.specs.training import Training

    ModelSource = str | os.PathLike[str] | Mapping[str, Any] | ModelSpec
    ClusterSource = str | Mapping[str, Any] | Cluster
    Axis = int | str | list[int] | tuple[int, ...]
    Names = str | list[str] | tuple[str, ...]


class Job(TypedDict, total=False):
    """What a question is about; everything but `gpus` has a default.

    Axes take one value (``8``), several (``[1, 2, 4]``) or bounds (``"1..8"``).
    """

    gpus: Required[int]
    """GPUs of the job."""
    model: ModelSource
    """Preset, path of a ``config.json``, its parsed content, or a loaded model."""
    cluster: ClusterSource
    """Preset, path of a TOML file, a description, or a `Cluster`."""
    workload: Training | Mapping[str, Any]
    """What is trained."""
    framework: str
    """Whose rules hold: ``generic``, ``megatron``, ``torchtitan`` or ``deepspeed``."""
    framework_version: str
    """Release whose costs hold."""
    top: int
    """Best layouts to keep."""
    threads: int
    """Threads of a search; 0: one per core."""
    exhaustive: bool
    """Skip nothing by bounds."""
    rank: str
    """Order of the best layouts: ``time``, or ``upper`` (time · (1 + error q90))."""
    tp: Axis
    pp: Axis
    dp: Axis
    cp: Axis
    ep: Axis
    etp: Axis
    vpp: Axis
    micro_batch: Axis
    recompute: Names
    recompute_layers: Axis
    sharding: Names
    shard_group: Axis
    schedule: Names
    sequence_parallel: bool | str


_OWN = frozenset(
    ("gpus", "workload", "framework", "framework_version", "top", "threads", "exhaustive", "rank")
)


def plan(**job: Unpack[Job]) -> Plan:
    """Check a job and put its presets in.

    Raises
    ------
    InputError
        With every problem of the job.

    Examples
    --------
    >>> import meshplan as mp
    >>> mp.plan(gpus=64, cluster="h100", tp="1..8").space.tp
    (1, 8)
    """
    return read_plan(None, _values(job))


def _values(job: Job) -> dict[Path, tuple[Any, str]]:
    """Values of a plan by path, as flags give them too."""
    values: dict[Path, tuple[Any, str]] = {}
    for name, value in job.items():
        if name not in Job.__annotations__:
            hint = suggest(name, list(Job.__annotations__))
            raise InputError("is not a part of a job", field=name, value=show(value), hint=hint)
        if name == "model":
            continue
        if name == "cluster":
            values[name,] = (load_cluster(value), "")  # type: ignore[arg-type]
        elif name == "workload":
            values[name,] = (_plain(value), "")
        else:
            values[(name,) if name in _OWN else ("space", name)] = (value, "")
    return values


def _plain(workload: Any) -> Any:
    """Workload as a table: only what was set, so that defaults stay those of the framework."""
    if hasattr(workload, "model_dump"):
        return workload.model_dump(exclude_unset=True)
    return workload


@overload
def evaluate(**job: Unpack[Job]) -> Estimate: ...
@overload
def evaluate(
    *, workload: Literal["serving"] | Serving, **job: Unpack[ServingJob]
) -> Deployment: ...
def evaluate(**job: Any) -> Estimate | Deployment:
    """Estimate one layout: every axis takes one value.

    Axes that are not given are 1; the sharding is ZeRO-1, nothing is recomputed, dp is what the
    other degrees leave. With ``workload="serving"`` or a `Serving`, one deployment.

    Returns
    -------
    Estimate
        Every term. A layout that is not feasible has a status other than ``ok``.

    Raises
    ------
    InputError
        With every problem of the job.

    Examples
    --------
    >>> import meshplan as mp
    >>> row = mp.evaluate(model="llama-3.1-70b", cluster="h100", gpus=64, tp=8, pp=4)
    >>> row.dp, row.status
    (2, 'ok')
    """
    if is_serving(None, job.get("workload")):
        from meshplan.serving import api

        return api.evaluate(**job)
    told: Explanation = explain(**job)
    return told.row


@overload
def explain(**job: Unpack[Job]) -> Explanation: ...
@overload
def explain(*, workload: Literal["serving"] | Serving, **job: Unpack[ServingJob]) -> Told: ...
def explain(**job: Any) -> Explanation | Told:
    """Explain one layout: its terms, rank groups and stages; serving: one deployment.

    Raises
    ------
    InputError
        With every problem of the job.
    """
    if is_serving(None, job.get("workload")):
        from meshplan.serving import api

        return api.explain(**job)
    model = load_model(job.get("model", DEFAULT_MODEL))
    return judge(read_plan(None, _values(cast("Job", job)), EVALUATED), model)


def judge(checked: Plan, model: ModelSpec) -> Explanation:
    """Explain the one layout that a checked plan pins down."""
    answer = json.loads(_core.explain(question(checked, model)))
    names = [name for name, _, _ in _core.training_columns()]
    software = load_software(checked.framework, checked.framework_version).name
    architecture = checked.cluster.device.architecture
    return Explanation.of(answer, names, lambda row: band(software, architecture, row))


def columns() -> list[tuple[str, str, str]]:
    """Name, unit and meaning of every column of the table of layouts."""
    return _core.training_columns()


def models() -> list[str]:
    """Names of the built-in models.

    Examples
    --------
    >>> import meshplan as mp
    >>> "llama-3.1-70b" in mp.models()
    True
    """
    from meshplan.hf.presets import table

    return list(table())


def clusters() -> list[str]:
    """Names of the built-in clusters.

    Examples
    --------
    >>> import meshplan as mp
    >>> "h100" in mp.clusters()
    True
    """
    return presets.names()


@overload
def sweep(*, progress: Progress | None = None, **job: Unpack[Job]) -> Result: ...
@overload
def sweep(
    *,
    workload: Literal["serving"] | Serving,
    progress: Progress | None = None,
    **job: Unpack[ServingJob],
) -> ServingResult: ...
def sweep(*, progress: Progress | None = None, **job: Any) -> Result | ServingResult:
    """Find the best layouts of a job, or with ``workload="serving"`` its best deployments.

    Parameters
    ----------
    progress
        Called some times a second with the layouts done and the layouts in all.
    **job
        The job; see `Job`.

    Returns
    -------
    Result
        The best layouts, the Pareto front, what was rejected, and the proof.

    Raises
    ------
    InputError
        With every problem of the job.

    Examples
    --------
    >>> import meshplan as mp
    >>> result = mp.sweep(gpus=64, model="llama-3.1-70b", cluster="h100", top=3)
    >>> result.proof.holds, len(result.top)
    (True, 3)
    """
    if is_serving(None, job.get("workload")):
        from meshplan.serving import api

        return api.sweep(progress=progress, **job)
    from meshplan import search

    model = load_model(job.get("model", DEFAULT_MODEL))
    return search.run(plan(**job), model, progress=progress)
