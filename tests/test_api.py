"""The planner in Python: what a job may be, and what comes back."""

from __future__ import annotations

import pytest

import meshplan as mp


def test_a_cluster_may_be_described_and_priced() -> None:
    cluster = mp.load_cluster({"preset": "h100", "nic": "200 Gb/s", "price_per_gpu_hour": 2.0})
    cheap = mp.evaluate(gpus=64, cluster=cluster, tp=8, pp=4)
    plain = mp.evaluate(gpus=64, tp=8, pp=4)
    assert cheap.cost_per_million_tokens > 0
    assert plain.to_dict()["cost_per_million_tokens"] is None
    assert cheap.step_time_s >= plain.step_time_s


def test_a_workload_keeps_the_defaults_of_its_framework() -> None:
    told = mp.plan(gpus=64, framework="torchtitan", workload=mp.Training(global_batch=64))
    assert (told.workload.seq_len, told.workload.global_batch) == (8192, 64)
    old = mp.plan(gpus=64, framework="megatron", framework_version="megatron-2021")
    assert (old.workload.attention, old.workload.dropout) == ("unfused", True)
    mine = mp.plan(
        gpus=64,
        framework="megatron",
        framework_version="megatron-2021",
        workload=mp.Training(dropout=False),
    )
    assert (mine.workload.attention, mine.workload.dropout) == ("unfused", False)


def test_a_model_may_be_a_loaded_one() -> None:
    model = mp.load_model("llama-3.1-8b")
    assert mp.evaluate(gpus=8, model=model) == mp.evaluate(gpus=8, model="llama-3.1-8b")


def test_an_unknown_part_of_a_job() -> None:
    with pytest.raises(mp.InputError, match=r"modell = .*is not a part of a job") as caught:
        mp.plan(gpus=8, modell="llama-3.1-8b")  # type: ignore[call-arg]
    assert caught.value.hint == "did you mean model?"


def test_rows_are_mappings_with_attributes() -> None:
    row = mp.evaluate(gpus=64, tp=8, pp=4)
    assert row["tp"] == row.tp == 8
    assert {"step_time_s", "tp"} <= set(dir(row))
    assert row.layout["schedule"] == "1f1b"
    with pytest.raises(AttributeError, match="no column"):
        _ = row.no_such_column


def test_both_memory_sizes_of_a_device_are_named_alike() -> None:
    assert mp.load_cluster("a100-80") == mp.load_cluster("a100")
    assert mp.load_cluster("a100-80") != mp.load_cluster("a100-40")
