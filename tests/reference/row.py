"""The row: every column of the training table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import group, hardware, stages, work
from .layer import TERMS, Unit, layer_unit, split_of, unit


@dataclass
class StageTime:
    """One micro-batch on one stage."""

    forward: dict[str, float]
    backward: dict[str, float]
    again: dict[str, float]
    weight_gradient: float
    activation_bytes: float
    working_bytes: float
    again_flops: float


def total(terms: dict[str, float], ep_share: float) -> float:
    return sum(terms[name] for name in TERMS[:-1]) + ep_share * terms["ep"]


def add(into: dict[str, float], terms: dict[str, float]) -> None:
    for name in TERMS:
        into[name] += terms[name]


def in_flight(lay: dict[str, Any], i: int, m: int) -> float:
    """Micro-batches that stage i holds, in stage-equivalents (docs/pipeline.md)."""
    p, v = lay["pp"], lay["vpp"]
    counts = {
        "gpipe": m,
        "1f1b": p - i,
        "zb-h1": p - i,
        "interleaved": (2 * (p - i - 1) + (v - 1) * p + 1) / v,
        "dualpipe": p + 1,
    }
    return float(min(counts[lay["schedule"]], m))


def evaluate(job: dict[str, Any]) -> dict[str, Any]:
    """Every column of one layout."""
    lay, training, software = job["layout"], job["training"], job["software"]
    m = training["global_batch"] // (lay["micro_batch"] * lay["dp"])
    every = stages.stages_of(job["model"], lay["pp"], lay["vpp"])
    ends = end_units(job)
    kinds = [layer_unit(kind, job) for kind in job["model"]["kinds"]]
    times = [stage_time(job, stage, kinds, ends) for stage in every]
    share = dispatch_share(job)
    whole = [whole_s(t, share, software) for t in times]
    slow = max(range(len(every)), key=lambda i: (whole[i], -i))
    row = {**layout_columns(job, m)}
    row |= time_terms(job, every, times, whole, slow, m)
    row["step_time_s"] = sum(row[name] for name in STEP)
    row |= memory_terms(job, every, times, m)
    row["moe_imbalance_ratio"] = split_of(job).imbalance
    row |= rates(job, times, row["step_time_s"], m)
    return row


STEP = (
    "gemm_s",
    "attention_s",
    "memory_bound_s",
    "recompute_s",
    "launch_s",
    "tp_comm_s",
    "cp_comm_s",
    "ep_comm_s",
    "imbalance_s",
    "micro_batch_overhead_s",
    "pp_comm_s",
    "bubble_s",
    "dp_comm_s",
    "optimizer_s",
    "step_overhead_s",
    "straggler_s",
)


def layout_columns(job: dict[str, Any], m: int) -> dict[str, Any]:
    lay = job["layout"]
    return {**lay, "gpus": lay["tp"] * lay["cp"] * lay["pp"] * lay["dp"], "micro_batches": m}


def end_units(job: dict[str, Any]) -> tuple[list[Unit], list[Unit]]:
    """Units of the embedding, and of the head with its multi-token-prediction heads."""
    model, x = job["model"], split_of(job)
    h, columns = model["hidden"], stages.padded_vocab(job) / job["layout"]["tp"]
    head = [unit(work.head_work(h, columns, x), job)]
    if job["training"]["mtp"]:
        for mtp in model["mtp"]:
            head.append(layer_unit(model["kinds"][mtp["kind"]], job))
            head.append(unit(work.mtp_work(h, columns, x), job))
    return [unit(work.embedding_work(h, x), job)], head


def dispatch_share(job: dict[str, Any]) -> float:
    """Exposed share of dispatch and combine; at least all of it without overlap."""
    lay, software = job["layout"], job["software"]
    interleaved = lay["pp"] > 1 and lay["vpp"] > 1
    name = "dispatch_interleaved_ratio" if interleaved else "dispatch_exposed_ratio"
    share = float(software[name])
    return share if job["training"]["overlap"]["ep"] else max(share, 1.0)


def stage_time(
    job: dict[str, Any], stage: stages.Stage, kinds: list[Unit], ends: tuple[list[Unit], list[Unit]]
) -> StageTime:
    """Sum over the units of a stage, one by one."""
    lay = job["layout"]
    zero = dict.fromkeys(TERMS, 0.0)
    t = StageTime({**zero}, {**zero}, {**zero}, 0.0, 0.0, 0.0, 0.0)
    embedding, head = ends
    units = [kinds[k] for k in stage.layers]
    for u in [*units, *(embedding if stage.first else []), *(head if stage.last else [])]:
        add(t.forward, u.forward)
        add(t.backward, u.backward)
        t.weight_gradient += u.weight_gradient_s
        t.activation_bytes += u.saved_bytes
    again = {"none": 0, "block": lay["recompute_layers"]}.get(lay["recompute"], len(units))
    for u in units[:again]:
        selective = lay["recompute"] == "selective"
        add(t.again, u.again_selective if selective else u.again_full)
        t.again_flops += u.selective_flops if selective else u.flops
        t.activation_bytes += (u.selective_bytes if selective else u.input_bytes) - u.saved_bytes
        if not selective:
            t.working_bytes = max(t.working_bytes, u.saved_bytes)
    return t


def whole_s(t: StageTime, share: float, software: dict[str, Any]) -> float:
    """One micro-batch on a stage: forward, backward, recomputation, and its fixed cost."""
    passes = total(t.forward, share) + total(t.backward, share) + total(t.again, share)
    return float(passes + software["micro_batch_s"])


def time_terms(
    job: dict[str, Any],
    every: list[stages.Stage],
    times: list[StageTime],
    whole: list[float],
    slow: int,
    m: int,
) -> dict[str, float]:
    """Terms of the step, s: m micro-batches on the slowest stage, and what the others add."""
    software, lay = job["software"], job["layout"]
    share, t = dispatch_share(job), times[slow]
    both = {name: t.forward[name] + t.backward[name] for name in TERMS}
    terms = {
        "gemm_s": m * both["gemm"],
        "attention_s": m * both["attention"],
        "memory_bound_s": m * both["memory_bound"],
        "recompute_s": m * (total(t.again, share) - t.again["imbalance"]),
        "launch_s": m * both["launch"],
        "tp_comm_s": m * both["tp"],
        "cp_comm_s": m * both["cp"],
        "ep_comm_s": m * share * both["ep"],
        "imbalance_s": m * (both["imbalance"] + t.again["imbalance"]),
        "micro_batch_overhead_s": m * software["micro_batch_s"],
        "pp_comm_s": messages_s(job, m),
        "bubble_s": software["bubble_ratio"] * bubble_s(lay, times, whole, slow, share),
    }
    forward = total(t.forward, share)
    backward = total(t.backward, share) + total(t.again, share)
    return terms | group.group_terms(job, every, (forward, backward, whole[slow]), m)


def bubble_s(
    lay: dict[str, Any], times: list[StageTime], whole: list[float], slow: int, share: float
) -> float:
    """Bubble with stages that differ: the sum over the stages other than the slowest."""
    others = [i for i in range(len(whole)) if i != slow]
    rest = sum(whole[i] for i in others)
    t = times[slow]
    if lay["schedule"] == "interleaved":
        return rest / float(lay["vpp"])
    if lay["schedule"] == "zb-h1":
        return max(rest - 2 * sum(times[i].weight_gradient for i in others), 0.0)
    if lay["schedule"] == "dualpipe":
        backward = total(t.backward, share) + total(t.again, share)
        one = max(whole[slow] + backward - 3 * t.weight_gradient, 0.0)
        return float(max(lay["pp"] / 2 - 1, 0) * one)
    return rest


def boundary_bytes(job: dict[str, Any]) -> float:
    model = job["model"]
    return float(split_of(job).norm_tokens * model["hidden"] * 2 * model["residual_streams"])


def messages_s(job: dict[str, Any], m: int) -> float:
    """Pipeline messages both ways, each with a latency and the exposed share of its bytes."""
    lay, cluster, software = job["layout"], job["cluster"], job["software"]
    if lay["pp"] == 1:
        return 0.0
    neighbours = hardware.group(cluster, 2, group.stage_stride(job))
    fabric = cluster["scale_up" if neighbours.local else "scale_out"]["fabric"]
    transfer = hardware.collective_s(cluster, "p2p", boundary_bytes(job), neighbours)
    one = software["p2p_latency_s"] + fabric.get("message_s", 0.0)
    one += software["p2p_exposed_ratio"] * transfer
    return float(2 * (m * lay["vpp"] + lay["pp"] - 1) * one)


def memory_terms(
    job: dict[str, Any], every: list[stages.Stage], times: list[StageTime], m: int
) -> dict[str, Any]:
    """Terms of the peak on the fullest stage."""
    software, lay, x = job["software"], job["layout"], split_of(job)
    heads = 1 + (len(job["model"]["mtp"]) if job["training"]["mtp"] else 0)
    logits = x.tokens * stages.padded_vocab(job) / lay["tp"]
    logits *= heads * software["logits_bytes_per_entry"]
    buffers = software["buffer_bytes"] + (2 * boundary_bytes(job) if lay["pp"] > 1 else 0)
    fullest: dict[str, float] = {}
    for i, (stage, t) in enumerate(zip(every, times, strict=True)):
        fixed = group.static(job, stages.stage_params(job, stage))
        terms = {
            "weights_bytes": fixed.weights,
            "gradients_bytes": fixed.gradients,
            "optimizer_bytes": fixed.optimizer,
            "activations_bytes": t.activation_bytes * in_flight(lay, i, m) + t.working_bytes,
            "logits_bytes": logits if stage.last else 0.0,
            "buffers_bytes": buffers,
        }
        if not fullest or sum(terms.values()) > sum(fullest.values()) * (1 + 1e-13):
            fullest = terms
    allocated = sum(fullest.values())
    capacity, context = job["cluster"]["device"]["memory_bytes"], software["context_bytes"]
    room = capacity - context - allocated
    cache = min(software["fragmentation_ratio"] * allocated, max(room, 0.0))
    return fullest | {
        "fragmentation_bytes": cache,
        "context_bytes": context,
        "peak_memory_bytes": allocated + cache + context,
        "headroom_bytes": room,
        "status": "ok" if room >= 0 else "memory",
    }


def flops_per_token(job: dict[str, Any]) -> float:
    """Forward and backward FLOPs that the model needs for a token, whatever the layout."""
    model, s, training = job["model"], job["training"]["seq_len"], job["training"]
    alone = work.Split(1, 1, 1, 1, 1, s, False, False, False, 2.0, 1.0, "p2p", 2.0)
    h = model["hidden"]
    kinds = []
    for kind in model["kinds"]:
        w = work.layer_work(kind, h, alone)
        flops = sum(g.flops for g in w.gemms) + w.core_flops
        mixer = kind["mixer"]
        if mixer and mixer["kind"] in {"attention", "mla"}:
            rope = "qk_rope_head_dim"
            d_k = mixer["qk_nope_head_dim"] + mixer[rope] if rope in mixer else mixer["head_dim"]
            width = mixer["heads"] * (d_k + mixer["v_head_dim"])
            flops -= 2 * s * work.mean_keys(mixer["span"], s) * 128 / s * width
        kinds.append(flops / s)
    head = 2 * h * model["vocab"]
    forward = head + sum(kinds[kind] for kind in model["layers"])
    if training["mtp"]:
        forward += sum(kinds[m["kind"]] + head + 2 * h * 2 * h for m in model["mtp"])
    return float(3 * forward)


def rates(job: dict[str, Any], times: list[StageTime], step_s: float, m: int) -> dict[str, float]:
    """What the step time means: tokens, FLOPs, price."""
    lay, training, cluster = job["layout"], job["training"], job["cluster"]
    gpus = job["gpus"]
    tokens = training["global_batch"] * training["seq_len"]
    ranks = m * lay["dp"] * lay["cp"] * lay["tp"]
    model_flops = tokens * flops_per_token(job)
    hardware_flops = model_flops + ranks * sum(t.again_flops for t in times)
    peak = cluster["device"]["peak_flops"][training["param_dtype"]]
    price = cluster["price_per_gpu_hour"]
    cost = math.nan if price is None else price * gpus * step_s / 3600 / (tokens / 1e6)
    return {
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_per_gpu": tokens / step_s / gpus,
        "model_flops_per_s_per_gpu": model_flops / step_s / gpus,
        "mfu_ratio": model_flops / step_s / gpus / peak,
        "hfu_ratio": hardware_flops / step_s / gpus / peak,
        "cost_per_million_tokens": cost,
    }
