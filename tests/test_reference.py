"""The engine against the slow reference: every column, random and preset jobs, 1e-9 relative."""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings

from conftest import REPO
from meshplan import _core
from reference import random_jobs, row

CURVE = {
    "efficiency": 0.8,
    "k_half": 130.0,
    "wave": 0.3,
    "tile_half": 20.0,
    "tile_min": 64.0,
    "tile_max": 256.0,
    "split_k": 1024.0,
    "throttle": 0.0,
    "memory_efficiency": 0.8,
    "base_s": 3e-6,
    "cast_bytes": 0.0,
}
FABRIC = {
    "base_s": 1e-5,
    "ring_hop_s": 1e-6,
    "tree_hop_s": 1e-6,
    "ramp_s": 1e-6,
    "all_reduce_efficiency": 0.8,
    "gather_efficiency": 0.7,
    "all_to_all_efficiency": 0.6,
    "p2p_efficiency": 0.9,
    "all_reduce_copy_ratio": 0.1,
    "gather_copy_ratio": 0.1,
    "all_to_all_copy_ratio": 0.1,
    "in_switch_efficiency": 0.0,
    "in_switch_s": 0.0,
    "contention": 0.0,
    "training_ratio": 1.0,
    "message_s": 0.0,
}
PRESETS = tomllib.loads((REPO / "python/meshplan/presets/software.toml").read_text("utf-8"))
COSTS = PRESETS["megatron-core"]["costs"]


def engine(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the core for canonical jobs."""
    models = [json.dumps(job["model"]) for job in jobs]
    asked = [
        {
            "model": i,
            "cluster": i,
            "software": i,
            "gpus": job["gpus"],
            "training": job["training"],
            "layout": job["layout"],
        }
        for i, job in enumerate(jobs)
    ]
    frame = _core.Jobs(models, json.dumps(asked)).predict(
        [json.dumps(job["cluster"]) for job in jobs],
        [json.dumps(job["software"]) for job in jobs],
    )
    return pl.DataFrame(frame).to_dicts()


def differences(
    job: dict[str, Any], found: dict[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Columns where engine and reference part, each with both values."""
    found = found or engine([job])[0]
    expected = row.evaluate(job)
    assert set(found) == set(expected), set(found) ^ set(expected)
    scale = {"_s": expected["step_time_s"], "es": expected["peak_memory_bytes"]}
    apart = {}
    for name, value in expected.items():
        got = found[name]
        if isinstance(value, float) and isinstance(got, float):
            # A term is compared to itself, or to the whole of which it is a vanishing part.
            slack = 1e-15 * scale.get(name[-2:], 0.0)
            same = math.isclose(value, got, rel_tol=1e-9, abs_tol=slack)
            same |= math.isnan(value) and math.isnan(got)
        else:
            same = value == got
        if not same:
            apart[name] = (got, value)
    return apart


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(random_jobs.jobs(curve=CURVE, fabric=FABRIC, costs=COSTS))
def test_every_column_agrees(job: dict[str, Any]) -> None:
    assert differences(job) == {}


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_jobs.jobs(curve=CURVE, fabric=FABRIC, costs=COSTS))
def test_every_column_agrees_on_many_jobs(job: dict[str, Any]) -> None:
    assert differences(job) == {}


PRESET_JOBS: list[dict[str, Any]] = [
    {"model": "llama-3.1-70b", "cluster": "h100", "gpus": 64, "tp": 8, "pp": 4},
    {"model": "llama-3.1-405b", "cluster": "h200", "gpus": 1024, "tp": 8, "pp": 16, "cp": 2},
    {"model": "deepseek-v3", "cluster": "h100", "gpus": 1024, "pp": 16, "ep": 64},
    {"model": "qwen3-next-80b-a3b", "cluster": "b200", "gpus": 128, "pp": 2, "ep": 32},
    {"model": "mixtral-8x7b", "cluster": "a100", "gpus": 64, "tp": 2, "ep": 8},
    {"model": "gemma-2-27b", "cluster": "gb300", "gpus": 64, "sharding": "zero3"},
]


@pytest.mark.parametrize("asked", PRESET_JOBS, ids=lambda job: job["model"])
def test_presets_agree_through_the_public_interface(asked: dict[str, Any]) -> None:
    from meshplan import api
    from meshplan.hf import load_model
    from meshplan.request import EVALUATED, question
    from meshplan.specs.reading import read_plan

    plan = read_plan(None, api._values(asked), EVALUATED)
    canonical = question(plan, load_model(asked["model"]))
    answer = json.loads(_core.explain(canonical))
    job = json.loads(canonical) | {"layout": answer["layout"]}
    estimate = api.evaluate(**asked)
    found = {name: getattr(estimate, name) for name in row.evaluate(job)}
    if found["cost_per_million_tokens"] is None:  # no price
        found["cost_per_million_tokens"] = math.nan
    assert differences(job, found) == {}
