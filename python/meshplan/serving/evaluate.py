"""One deployment: every term, what limits it, and what its neighbours do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import meshplan._core as _core
from meshplan.errors import Infeasible, InputError
from meshplan.request import experts_of
from meshplan.serving import request
from meshplan.serving.result import Deployment, chances
from meshplan.specs.base import build, problem_at
from meshplan.specs.engines import Engines, ServingSpace
from meshplan.specs.serving import DEFINITION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshplan._core import Frame
    from meshplan.hf import ModelSpec
    from meshplan.specs.serving_plan import ServingPlan
    from meshplan.specs.toml import Path

EVALUATED = request.EVALUATED

Values = dict["Path", tuple[Any, str]]


def pinned(values: Values) -> Values:
    """Values of a plan with what one deployment takes where nothing is said.

    Prefill engines are asked for by any axis of theirs; the GPUs are those that the engines need.
    """
    given = dict(values)
    split = any(path[:2] == ("space", "prefill") for path in given)
    if ("mode",) not in given:
        given["mode",] = ("disagg" if split else "agg", "")
    if str(given["mode",][0]) == "disagg" and ("space", "prefill", "workers") not in given:
        given["space", "prefill", "workers"] = (1, "")
    if ("backend",) not in given:
        given["backend",] = ("vllm", "")
    if ("gpus",) not in given:
        given["gpus",] = (_gpus(given), "")
    return given


def _gpus(given: Values) -> int:
    """GPUs of the engines; 1 where a value cannot be read, which its own check reports."""

    def whole(*path: str, default: int = 1) -> int:
        text = str(given.get(path, (default, ""))[0])
        return int(text) if text.isdecimal() and 0 < int(text) < 2**20 else default

    tp, pp = whole("space", "tp"), whole("space", "pp")
    gpus = whole("space", "workers") * tp * pp
    if str(given["mode",][0]) == "disagg":
        own = whole("space", "prefill", "tp", default=tp)
        own *= whole("space", "prefill", "pp", default=pp)
        gpus += whole("space", "prefill", "workers") * own
    return gpus


@dataclass(frozen=True)
class Change:
    """A better deployment that differs in one respect.

    Attributes
    ----------
    axes
        Axis → value there.
    row
        The other deployment.
    """

    axes: Mapping[str, Any]
    row: Deployment

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"axes": dict(self.axes), "row": self.row.to_dict()}


@dataclass(frozen=True)
class Told:
    """What is to be said of one deployment.

    Attributes
    ----------
    row
        Every term; only the deployment and its status where a rule is broken.
    refusal
        The rule that it breaks (``rule``, ``status``, ``text``, ``side``), if any.
    plan, model
        The job.
    played
        Requests that were played, and those that fit no cache.
    requests
        Every request as played, as an Arrow stream.
    better
        Better deployments that differ in one respect.
    chart
        Chart of the replay, where one was asked for.
    """

    row: Deployment
    refusal: Mapping[str, Any] | None
    plan: ServingPlan
    model: str
    played: tuple[int, int]
    requests: Frame = field(repr=False)
    better: tuple[Change, ...] = ()
    chart: Any = field(default=None, repr=False)

    def check(self) -> None:
        """Raise `Infeasible`, with the reason, unless the deployment runs and keeps its limits."""
        if self.refusal:
            rule = f"{self.refusal['status']}: {self.refusal['text']}"
            raise Infeasible(f"the deployment is not feasible: {rule}", hint="see planner explain")
        if not self.row.feasible:
            raise Infeasible(f"the deployment is not feasible: {self.reason}", hint=self._hint)

    @property
    def reason(self) -> str:
        """Why the deployment is not feasible, with numbers."""
        from meshplan.report.values import value

        row, work = self.row, self.plan.workload
        if row.status in ("ttft", "tpot"):
            at = "" if work.percentile == "mean" else f"_{work.percentile}"
            found = value("ttft_s", row[f"{row.status}{at}_s"])
            limit = value("ttft_s", getattr(work, row.status) * (1 - work.margin))
            which = "mean" if not at else work.percentile
            return f"{row.status.upper()} ({which}) {found} is above the limit of {limit}"
        if row.status == "rate":
            return f"more arrives than it serves ({row.requests_per_s:.3g} requests/s)"
        if row.kv_bytes <= 0:
            return f"weights and buffers need {value('x_bytes', -row.kv_bytes)} too much memory"
        return f"the cache holds {row.kv_tokens:,.0f} tokens, less than one request"

    @property
    def _hint(self) -> str:
        if self.row.status == "memory":
            return "use more GPUs an engine, narrower weights, or --kv-dtype fp8"
        return "planner sweep finds deployments that keep the limits"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "row": self.row.to_dict(),
            "refusal": dict(self.refusal) if self.refusal else None,
            "requests": {"played": self.played[0], "rejected": self.played[1]},
            "alternatives": [change.to_dict() for change in self.better],
            "definition": DEFINITION,
        }


def explain(
    plan: ServingPlan, model: ModelSpec, *, neighbours: bool = False, plot: bool = False
) -> Told:
    """Estimate the one deployment that a plan pins down.

    Parameters
    ----------
    plan, model
        The job.
    neighbours
        Also look for better deployments that differ in one respect.
    plot
        Also draw the replay, and the times against the load.

    Raises
    ------
    InputError
        When an axis has several values.
    """
    plan = settled(plan, model)
    with request.recorded(plan) as trace:
        text, requests = _core.serving_explain(request.request(plan, model, trace))
    answer = json.loads(text)
    names = [name for name, _, _ in _core.serving_columns()]
    values = answer["row"]
    if values is None:
        values = dict.fromkeys(names) | _stated(plan) | {"status": answer["refusal"]["status"]}
    else:
        values = {name: float("nan") if values[name] is None else values[name] for name in names}
        values |= chances(plan, values) if values["ttft_s"] > 0 else {}
    told = Told(
        row=Deployment(values),
        refusal=answer["refusal"],
        plan=plan,
        model=model.name,
        played=(answer["requests"], answer["rejected"]),
        requests=requests,
    )
    return _with(told, plan, model, neighbours=neighbours, plot=plot)


def _with(told: Told, plan: ServingPlan, model: ModelSpec, *, neighbours: bool, plot: bool) -> Told:
    from dataclasses import replace

    if neighbours:
        from meshplan.serving.neighbours import better

        told = replace(told, better=tuple(better(plan, model, told.row)))
    if plot and told.refusal is None:
        from meshplan.serving.plot import plot_deployment

        told = replace(told, chart=plot_deployment(told, model))
    return told


def _stated(plan: ServingPlan) -> dict[str, Any]:
    """Columns of the deployment that a plan pins down."""
    space = plan.space
    row: dict[str, Any] = {axis: space.pinned(axis) for axis in Engines.model_fields}
    if plan.mode == ("disagg",):
        own = {axis: space.prefill.pinned(axis) for axis in Engines.model_fields}
        row |= {f"prefill_{axis}": item for axis, item in own.items()}
    return row | {"backend": plan.backend[0], "mode": plan.mode[0], "gpus": plan.gpus}


def settled(plan: ServingPlan, model: ModelSpec) -> ServingPlan:
    """Plan whose open axes are what one deployment takes.

    Raises
    ------
    InputError
        When an axis has several values.
    """
    problems = []
    for path, space in ((("space",), plan.space), (("space", "prefill"), plan.space.prefill)):
        for axis in Engines.model_fields:
            if getattr(space, axis) is not None and space.pinned(axis) is None:
                rule, hint = "must be one value: one deployment is evaluated", "pin it, or sweep"
                problems.append(problem_at((*path, axis), "several", rule, hint, plan.origins))
    for name in ("backend", "mode", "precision", "kv_dtype"):
        if len(getattr(plan, name)) > 1:
            rule, hint = "must be one: one deployment is evaluated", "name one, or sweep"
            problems.append(problem_at((name,), "several", rule, hint, plan.origins))
    if problems:
        raise InputError.all_of(problems)
    return plan.model_copy(update={"space": _whole(plan, model)})


def _whole(plan: ServingPlan, model: ModelSpec) -> ServingSpace:
    """Space with every axis pinned."""
    split = plan.mode == ("disagg",)
    shared = {axis: plan.space.pinned(axis) for axis in Engines.model_fields}
    own = {axis: plan.space.prefill.pinned(axis) for axis in Engines.model_fields}
    own_decode = shared | {"pcp": 1} if split else shared
    decode = _engine(plan, model, own_decode, prefill=False)
    inherited = {k: v for k, v in shared.items() if k not in ("workers", "redundant_experts")}
    mixed = inherited | {axis: item for axis, item in own.items() if item is not None}
    prefill = _engine(plan, model, mixed, prefill=True) if split else {}
    return build(ServingSpace, {**decode, "prefill": prefill})


def _engine(
    plan: ServingPlan, model: ModelSpec, given: dict[str, Any], *, prefill: bool
) -> dict[str, Any]:
    from meshplan.validate.deployments import names

    facts = names()["backends"][plan.backend[0]]
    found = {k: v for k, v in given.items() if v is not None}
    for axis, item in EVALUATED.items():
        found.setdefault(axis, item)
    if prefill:
        found |= {"spec_tokens": 0, "dcp": 1}
    experts, dp = experts_of(model), found["attention_dp"]
    if found["ep"] == 1 and "moe_tp" in found and experts and found["tp"] % found["moe_tp"] == 0:
        found["ep"] = given.get("ep") or found["tp"] // found["moe_tp"]
    found.setdefault("moe_tp", max(1, found["tp"] // found["ep"]))
    ep = found["ep"]
    found.setdefault("redundant_experts", (ep - experts % ep) % ep if experts else 0)
    found.setdefault("block_tokens", facts["block_tokens"])
    found.setdefault("max_batch", _slots(plan, found))
    longest = plan.workload.isl or 1
    budget = max(int(facts["max_batched_tokens"]), found["max_batch"] if not prefill else 1)
    if plan.backend[0] == "trtllm":
        budget = max(budget, longest)
    found.setdefault("max_batched_tokens", -(-budget // found["block_tokens"])
                     * found["block_tokens"] * dp)  # fmt: skip
    return found


def _slots(plan: ServingPlan, engine: Mapping[str, Any]) -> int:
    """Slots of an engine where nothing is said: its share of the clients, or 256 a replica."""
    clients, dp = plan.workload.concurrency, int(engine["attention_dp"])
    if clients is None:
        return 256 * dp
    return max(dp, -(-clients // int(engine["workers"])))


def flags_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Flags that pin a row down."""
    said = {
        "--backend": row["backend"],
        "--mode": row["mode"],
        "--kv-dtype": row["kv_dtype"],
        "--replicas": row["workers"],
        "--tp": row["tp"],
        "--max-batch": row["max_batch"],
    }
    if row["prefill_workers"] == 0:
        said["--max-batched-tokens"] = row["max_batched_tokens"]
    else:
        said["--prefill-workers"] = row["prefill_workers"]
    usual = {"pp": 1, "attention_dp": 1, "pcp": 1, "ep": 1, "dcp": 1, "spec_tokens": 0}
    for axis, item in usual.items():
        if row[axis] != item:
            said["--" + axis.replace("_", "-")] = row[axis]
    said["--redundant-experts"] = row["redundant_experts"]
    if row["prefill_workers"]:
        for axis in ("tp", "pp", "attention_dp", "ep", "redundant_experts", "max_batched_tokens"):
            said["--prefill-" + axis.replace("_", "-")] = row[f"prefill_{axis}"]
        if row["prefill_pcp"] > 1:
            said["--prefill-pcp"] = row["prefill_pcp"]
    if row["concurrency"]:
        said["--concurrency"] = row["concurrency"]
    if not row["redundant_experts"]:
        del said["--redundant-experts"]
    return {flag: str(item) for flag, item in said.items()}
