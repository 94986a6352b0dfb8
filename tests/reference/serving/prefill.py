"""Terms of a pass over prompts."""

from __future__ import annotations

import math

from . import exchange
from .decode import head, hottest, imbalance
from .operators import Experts, core, experts, matrices, operators
from .side import Side, stored_bytes

GPU_TERMS = (
    *("projections", "core", "dense", "experts", "shared", "head"),
    *("exchange", "elementwise"),
)


def pairs(queries: float, past: float, span: float) -> float:
    """Σ over queries of the keys that each sees, in the limit of many: ∫ min(past + x, span) dx."""
    if past + queries <= span:
        return queries * past + queries**2 / 2
    free = max(span - past, 0.0)
    return free * past + free**2 / 2 + (queries - free) * span


def terms(side: Side, tokens: float, prompts: float, past: float) -> dict[str, float]:
    """Terms of a pass over `tokens` new tokens of `prompts`, each with `past` computed before.

    `launch` is what launching the kernels adds to the time of the GPU.
    """
    model = side.job["model"]
    prompts = max(prompts, 1.0)
    queries = tokens / prompts
    # A prompt is not cut over attention replicas, but over context ranks.
    own = max(tokens / side.replicas, queries) / side.parts
    own_prompts = own / queries
    term = dict.fromkeys(GPU_TERMS, 0.0)
    read: dict[str, float] = {}
    multiply: dict[str, float] = {}

    def pass_through(group: str, elements: float, dtype: str, rows: float = own) -> None:
        bandwidth, rate = side.weight_bandwidth(dtype), side.prefill_flops(dtype, "gemm")
        read[group] = read.get(group, 0.0) + elements * stored_bytes(dtype) / bandwidth
        multiply[group] = multiply.get(group, 0.0) + 2 * elements * rows / rate

    pass_through("head", head(side), "bf16", own_prompts)
    launches = 0.0
    for number in model["layers"]:
        kind = model["kinds"][number]
        for matrix in matrices(kind, side):
            pass_through(*matrix)
        found = experts(kind, side)
        if found:
            awake, rows = hottest(found, side, tokens)
            size = found.elements * stored_bytes(found.dtype)
            rate = side.prefill_flops(found.dtype, "expert")
            reading = awake * size / side.expert_bandwidth(found.dtype)
            term["experts"] += math.hypot(reading, 2 * found.elements * rows / rate)
            term["experts"] += rows * side.expert_row_s(found.width)
        if kind["mixer"]:
            c, rate = core(kind, side), side.prefill_flops("bf16", "attention")
            flops = pairs(queries, past, c.span) * c.pair_flops
            flops += pairs(queries, past, math.inf) * c.index_flops
            term["core"] += (own_prompts * flops + own * c.token_flops) / rate
            term["exchange"] += exchange.keys_of_a_prompt(c, side) * own
        term["exchange"] += exchange.layer(kind, found, side, prompts=True)[1] * own
        passes = side.hardware["elementwise_passes"]
        term["elementwise"] += own * passes * model["hidden"] * 2 / side.hbm
        launches += operators(kind, side) * side.software["launch_s"]
    for group, time in read.items():
        name = "projections" if group == "unquantised" else group
        term[name] += math.hypot(time, multiply[group])
    gpu = sum(term.values())
    return term | {
        "launch": math.hypot(gpu, launches) - gpu,
        "host": side.software["pass_s"],
    }


def time_s(side: Side, tokens: float, prompts: float, past: float) -> float:
    return sum(terms(side, tokens, prompts, past).values())


def pass_imbalance(side: Side, tokens: float) -> dict[str, float]:
    """The fullest expert rank of a pass beyond an even one."""

    def seconds(e: Experts, awake: float, rows: float) -> float:
        reading = awake * e.elements * stored_bytes(e.dtype) / side.expert_bandwidth(e.dtype)
        rate = side.prefill_flops(e.dtype, "expert")
        multiplying = 2 * e.elements * rows / rate
        return math.hypot(reading, multiplying) + rows * side.expert_row_s(e.width)

    return imbalance(side, tokens, seconds)
