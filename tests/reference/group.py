"""Data parallelism: traffic, optimizer step, and the memory that no micro-batch changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import hardware as hw
from .stages import Stage, StageParams, padded_vocab, stage_params


@dataclass
class Static:
    """Bytes of one stage."""

    weights: float
    gradients: float
    optimizer: float


@dataclass
class Traffic:
    """Seconds of one stage."""

    gather: float = 0.0
    reduce: float = 0.0
    replica: float = 0.0
    optimizer: float = 0.0


def data_groups(job: dict[str, Any]) -> tuple[hw.Group, hw.Group]:
    """Ranks that hold the same dense parameters (dp·cp), and the same experts."""
    cluster, lay, world = job["cluster"], job["layout"], job["gpus"]
    tp, cp, pp, width = lay["tp"], lay["cp"], lay["pp"], lay["ep"] * lay["etp"]
    dense, expert = world / (tp * pp), world / (width * pp)
    if job["training"]["pipeline_outermost"]:
        return hw.group(cluster, dense, tp), hw.group(cluster, expert, width)
    inner = hw.group(cluster, cp, tp)
    outer = hw.group(cluster, dense / cp, tp * cp * pp)
    span = outer.extent + inner.extent - 1
    joined = hw.Group(dense, inner.per_domain * outer.per_domain, span)
    return joined, hw.group(cluster, expert, width * pp)


def stage_stride(job: dict[str, Any]) -> float:
    lay = job["layout"]
    if job["training"]["pipeline_outermost"]:
        return float(job["gpus"] / lay["pp"])
    return float(lay["tp"] * lay["cp"])


def shards(job: dict[str, Any], dense: hw.Group, expert: hw.Group) -> tuple[float, float]:
    lay = job["layout"]
    if lay["sharding"] == "none":
        return 1.0, 1.0
    if lay["sharding"] == "hsdp":
        return min(lay["shard_group"], dense.ranks), min(lay["shard_group"], expert.ranks)
    return dense.ranks, expert.ranks


def split_group(g: hw.Group, size: float) -> tuple[hw.Group, hw.Group]:
    """Shard groups of neighbouring ranks, and the replicas across them."""
    size = min(size, g.ranks)
    replicas = g.ranks / size
    stride = (g.extent - 1) / max(g.ranks - 1, 1)
    inner = hw.Group(size, min(g.per_domain, size), (size - 1) * stride + 1)
    inside = min(max(math.floor(g.per_domain / size), 1), replicas)
    return inner, hw.Group(replicas, inside, (replicas - 1) * size * stride + 1)


def traffic(job: dict[str, Any], p: StageParams) -> Traffic:
    """What one stage sends and how long its optimizer step takes."""
    cluster, training, software = job["cluster"], job["training"], job["software"]
    sharding = job["layout"]["sharding"]
    grad = hw.ELEMENT_BYTES[training["grad_dtype"]]
    param = hw.ELEMENT_BYTES[training["param_dtype"]]
    dense, expert = data_groups(job)
    shard_d, shard_e = shards(job, dense, expert)
    moved = 30 * (p.dense / shard_d + p.expert / shard_e) + 6 * (p.dense + p.expert)
    hbm = cluster["device"]["memory_bytes_per_s"]
    t = Traffic(optimizer=software["optimizer_ratio"] * moved / hbm)
    if sharding == "none":
        t.reduce = hw.collective_s(cluster, "all_reduce", p.dense * grad, dense)
        t.reduce += hw.collective_s(cluster, "all_reduce", p.expert * grad, expert)
        return t
    ratio = software["fsdp_time_ratio"] if sharding in {"zero3", "hsdp"} else 1.0
    outer = None
    if sharding == "hsdp":
        size = job["layout"]["shard_group"]
        (dense, outer_d), (expert, outer_e) = split_group(dense, size), split_group(expert, size)
        outer = (outer_d, outer_e)
    for element, name in ((grad, "reduce"), (param, "gather")):
        time = hw.collective_s(cluster, "gather", p.dense * element, dense)
        time += hw.collective_s(cluster, "gather", p.expert * element, expert)
        setattr(t, name, ratio * time)
    if outer:
        t.replica = hw.collective_s(cluster, "all_reduce", p.dense * grad / dense.ranks, outer[0])
        t.replica += hw.collective_s(
            cluster, "all_reduce", p.expert * grad / expert.ranks, outer[1]
        )
    return t


def static(job: dict[str, Any], p: StageParams) -> Static:
    """Weights, gradients and optimizer state of one stage."""
    training, software, lay = job["training"], job["software"], job["layout"]
    grad = hw.ELEMENT_BYTES[training["grad_dtype"]]
    weight = hw.ELEMENT_BYTES[training["param_dtype"]]
    shard_d, shard_e = shards(job, *data_groups(job))
    everything = p.dense + p.expert
    shard = p.dense / shard_d + p.expert / shard_e
    full = lay["sharding"] in {"zero3", "hsdp"}
    whole = lay["pp"] > 1 and software["pipeline_unshards"]
    grads = shard if full or lay["sharding"] == "zero2" else everything
    stored = 0.0 if full and software["shard_is_master"] else weight
    weights = stored * (shard if full else everything)
    gradients = grad * grads
    if full and whole:
        weights += weight * (everything - shard)
        gradients += grad * (everything - shard)
    elif full:
        weights += min(2 * p.largest, p.dense + p.expert) * weight
    gradients += software["unsharded_bytes_per_param"] * everything
    copies = 2 if lay["schedule"] == "dualpipe" else 1
    return Static(
        weights=copies * weights,
        gradients=copies * gradients,
        optimizer=training["optimizer_bytes_per_param"] * shard,
    )


def tied_embedding_s(job: dict[str, Any]) -> float:
    """Gradients of a tied table are summed over the first and the last stage."""
    lay, model = job["layout"], job["model"]
    if lay["pp"] == 1 or not model["tied_embeddings"]:
        return 0.0
    width = model["embedding_width"] or model["hidden"]
    size = padded_vocab(job) * width / lay["tp"]
    size *= hw.ELEMENT_BYTES[job["training"]["grad_dtype"]]
    ends = hw.group(job["cluster"], 2, stage_stride(job) * (lay["pp"] - 1))
    return hw.collective_s(job["cluster"], "all_reduce", size, ends)


def group_terms(
    job: dict[str, Any], stages: list[Stage], slow: tuple[float, float, float], m: int
) -> dict[str, float]:
    """Terms of a step that the data-parallel group decides.

    `slow` is forward, backward and whole micro-batch time of the slowest stage.
    """
    software, cluster, lay = job["software"], job["cluster"], job["layout"]
    each = [traffic(job, stage_params(job, stage)) for stage in stages]
    gather = max(t.gather for t in each)
    reduce = max(t.reduce for t in each)
    replica = max(t.replica for t in each) + tied_embedding_s(job)
    if lay["sharding"] != "none":
        gather += software["shard_broadcast_s"] * lay["shard_group"]
    barriers = 1.0 if lay["sharding"] == "none" else 2.0
    overlap = job["training"]["overlap"]["dp"]
    forward, backward, whole = slow
    full = lay["sharding"] in {"zero3", "hsdp"}
    if full and not (lay["pp"] > 1 and software["pipeline_unshards"]):
        sent = 2 * gather + reduce
        busy = whole + software["fsdp_contention_ratio"] * min(sent, whole)
        dp = m * ((busy**4 + sent**4) ** 0.25 - whole if overlap else sent)
        barriers = 3.0 * m
    else:
        times = m if lay["sharding"] == "zero2" else 1
        hide_g = software["gather_hidden_ratio"] * forward if overlap else 0.0
        hide_r = software["reduce_hidden_ratio"] * backward if overlap else 0.0
        dp = max(gather - hide_g, 0) + times * max(reduce - hide_r, 0)
    world = job["gpus"]
    late = -math.expm1(world * math.log1p(-cluster["delay_probability"]))
    wait = cluster["jitter_s"] * math.sqrt(2 * math.log(world)) + late * cluster["delay_s"]
    return {
        "dp_comm_s": dp + replica,
        "optimizer_s": max(t.optimizer for t in each),
        "step_overhead_s": software["step_s"],
        "straggler_s": barriers * wait,
    }
