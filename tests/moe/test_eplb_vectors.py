"""Whole EPLB maps against the public tie-free vectors, by their hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from conftest import shared
from meshplan.moe import balance

MASK = (1 << 64) - 1


def loads(seed: int, layers: int, experts: int) -> list[list[float]]:
    """1 + (SplitMix64 >> 11) mod 1,000,003, row after row."""
    state, found = seed, []
    for _ in range(layers * experts):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        found.append(float(1 + ((z ^ (z >> 31)) >> 11) % 1_000_003))
    return [found[i * experts : (i + 1) * experts] for i in range(layers)]


def test_every_layer_of_every_case() -> None:
    path = shared("truth", "moe", "eplb_vectors_tiefree.json")
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert cases
    for case in cases:
        slots, groups, nodes, ranks = case["args"]
        matrix = loads(case["seed"], case["layers"], case["experts"])
        assert matrix[0][:8] == case["first8_loads"]
        shape = {"ranks": ranks, "redundant": slots - case["experts"]}
        layers = balance(matrix, policy="eplb", nodes=nodes, groups=groups, **shape)
        flat = ",".join(str(e) for layer in layers for e in layer["physical_to_logical"])
        assert hashlib.sha256(flat.encode()).hexdigest() == case["phy2log_sha256"], case["name"]
        ours = balance(matrix, **shape)
        for mine, theirs in zip(ours, layers, strict=True):
            assert mine["rank_max_over_mean"] <= theirs["rank_max_over_mean"] + 1e-9
            assert mine["rank_max_over_mean"] >= mine["bound_max_over_mean"] - 1e-12
