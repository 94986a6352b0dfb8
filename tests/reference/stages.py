"""Which layers sit on which stage, and the parameters of a stage on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import params


@dataclass
class Stage:
    """One pipeline stage: kinds of its layers in order, and whether it holds the ends."""

    layers: list[int]
    first: bool
    last: bool


def stages_of(model: dict[str, Any], p: int, v: int) -> list[Stage]:
    """Layers of each stage: chunk c sits on stage c mod p.

    Each chunk has as many layers as divide evenly; the rest goes one by one to the chunks between
    the first and the last, then to these two.
    """
    chunks = p * v
    sizes = [len(model["layers"]) // chunks] * chunks
    rest = len(model["layers"]) % chunks
    order = [*range(1, chunks - 1), 0, chunks - 1]
    for chunk in order[:rest]:
        sizes[chunk] += 1
    stages = [Stage([], i == 0, i == p - 1) for i in range(p)]
    start = 0
    for chunk, size in enumerate(sizes):
        stages[chunk % p].layers += model["layers"][start : start + size]
        start += size
    return stages


def padded_vocab(job: dict[str, Any]) -> int:
    multiple = max(job["training"]["vocab_multiple"], 1) * job["layout"]["tp"]
    return int(math.ceil(job["model"]["vocab"] / multiple) * multiple)


@dataclass
class StageParams:
    """On one rank: outside routed experts, in them, and the largest layer of both together."""

    dense: float = 0.0
    expert: float = 0.0
    largest: float = 0.0

    def add(self, kind: dict[str, Any], job: dict[str, Any]) -> None:
        outside, experts = params.on_rank(kind, job["model"]["hidden"], job["layout"])
        self.dense += outside
        self.expert += experts
        self.largest = max(self.largest, outside + experts)


def stage_params(job: dict[str, Any], stage: Stage) -> StageParams:
    model, tp = job["model"], job["layout"]["tp"]
    total = StageParams()
    for kind in stage.layers:
        total.add(model["kinds"][kind], job)
    width = model["embedding_width"] or model["hidden"]
    table = padded_vocab(job) * width / tp
    if stage.first:
        total.dense += table + model["embedding_extra_params"]
        total.dense += model["learned_positions"] * model["hidden"]
    if stage.last:
        if not (model["tied_embeddings"] and stage.first):
            total.dense += table
        total.dense += model["final_norm_params"] + model["head_extra_params"]
        if job["training"]["mtp"]:
            for head in model["mtp"]:
                total.add(model["kinds"][head["kind"]], job)
                total.dense += head["projection_params"] / tp
    return total
