"""What the GPUs of an engine send each other in a layer: latency, and seconds for each token."""

from __future__ import annotations

import math

from .operators import Core, Experts
from .side import Json, Side

ROUND_TRIP_BYTES = 1 + 2
"""Of an element: to its expert in 8 bits, back in 16."""


def all_reduce(side: Side, t: int) -> tuple[float, float]:
    """Of a hidden vector in 16 bits over so many ranks."""
    hidden = side.job["model"]["hidden"]
    if t == 1:
        return 0.0, 0.0
    bandwidth, extra_s = side.link(t)
    sent = 2 * (t - 1) / t * hidden * 2
    return side.latency_s(side.all_reduce_s, t) + extra_s, sent / bandwidth


def distinct_ranks(e: Experts, ranks: int) -> float:
    """Ranks that a token's experts lie on: Σ 1 − C(E − m, k)/C(E, k), m experts on each."""
    sizes = [e.all // ranks + (rank < e.all % ranks) for rank in range(ranks)]
    every = math.comb(e.all, e.top_k)
    return sum(1 - math.comb(e.all - here, e.top_k) / every for here in sizes)


def to_experts(e: Experts, side: Side) -> tuple[float, float]:
    """Dispatch and combine between attention replicas: a GPU sends its own tokens."""
    engine = side.engine
    bandwidth, extra_s = side.link(engine["tp"])
    one_s = side.latency_s(side.all_reduce_s * side.software["all_to_all_ratio"], engine["tp"])
    gpus = engine["ep"] * engine["moe_tp"]
    copies = distinct_ranks(e, engine["ep"]) * engine["moe_tp"] * (1 - 1 / gpus)
    return 2 * (one_s + extra_s), copies * e.width * ROUND_TRIP_BYTES / bandwidth


def layer(
    kind: Json, found: Experts | None, side: Side, *, prompts: bool = False
) -> tuple[float, float]:
    """Exchanges after the mixer and after the feed-forward, of a step or of a pass over prompts.

    Prefill context ranks have tokens of their own in a pass, and the same ones in a step.
    """
    parts = []
    if kind["mixer"]:
        parts.append(all_reduce(side, side.t))
    if kind["feed_forward"] and found and (side.replicas > 1 or (prompts and side.parts > 1)):
        parts.append(to_experts(found, side))
    elif kind["feed_forward"]:
        whole = found is not None and side.parts > 1
        parts.append(all_reduce(side, side.engine["tp"] if whole else side.t))
    return sum(p[0] for p in parts), sum(p[1] for p in parts)


def keys_of_a_prompt(c: Core, side: Side) -> float:
    """Seconds for each token of a GPU to receive the keys of the other prefill context ranks."""
    return (side.parts - 1) * c.gathered_bytes / side.link(side.engine["tp"])[0]


def context_ranks(c: Core, side: Side) -> tuple[float, float]:
    """Decode context ranks: gather queries, gather sums of the softmax, reduce-scatter values."""
    ranks = side.engine["dcp"]
    if ranks == 1 or not c.head_elements:
        return 0.0, 0.0
    bandwidth, extra_s = side.link(ranks)
    sent = (ranks - 1) * c.head_elements * 2
    return 3 * (side.latency_s(side.all_reduce_s, ranks) + extra_s), sent / bandwidth


def pipeline_s(side: Side) -> float:
    """Sends between the stages that a token passes."""
    if side.engine["pp"] == 1:
        return 0.0
    return (side.engine["pp"] - 1) * (side.all_reduce_s + side.link(side.gpus)[1])
