"""Time and memory of one unit (layer, embedding, head) for one micro-batch on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from . import hardware as hw
from .work import Split, Work, layer_work

TERMS = ("gemm", "attention", "memory_bound", "launch", "tp", "cp", "imbalance", "ep")


@dataclass
class Unit:
    """Costs of a unit; `again_*` is what its recomputation adds to the backward pass."""

    forward: dict[str, float]
    backward: dict[str, float]
    again_selective: dict[str, float]
    again_full: dict[str, float]
    weight_gradient_s: float
    saved_bytes: float
    selective_bytes: float
    input_bytes: float
    flops: float
    selective_flops: float


def split_of(job: dict[str, Any]) -> Split:
    training, lay = job["training"], job["layout"]
    quantised = hw.ELEMENT_BYTES[training["compute_dtype"]] < 2
    return Split(
        tp=lay["tp"],
        cp=lay["cp"],
        ep=lay["ep"],
        etp=lay["etp"],
        b=lay["micro_batch"],
        s=training["seq_len"],
        sp=lay["sequence_parallel"] and lay["tp"] > 1,
        unfused=training["attention_kernel"] == "unfused",
        dropout=training["dropout"],
        saved=1.0 if quantised else 2.0,
        imbalance=training["moe_imbalance"] if lay["ep"] > 1 else 1.0,
        cp_comm=training["cp_comm"],
        act_saved=1.0 if quantised and job["software"]["quantized_activation_inputs"] else 2.0,
    )


def layer_unit(kind: dict[str, Any], job: dict[str, Any]) -> Unit:
    """A layer: terms of balanced experts, and what the fullest rank takes beyond them."""
    x, hidden = split_of(job), job["model"]["hidden"]
    hot = unit(layer_work(kind, hidden, x), job)
    even = unit(layer_work(kind, hidden, replace(x, imbalance=1.0)), job)
    for name in ("forward", "backward", "again_selective", "again_full"):
        terms, balanced = getattr(hot, name), getattr(even, name)
        beyond = sum(terms.values()) - sum(balanced.values())
        setattr(hot, name, {**balanced, "imbalance": beyond})
    return hot


def unit(w: Work, job: dict[str, Any]) -> Unit:
    """Time the work of a unit."""
    device, training, software = job["cluster"]["device"], job["training"], job["software"]
    sums = [0.0, 0.0, 0.0]
    for g in w.gemms:
        dtype = training["compute_dtype"] if g.recipe else training["param_dtype"]
        ratio = software["grouped_gemm_ratio"] if g.expert else 1.0
        for i, one in enumerate((g, g.input_gradient(), g.weight_gradient())):
            sums[i] += ratio * hw.gemm_s(one, device, dtype)
    cores = hw.core_s(w, job)
    forward = phase(w, job, sums[0], cores[0], 0)
    backward = phase(w, job, sums[1] + sums[2], cores[1], 1)
    flops = sum(g.flops for g in w.gemms) + w.core_flops
    kept = software["selective_kept_ratio"]
    selective = dict.fromkeys(TERMS, 0.0)
    if kept < 1:
        selective |= {"gemm": 0.5 * sums[0], "memory_bound": forward["memory_bound"]}
        selective_flops = 0.5 * (flops - w.core_flops)
    else:
        selective |= {"attention": cores[0]}
        selective_flops = w.core_flops
    return Unit(
        forward=forward,
        backward=backward,
        again_selective=selective,
        again_full=forward,
        weight_gradient_s=sums[2],
        saved_bytes=w.saved_bytes,
        selective_bytes=(w.saved_bytes - w.core_bytes) * kept,
        input_bytes=w.input_bytes,
        flops=flops,
        selective_flops=selective_flops,
    )


def phase(
    w: Work, job: dict[str, Any], gemm: float, core: float, backward: int
) -> dict[str, float]:
    """Terms of the forward (0) or backward (1) pass."""
    software, device = job["software"], job["cluster"]["device"]
    hbm = device["memory_bytes_per_s"]
    passes = software["memory_bound_ratio"] * device["training"]["memory_bound_ratio"]
    kernels = w.kernels[backward]
    memory_bound = (
        w.bytes[backward] * passes / hbm
        + w.permute_bytes * software["permute_ratio"] / hbm
        + kernels * software["kernel_gap_s"]
    )
    attention = core + w.scan_bytes[backward] * software["scan_ratio"] / hbm
    gpu = gemm + attention + memory_bound
    graphs = software["graph_launch_ratio"] if job["training"]["cuda_graphs"] else 1.0
    cpu = kernels * software["kernel_launch_s"] * graphs
    return {
        "gemm": gemm,
        "attention": attention,
        "memory_bound": memory_bound,
        "launch": hw.join(gpu, cpu, software["launch_exponent"]) - gpu,
        "tp": tp_s(w, job, gpu, cpu),
        "cp": cp_s(w, job, core, backward),
        "ep": ep_s(w, job),
        "imbalance": 0.0,
    }


def tp_s(w: Work, job: dict[str, Any], gpu: float, cpu: float) -> float:
    """Exposed tensor-parallel time of one pass."""
    software, cluster, lay = job["software"], job["cluster"], job["layout"]
    t = lay["tp"]
    if t == 1 or w.tp_messages == 0:
        return 0.0
    latency = software["tp_latency_s"] * math.sqrt(t / 4)
    size, ranks = w.tp_message_bytes, hw.group(cluster, t, 1)
    if lay["sequence_parallel"]:
        one = 2 * hw.collective_s(cluster, "gather", size, ranks)
    else:
        one = hw.collective_s(cluster, "all_reduce", size, ranks)
    time = w.tp_messages * (one + latency)
    if w.etp_message_bytes:
        # Gathered before the experts, reduce-scattered after them.
        inner = hw.group(cluster, lay["etp"], 1)
        time += 2 * hw.collective_s(cluster, "gather", w.etp_message_bytes / 2, inner) + latency
    overlap = job["training"]["overlap"]["tp"]
    exposed = software["tp_overlap_exposed_ratio" if overlap else "tp_exposed_ratio"]
    wait = 0.0
    if cpu > gpu:
        per_message = software["tp_sync_s"][0 if t <= 2 else 1 if t <= 4 else 2]
        wait = w.tp_messages * per_message * (1 - gpu / cpu)
    return float(exposed * time + wait)


def cp_s(w: Work, job: dict[str, Any], core: float, backward: int) -> float:
    """Exposed exchange of keys and values; the backward pass moves their gradients as well."""
    software, cluster, lay = job["software"], job["cluster"], job["layout"]
    c = lay["cp"]
    if c == 1 or w.cp_bytes == 0:
        return 0.0
    size, ranks = (2 if backward else 1) * w.cp_bytes, hw.group(cluster, c, lay["tp"])
    comm = job["training"]["cp_comm"]
    if comm == "p2p":
        # c − 1 steps to a neighbour; the ring's farthest neighbours set the pace.
        pair = hw.Group(2, min(ranks.per_domain, 2), ranks.extent)
        time = (c - 1) * hw.collective_s(cluster, "p2p", size / (c - 1), pair)
    else:
        op = "gather" if comm == "all_gather" else "all_to_all"
        time = hw.collective_s(cluster, op, size * c / (c - 1), ranks)
    time += (c - 1) * software["tp_latency_s"]
    if not job["training"]["overlap"]["cp"]:
        return float(time)
    return float(software["cp_exposed_ratio"] * min(time, core) + max(time - core, 0))


def ep_s(w: Work, job: dict[str, Any]) -> float:
    """One dispatch and one combine."""
    software, lay = job["software"], job["layout"]
    if lay["ep"] == 1 or not w.dispatch:
        return 0.0
    local, remote = hw.dispatch_s(job["cluster"], w, lay)
    inside, across = software["dispatch_time_ratio"], software["dispatch_remote_ratio"]
    return float(2 * (software["dispatch_s"] + max(inside * local, across * remote)))
