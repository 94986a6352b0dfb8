"""Terms of a decode step, and of the experts that a batch wakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from . import exchange
from .operators import Experts, core, experts, matrices, operators
from .side import Json, Side, join, stored_bytes

TERMS = (
    *("projections", "core", "dense", "experts", "shared", "head"),
    *("exchange", "operators", "host", "draft"),
)


def erfc(x: float) -> float:
    """Complement of the error function to 1.2e-7 (Press et al., Numerical Recipes, `erfcc`)."""
    t = 1 / (1 + abs(x) / 2)
    series = (
        *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
        *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
    )
    tail = t * math.exp(-x * x + sum(a * t**i for i, a in enumerate(series)))
    return tail if x >= 0 else 2 - tail


@lru_cache
def largest_normal(ranks: int) -> float:
    """Mean of the largest of so many standard normals: ∫ z R φ(z) Φ(z)^(R − 1) dz, by trapezoids.

    It is known at powers of two, and drawn straight between them over log₂ R.
    """
    place = math.log2(ranks)
    if not place.is_integer():
        low, high = 2 ** math.floor(place), 2 ** math.ceil(place)
        share = place - math.floor(place)
        return (1 - share) * largest_normal(low) + share * largest_normal(high)
    if ranks == 1:
        return 0.0
    step, total = 1 / 8, 0.0
    for i in range(-64, 81):
        z = i * step
        density = ranks * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        total += step * z * density * (erfc(-z / math.sqrt(2)) / 2) ** (ranks - 1)
    return total


def hottest(e: Experts, side: Side, tokens: float) -> tuple[float, float]:
    """Experts that are awake and rows to multiply on the rank with most.

    Popularities of experts are gamma distributed around their mean; without spread, an expert
    sleeps through n tokens with probability (1 − k/E)ⁿ.
    """
    ranks = side.engine["ep"]
    z = largest_normal(ranks)
    awake, rows = even(e, side, tokens)
    awake += z * math.sqrt(max(awake * (1 - awake / e.local), 0))
    # Beyond the mean by its share of the tokens, and by chance.
    share = rows * (side.job["routing"]["imbalance"] - 1)
    chance = z * math.sqrt(rows * (1 - 1 / ranks))
    return min(awake, e.local), rows + math.sqrt(share**2 + chance**2)


def even(e: Experts, side: Side, tokens: float) -> tuple[float, float]:
    """The same on a rank that has its even share."""
    spread = side.job["routing"]["popularity_spread"]
    met = -tokens * math.log(1 - min(e.top_k / e.all, 1 - 1e-12))
    asleep = (1 + spread * met) ** (-1 / spread) if spread > 1e-6 else math.exp(-met)
    return e.local * (1 - asleep), tokens * e.top_k / side.engine["ep"]


Ranked = Callable[[Experts, Side, float], tuple[float, float]]


def imbalance(
    side: Side, tokens: float, seconds: Callable[[Experts, float, float], float]
) -> dict[str, float]:
    """The fullest expert rank beyond an even one, over all layers; ratio and experts of the first."""
    model = side.job["model"]
    kinds = [model["kinds"][number] for number in model["layers"]]
    layers = [found for found in (experts(kind, side) for kind in kinds) if found]
    if not layers:
        return {"rows_ratio": 1.0, "active_experts": 0.0, "beyond_s": 0.0}
    # Of the kinds of layers, the first that is used.
    used = set(model["layers"])
    firsts = (experts(kind, side) for i, kind in enumerate(model["kinds"]) if i in used)
    first = next(found for found in firsts if found)
    awake, rows = hottest(first, side, tokens)

    def total(ranked: Ranked) -> float:
        return sum(seconds(e, *ranked(e, side, tokens)) for e in layers)

    return {
        "rows_ratio": rows / even(first, side, tokens)[1],
        "active_experts": awake,
        "beyond_s": total(hottest) - total(even),
    }


def step_imbalance(side: Side, sequences: float) -> dict[str, float]:
    """The same in a step of so many requests of the engine."""
    stage = max(sequences / side.engine["pp"], min(sequences, 1.0))
    tokens = stage * (1 + side.engine["spec_tokens"])

    def seconds(e: Experts, awake: float, rows: float) -> float:
        reading = awake * e.elements * stored_bytes(e.dtype) / side.expert_bandwidth(e.dtype)
        multiplying = 2 * e.elements * rows / side.decode_flops(e.dtype, "expert")
        return join(reading, multiplying) + rows * side.expert_row_s(e.width)

    return imbalance(side, tokens, seconds)


def head(side: Side) -> float:
    """Elements of the LM head on one GPU, in 16 bits."""
    model = side.job["model"]
    return model["hidden"] * model["vocab"] / side.t


def terms(side: Side, sequences: float, context: float) -> dict[str, float]:
    """Terms of a step that gives `sequences` requests of the engine a token each."""
    model = side.job["model"]
    return step(side, [model["kinds"][k] for k in model["layers"]], sequences, context)


def step(
    side: Side, layers: list[Json], sequences: float, context: float, extra: float = 0.0
) -> dict[str, float]:
    """The same for some layers, with `extra` elements in 16 bits beside them."""
    drafts = side.engine["spec_tokens"]
    # Stages work on shares of the batch in turn; the busiest replica has one request at least.
    stage = max(sequences / side.engine["pp"], min(sequences, 1.0))
    own = max(stage / side.replicas, min(stage, 1.0))
    tokens = own * (1 + drafts)
    term = dict.fromkeys(TERMS, 0.0)
    read: dict[str, float] = {}
    multiply: dict[str, float] = {}

    def pass_through(group: str, elements: float, dtype: str) -> None:
        bandwidth = side.weight_bandwidth(dtype)
        read[group] = read.get(group, 0.0) + elements * stored_bytes(dtype) / bandwidth
        flops = 2 * elements * tokens
        multiply[group] = multiply.get(group, 0.0) + flops / side.decode_flops(dtype)

    pass_through("head", head(side), "bf16")
    pass_through("unquantised", extra, "bf16")
    for kind in layers:
        for matrix in matrices(kind, side):
            pass_through(*matrix)
        found = experts(kind, side)
        if found:
            awake, rows = hottest(found, side, stage * (1 + drafts))
            size = found.elements * stored_bytes(found.dtype)
            reading = awake * size / side.expert_bandwidth(found.dtype)
            flops = 2 * found.elements * rows
            term["experts"] += join(reading, flops / side.decode_flops(found.dtype, "expert"))
            term["experts"] += rows * side.expert_row_s(found.width)
        if kind["mixer"]:
            term["core"] += own * one_core(kind, side, context)
        term["operators"] += operators(kind, side) * operator_s(side)
        fixed_s, token_s = exchange.layer(kind, found, side)
        term["exchange"] += fixed_s + token_s * tokens
        if kind["mixer"]:
            fixed_s, token_s = exchange.context_ranks(core(kind, side), side)
            term["exchange"] += fixed_s + token_s * tokens
    for group, time in read.items():
        name = "projections" if group == "unquantised" else group
        term[name] += join(time, multiply[group])
    term["exchange"] += exchange.pipeline_s(side)
    term["host"] = side.software["step_s"] + side.software["sequence_s"] * own
    if drafts:
        term["draft"] = drafts * (
            side.software["draft_s"] + draft_layer_s(side, sequences, context)
        )
    return term


def operator_s(side: Side) -> float:
    return side.software["operator_s"] * side.hardware["operator_ratio"]


def one_core(kind: Json, side: Side, context: float) -> float:
    """Attention of one sequence, drafts included, in one layer."""
    c, verified = core(kind, side), 1 + side.engine["spec_tokens"]
    rate = side.hardware["latent_rate" if c.latent else "gemm_rate"] * side.peak("bf16")
    kv = side.kv_bandwidth
    key_s = join(c.key_bytes / kv, verified * c.key_flops / rate)
    index_s = join(c.index_bytes / kv, verified * c.index_flops / rate)
    state_s = verified * c.state_bytes / kv
    return min(context, c.span) * key_s + context * index_s + state_s


def draft_layer_s(side: Side, sequences: float, context: float) -> float:
    """The model's own prediction head, without host time; 0 where it has none."""
    model: dict[str, Any] = side.job["model"]
    if not model["mtp"]:
        return 0.0
    first = model["mtp"][0]
    alone = side.with_engine(spec_tokens=0, pp=1)
    kind, extra = model["kinds"][first["kind"]], first["projection_params"]
    one = step(alone, [kind], sequences, context, extra)
    return sum(one.values()) - one["host"]
