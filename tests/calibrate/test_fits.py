"""The fits find what they are given, and their equations are those of the core."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan._core import collective_times, kernel_times
from meshplan.calibrate import collectives, gemm
from meshplan.specs.base import build
from meshplan.specs.cluster import Device
from meshplan.specs.presets import raw
from meshplan.specs.reading import load_cluster

PEAKS = gemm.Peaks({"bf16": 989.4e12}, 3.35e12, 132.0)


def _device(name: str) -> Device:
    return build(Device, raw("devices", name, (), {}))


@given(
    device=st.sampled_from(["a100-sxm-80gb", "h100-sxm", "gb300", "l40s"]),
    m=st.integers(1, 40_000),
    n=st.integers(1, 70_000),
    k=st.integers(16, 70_000),
)
def test_gemm_of_the_fit_is_gemm_of_the_core(device: str, m: int, n: int, k: int) -> None:
    """Both equations give the same time to 1e-9."""
    preset = _device(device)
    request = {"kernel": "gemm", "dtype": "bf16", "m": m, "n": n, "k": k, "groups": 1}
    request |= {"a_bytes": 2, "b_bytes": 2}
    (core,) = kernel_times(json.dumps(preset.canonical()), json.dumps([request]))
    shapes = gemm.Shapes(np.array([m * 1.0]), np.array([n * 1.0]), np.array([k * 1.0]), 2.0, 2.0)
    own = gemm.predict(
        preset.gemm["bf16"], shapes, preset.peak["bf16"], preset.memory_bandwidth, preset.sms
    )
    assert own[0] == pytest.approx(core, rel=1e-9)


@given(
    name=st.sampled_from(["h100", "b200", "gb200", "aws-p4d", "l40s"]),
    operation=st.sampled_from(collectives.OPERATIONS),
    ranks=st.integers(2, 2000),
    size=st.floats(1, 1e11),
)
def test_collectives_of_the_fit_are_those_of_the_core(
    name: str, operation: str, ranks: int, size: float
) -> None:
    """Both equations give the same time to 1e-9."""
    cluster = load_cluster(name)
    request = {"operation": operation, "bytes": size, "ranks": ranks, "stride": 1}
    (core,) = collective_times(json.dumps(cluster.canonical()), json.dumps([request]))
    domains = -(-ranks // cluster.nvlink_domain)
    rows = collectives.Rows(
        np.array([collectives.OPERATIONS.index(operation)]),
        np.array([ranks * 1.0]),
        np.array([domains * 1.0]),
        np.array([size]),
    )
    nic = cluster.nics_per_node * cluster.nic / cluster.gpus_per_node
    wires = collectives.Wires(cluster.nvlink, nic, cluster.in_switch_reduction)
    inside, outside = cluster.scale_up_fabric, cluster.scale_out_fabric
    if domains == 1:
        own = collectives.predict_inside(inside, rows, wires)
    else:
        own = collectives.predict_across(inside, outside, rows, wires)
    assert own[0] == pytest.approx(core, rel=1e-9)


def test_gemm_fit_finds_the_curve_that_made_the_table() -> None:
    """A table made from a curve with 3 % noise is predicted to about 2 %."""
    random = np.random.default_rng(1)
    m, n, k = (2.0 ** random.integers(low, 15, 400) for low in (0, 8, 8))
    curve = {"efficiency": 0.8, "k_half": 120.0, "wave": 0.3, "tile_half": 20.0, "split_k": 4000.0}
    curve |= {"throttle": 0.2, "memory_efficiency": 0.85, "base_s": 3e-6, "cast_bytes": 0.0}
    curve |= {"tile_min": 4096.0, "tile_max": 32768.0}
    times = gemm.predict(curve, gemm.Shapes(m, n, k, 2.0, 2.0), 989.4e12, 3.35e12, 132.0)
    noisy = times * np.exp(random.normal(0.0, 0.03, 400))
    table = pl.DataFrame({"dtype": "bfloat16", "m": m, "n": n, "k": k, "latency_us": noisy * 1e6})
    fit = gemm.fit_table(table, PEAKS)["bf16"]
    assert fit.median < 0.025
    assert fit.held_out_median < 0.03
    assert fit.values["base_s"] == pytest.approx(3e-6, rel=0.1)
    assert fit.values["memory_efficiency"] == pytest.approx(0.85, rel=0.05)
    assert 0 < fit.relative_error["memory_efficiency"] < 0.05
    assert "400 rows" in fit.provenance()


def test_a_table_too_small_is_not_fitted() -> None:
    """A handful of rows identifies no curve."""
    table = pl.DataFrame({"dtype": "bfloat16", "m": [8], "n": [8], "k": [8], "latency_us": [5.0]})
    assert gemm.fit_table(table, PEAKS) == {}
