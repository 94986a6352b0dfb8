"""Times of GEMMs, attention cores and messages on a device and its links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .work import Gemm, Work

ELEMENT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5,
    "mxfp4": 0.5,
    "int4": 0.5,
}


TILES = [(64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256)]


def gemm_s(g: Gemm, device: dict[str, Any], dtype: str) -> float:
    """GEMM in training: the best tile, joined with HBM in quadrature, and the cast of its input."""
    curve, sms = device["gemm"][dtype], device["sms"]
    ratio, hbm = device["training"]["gemm_ratio"][dtype], device["memory_bytes_per_s"]
    rate = device["peak_flops"][dtype] / sms * curve["efficiency"]
    times = []
    for a, b in TILES:
        if not curve["tile_min"] <= a * b <= curve["tile_max"]:
            continue
        x, depth = g.groups * math.ceil(g.m / a) * math.ceil(g.n / b) / sms, g.k
        if x < 1:
            slices = min(1 / x, min(max(g.k / curve["split_k"], 1), 16))
            x, depth = x * slices, depth / slices
        waves = 1 if x <= 1 else x + curve["wave"] * (math.ceil(x) - x)
        side = 2 * a * b / (a + b)
        at_rate = rate * side / (side + curve["tile_half"])
        times.append(waves * 2 * a * b * (depth + curve["k_half"]) / at_rate)
    compute = min(times)
    compute *= 1 + curve["throttle"] * compute / (compute + 1e-3)
    size = ELEMENT_BYTES[dtype]
    moved = g.groups * (size * (g.m * g.k + g.k * g.n) + 2 * g.m * g.n)
    memory = moved / (hbm * curve["memory_efficiency"])
    cast = g.m * g.k * g.groups * curve["cast_bytes"] / hbm
    return float(ratio * (curve["base_s"] + math.hypot(compute, memory) + cast))


def core_s(w: Work, job: dict[str, Any]) -> tuple[float, float]:
    """Attention core, forward and backward."""
    device, training = job["cluster"]["device"], job["training"]
    efficiency = device["training"]["attention_efficiency"][training["attention_kernel"]]
    rate = efficiency * device["peak_flops"][training["param_dtype"]]
    forward = w.core_flops / rate * (1.35 if w.head_dim < 96 else 1.0)
    if training["attention_kernel"] != "unfused":
        return forward, 2.5 * forward
    per_byte = job["software"]["score_ratio"] / device["memory_bytes_per_s"]
    return (
        forward + 13 * w.score_elements * per_byte,
        2 * forward + 19 * w.score_elements * per_byte,
    )


def join(a: float, b: float, n: float) -> float:
    """(aⁿ + bⁿ)^(1/n)."""
    top = max(a, b)
    if top == 0:
        return 0.0
    return float(top * ((a / top) ** n + (b / top) ** n) ** (1 / n))


@dataclass
class Group:
    """Ranks of a group as the links see them."""

    ranks: float
    per_domain: float
    """Ranks in one scale-up domain."""
    extent: float
    """GPUs from the first rank to the last, both counted."""

    @property
    def local(self) -> bool:
        return self.per_domain >= self.ranks

    @property
    def domains(self) -> int:
        return math.ceil(self.ranks / self.per_domain)


def group(cluster: dict[str, Any], ranks: float, stride: float) -> Group:
    """Ranks `stride` GPUs apart, the first at the start of a domain."""
    domain = cluster["scale_up"]["domain_gpus"]
    inside = min(max(math.floor(domain / stride), 1), ranks)
    return Group(ranks, inside, (ranks - 1) * stride + 1)


def nic_bytes_per_s(cluster: dict[str, Any]) -> float:
    """A GPU's share of the NICs of its node."""
    out = cluster["scale_out"]
    return float(out["nics_per_node"] * out["nic_bytes_per_s"] / cluster["gpus_per_node"])


OPERATIONS = {
    "all_reduce": ("all_reduce_efficiency", "all_reduce_copy_ratio"),
    "gather": ("gather_efficiency", "gather_copy_ratio"),
    "all_to_all": ("all_to_all_efficiency", "all_to_all_copy_ratio"),
    "p2p": ("p2p_efficiency", None),
}


def pipelined(fill: float, stream: float) -> float:
    return (math.sqrt(fill) + math.sqrt(stream)) ** 2


def overlapped(a: float, b: float) -> float:
    """Two streams at once on different chunks: (a⁸ + b⁸)^⅛."""
    top = max(a, b)
    return float(top * ((a / top) ** 8 + (b / top) ** 8) ** 0.125) if top > 0 else 0.0


def stream_inside(cluster: dict[str, Any], op: str, size: float, n: float) -> float:
    """Streaming over the links of a domain by ring."""
    up = cluster["scale_up"]
    fabric = up["fabric"]
    efficiency, copy = OPERATIONS[op]
    own = fabric[copy] if copy else 0.0
    volume = {
        "all_reduce": 2 * (n - 1 + own) / n,
        "gather": (n - 1 + own) / n,
        "all_to_all": (n - 1 + own) / n,
        "p2p": 1.0,
    }[op]
    peak = up["bytes_per_s"] * (2 / n) ** max(fabric["contention"], 0)
    return float(volume * size / (fabric[efficiency] * peak))


def stream_in_switch(cluster: dict[str, Any], size: float, n: float) -> float:
    """All-reduce in the switch; two ranks exchange directly."""
    up = cluster["scale_up"]
    efficiency = up["fabric"]["in_switch_efficiency"]
    if not up["in_switch_reduction"] or efficiency <= 0 or n < 3:
        return math.inf
    return float(size / (efficiency * up["bytes_per_s"]))


def inside_s(cluster: dict[str, Any], op: str, size: float, n: float) -> float:
    """A collective inside one domain: base + hops + pipelined stream, the best algorithm."""
    fabric = cluster["scale_up"]["fabric"]
    hops = {"all_reduce": 2 * (n - 1), "gather": n - 1, "all_to_all": 1, "p2p": n - 1}[op]
    stream = stream_inside(cluster, op, size, n)
    best = hops * fabric["ring_hop_s"] + pipelined(fabric["ramp_s"], stream)
    if op == "all_reduce":
        switch = stream_in_switch(cluster, size, n)
        best = min(best, fabric["in_switch_s"] + pipelined(fabric["ramp_s"], switch))
    return float(fabric["base_s"] + best)


def tiers(cluster: dict[str, Any], g: Group) -> tuple[float, float, float]:
    """Slowdown of a ring and of an all-to-all over the switch tiers, and latency per hop."""
    ring, all_to_all, latency = 1.0, 1.0, 0.0
    extent = math.floor(g.extent)  # whole GPUs, also where ranks are spread unevenly
    for tier in cluster["scale_out"]["tiers"]:
        if extent <= tier["gpus"]:
            continue
        stride = (extent - 1) / (g.ranks - 1)
        below = min(max(tier["gpus"] / stride, 1), g.ranks)
        ring = max(ring, tier["oversubscription"] / below)
        all_to_all = max(all_to_all, tier["oversubscription"] * (1 - below / g.ranks))
        latency += tier["latency_s"]
    return ring, all_to_all, latency


def across_s(cluster: dict[str, Any], op: str, size: float, g: Group) -> float:
    """A collective over several domains: links and NICs run at once on different chunks."""
    up, out = cluster["scale_up"]["fabric"], cluster["scale_out"]["fabric"]
    n, domains = g.ranks, g.domains
    local = n / domains
    ring_slow, all_slow, tier_s = tiers(cluster, g)
    nic = nic_bytes_per_s(cluster) * out[OPERATIONS[op][0]]
    hop, level = out["ring_hop_s"] + tier_s, out["tree_hop_s"] + tier_s
    depth = math.ceil(math.log2(domains))
    links = stream_inside(cluster, op, size, local) if local > 1 and op != "p2p" else 0.0
    ring_hops = (domains - 1) * hop + (n - domains) * up["ring_hop_s"]

    def joined(inside: float, outside: float) -> float:
        stream = overlapped(inside, outside)
        return float(up["base_s"] + out["base_s"] + pipelined(out["ramp_s"], stream))

    if op == "all_reduce":
        links = min(links, stream_in_switch(cluster, size, local))
        share = ring_slow * size / (local * nic)
        ring = joined(links, 2 * (n - 1) / n * share) + 2 * ring_hops
        inner = max(local - 1, 0) * up["ring_hop_s"]
        tree = joined(links, (1 if domains == 2 else 2) * share) + 2 * (depth * level + inner)
        return min(ring, tree)
    if op == "gather":
        outside = (n - 1) / n * ring_slow * size / (local * nic)
        hops = ring_hops if local > 1 else min(ring_hops, depth * level)
        return joined(links, outside) + hops
    if op == "all_to_all":
        outside = all_slow * (1 - 1 / domains) * size / nic
        return joined(links * local / n, outside) + math.ceil((n - local) / 8) * hop
    return joined(0.0, ring_slow * size / nic) + hop


def collective_s(cluster: dict[str, Any], op: str, size: float, g: Group) -> float:
    """A collective inside a training job."""
    if g.ranks <= 1 or size == 0:
        return 0.0
    if g.local:
        ratio = cluster["scale_up"]["fabric"].get("training_ratio", 1.0)
        return float(ratio * inside_s(cluster, op, size, g.ranks))
    ratio = cluster["scale_out"]["fabric"].get("training_ratio", 1.0)
    return float(ratio * across_s(cluster, op, size, g))


def distinct(groups: float, experts: int, k: int) -> float:
    """Expected groups that k of E experts touch; some of the R groups hold one expert more."""
    count = int(groups)
    sizes = [experts // count + (group < experts % count) for group in range(count)]
    every = math.comb(experts, k)
    return sum(1 - math.comb(experts - size, k) / every for size in sizes)


def dispatch_s(cluster: dict[str, Any], w: Work, lay: dict[str, Any]) -> tuple[float, float]:
    """One dispatch: k copies over the domain's links, one per remote domain over the NIC."""
    assert w.dispatch
    tokens, width, k, experts = w.dispatch
    size = tokens * width * 2
    g = group(cluster, lay["ep"], lay["etp"])
    up, out = cluster["scale_up"], cluster["scale_out"]["fabric"]
    links = up["bytes_per_s"] * up["fabric"]["all_to_all_efficiency"]
    links /= up["fabric"].get("training_ratio", 1.0)
    inside = k * size * (g.ranks - 1) / g.ranks / links
    if g.local:
        return float(inside), 0.0
    slow = 1.0
    for tier in cluster["scale_out"]["tiers"]:
        if g.extent > tier["gpus"]:
            slow = max(slow, tier["oversubscription"])
    nic = (
        nic_bytes_per_s(cluster)
        * out["all_to_all_efficiency"]
        / (out.get("training_ratio", 1.0) * slow)
    )
    remote = size * distinct(g.domains, experts, k) * (g.domains - 1) / g.domains
    return float(inside), float(remote / nic)
