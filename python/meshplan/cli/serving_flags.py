"""The flags of ``--workload serving``, declared once; training knows none of them but the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.cli.flags import AXES, JOB, SEARCH, Flag, Given
from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from meshplan.specs.toml import Path

WORKLOAD = Flag("--workload", (), "training (default) or serving.", "KIND")

_REQUESTS = "Serving: requests and limits"
_ENGINES = "Serving: engines"
_SPACE = "Serving: space"


def _work(name: str, text: str, metavar: str) -> Flag:
    return Flag(f"--{name}", ("workload", name.replace("-", "_")), text, metavar, panel=_REQUESTS)


def _engine(name: str, text: str, metavar: str) -> Flag:
    return Flag(f"--{name}", (name.replace("-", "_"),), text, metavar, panel=_ENGINES)


def _axis(name: str, text: str, *path: str) -> Flag:
    own: Path = path or (name.replace("-", "_"),)
    return Flag(f"--{name}", ("space", *own), text, "N", panel=_SPACE)


def _prefill(name: str, text: str) -> Flag:
    return _axis(f"prefill-{name}", text, "prefill", name.replace("-", "_"))


ONLY = (
    _work("isl", "Tokens of the longest prompt.", "TOKENS"),
    _work("osl", "Tokens of the longest answer.", "TOKENS"),
    _work("low", "Shortest over longest length (0.8).", "RATIO"),
    _work("concurrency", "Clients; otherwise as many as the limits allow.", "N"),
    _work("rate", "Requests that arrive on their own, such as 200/s.", "RATE"),
    _work("cv", "Spread of their gaps over the mean (1: Poisson).", "RATIO"),
    _work("trace", "File of recorded requests.", "FILE"),
    _work("prefix-hit", "Share of prompt tokens that are cached.", "SHARE"),
    _work("acceptance", "Probability that a draft token is accepted.", "SHARE"),
    _work("ttft", "Longest time to first token, such as 2s.", "TIME"),
    _work("tpot", "Longest time per output token, such as 50ms.", "TIME"),
    _work("percentile", "Limits are on: mean (default), p50, p90, p99.", "WHICH"),
    _work("margin", "Share of a limit to keep free.", "SHARE"),
    _engine("backend", "vllm, sglang, trtllm; all if nothing follows.", "NAME"),
    _engine("mode", "agg, disagg.", "NAME"),
    _engine("kv-dtype", "Cache: auto (16 bits), bf16, fp8, nvfp4.", "FORMAT"),
    _engine("recv-interval", "Decode steps between looks at the queue (SGLang).", "N"),
    _engine("memory-share", "Share of memory for weights and cache.", "SHARE"),
    _engine("serving-params", "Numbers of your own (planner calibrate --serving).", "FILE"),
    _engine("objective", "throughput (per GPU), cost, gpus (fewest for a rate).", "NAME"),
    _engine("price", "Price of a GPU-hour.", "PRICE"),
    _axis("attention-dp", "Attention replicas inside tp."),
    _axis("pcp", "Prefill context parallelism inside tp (1 unless given)."),
    _axis("moe-tp", "Tensor parallelism inside an expert; ep · moe-tp = tp."),
    _axis("dcp", "Decode context parallelism."),
    _axis("max-batch", "Request slots of an engine."),
    _axis("max-batched-tokens", "Token budget of a step of an engine."),
    _axis("block-tokens", "Tokens in a KV block."),
    _axis("spec-tokens", "Draft tokens; 0: none."),
    _axis("redundant-experts", "Copies of experts."),
    _axis("replicas", "Engines; disaggregated: those that decode.", "workers"),
    _prefill("workers", "Engines that only prefill."),
    _prefill("tp", "The same axes for engines that only prefill …"),
    _prefill("pp", "…"),
    _prefill("attention-dp", "…"),
    _prefill("pcp", "…"),
    _prefill("ep", "…"),
    _prefill("redundant-experts", "…"),
    _prefill("max-batched-tokens", "…"),
)
"""Flags that serving alone has."""

PLOT = Flag("--plot", (), "Serving: chart as .png, .svg or .html.", "FILE", panel="Output")

_HERE: dict[str, Path] = {
    **{name: (name,) for name in ("gpus", "model", "cluster", "top", "output", "threads")},
    "exhaustive": ("exhaustive",),
    "precision": ("precision",),
    "routing": ("workload", "routing"),
    **{name: ("space", name) for name in ("tp", "pp", "ep")},
}
"""Flags that both workloads have → value of a serving plan."""

SHARED = tuple(
    Flag(flag.name, _HERE[flag.parameter], flag.text, flag.metavar, flag.switch, flag.panel)
    for flag in (*JOB, *AXES, *SEARCH)
    if flag.parameter in _HERE
)

FLAGS = (*SHARED, *ONLY)
"""Flags that set a value of a serving plan."""

_ALWAYS = {"config", "json", "workload", "folder", "to"}


def refuse_others(given: Given, *, serving: bool) -> None:
    """Refuse flags of the other workload, all at once.

    Raises
    ------
    InputError
        With every such flag.
    """
    own = {flag.parameter for flag in FLAGS} | _ALWAYS | {"plot"}
    foreign = [flag for flag in ONLY if flag.parameter in given]
    foreign += [PLOT] if "plot" in given else []
    if serving:
        both = (*JOB, *AXES, *SEARCH)
        foreign = [f for f in both if f.parameter in given and f.parameter not in own]
        foreign = [f for f in foreign if f.parameter != "rank" or "to" not in given]
    wanted, here = ("training", "serving") if serving else ("serving", "training")
    problems = [
        Problem(
            f"is a flag of --workload {wanted}",
            field=flag.name,
            value=str(given[flag.parameter]),
            hint=f"drop it: this job is {here}"
            if serving
            else "add --workload serving, or drop it",
        )
        for flag in foreign
    ]
    if problems:
        raise InputError.all_of(problems)
