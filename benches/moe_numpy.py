"""EPLB in numpy, written anew after the published algorithm, against ``planner`` in one run.

    python benches/moe_numpy.py

Reports the time of each and their ratio, and checks that the maps agree (loads without ties).
"""

from __future__ import annotations

import json
import time

import numpy as np

import meshplan._core as core
from meshplan.moe import balance

LAYERS, EXPERTS, SLOTS = 58, 256, 288


def pack(weight: np.ndarray, packs: int) -> tuple[np.ndarray, np.ndarray]:
    """Longest first into packs of equal size, all layers step by step."""
    layers, items = weight.shape
    size = items // packs
    rows = np.arange(layers)
    if size == 1:
        index = np.broadcast_to(np.arange(items), weight.shape)
        return index, np.zeros_like(index)
    order = np.argsort(-weight, axis=1, kind="stable")
    load = np.zeros((layers, packs), dtype=np.float32)
    held = np.zeros((layers, packs), dtype=np.int64)
    index = np.empty((layers, items), dtype=np.int64)
    place = np.empty((layers, items), dtype=np.int64)
    for step in range(items):
        item = order[:, step]
        pack_of = np.where(held < size, load, np.inf).argmin(axis=1)
        index[rows, item] = pack_of
        place[rows, item] = held[rows, pack_of]
        load[rows, pack_of] += weight[rows, item]
        held[rows, pack_of] += 1
    return index, place


def replicate(weight: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Give each spare slot to the expert with the heaviest replica."""
    layers, experts = weight.shape
    rows = np.arange(layers)
    owner = np.empty((layers, slots), dtype=np.int64)
    owner[:, :experts] = np.arange(experts)
    count = np.ones((layers, experts), dtype=np.float32)
    for slot in range(experts, slots):
        hottest = (weight / count).argmax(axis=1)
        owner[:, slot] = hottest
        count[rows, hottest] += 1
    return owner, count


def eplb(weight: np.ndarray, slots: int, groups: int, nodes: int, gpus: int) -> np.ndarray:
    """Physical to logical map of every layer."""
    layers, experts = weight.shape
    if groups % nodes:
        groups = nodes = 1
    size = experts // groups
    node, rank = pack(weight.reshape(layers, groups, size).sum(axis=2), nodes)
    first = (node * (groups // nodes) + rank) * size
    by_node = np.empty((layers, experts), dtype=np.int64)
    where = (first[:, :, None] + np.arange(size)).reshape(layers, experts)
    np.put_along_axis(by_node, where, np.broadcast_to(np.arange(experts), where.shape), axis=1)
    members = by_node.reshape(layers * nodes, experts // nodes)
    local = np.take_along_axis(weight, by_node, axis=1).reshape(members.shape)
    owner, count = replicate(local, slots // nodes)
    replica = np.take_along_axis(local / count, owner, axis=1)
    gpu, place = pack(replica, gpus // nodes)
    position = gpu * (slots // gpus) + place
    placed = np.empty_like(owner)
    np.put_along_axis(placed, position, np.take_along_axis(members, owner, axis=1), axis=1)
    return placed.reshape(layers, slots)


def best_of(run: object, times: int = 3) -> float:
    """Seconds of the fastest of several runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()  # type: ignore[operator]
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Compare."""
    loads = np.random.default_rng(1).permutation(LAYERS * EXPERTS).reshape(LAYERS, EXPERTS) + 1
    weight = loads.astype(np.float32)
    for groups, nodes, gpus in ((8, 4, 32), (8, 18, 144)):
        question = {
            "loads": weight.tolist(),
            "redundant": SLOTS - EXPERTS,
            "ranks": gpus,
            "nodes": nodes,
            "groups": groups,
            "policy": "eplb",
        }
        spec = json.dumps(question)
        ours = best_of(lambda spec=spec: core.moe_balance(spec))
        theirs = best_of(lambda g=groups, n=nodes, r=gpus: eplb(weight, SLOTS, g, n, r))
        layers = balance(
            weight.tolist(), ranks=gpus, nodes=nodes, groups=groups, redundant=32, policy="eplb"
        )
        mine = np.array([layer["physical_to_logical"] for layer in layers])
        same = bool((mine == eplb(weight, SLOTS, groups, nodes, gpus)).all())
        print(
            f"{gpus:>4} GPUs: planner {1e3 * ours:.2f} ms (JSON in and out included), "
            f"numpy {1e3 * theirs:.1f} ms, ratio {theirs / ours:.0f}, same maps: {same}"
        )


if __name__ == "__main__":
    main()
