"""``--routing`` of serving: a measured routing sets hot ranks and the experts that a batch wakes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import meshplan as mp
from meshplan.errors import InputError
from meshplan.moe import imbalance
from meshplan.serving import api

JOB = {
    "workload": "serving",
    "model": "deepseek-v3",
    "cluster": "h200",
    "backend": "sglang",
    "isl": 4096,
    "osl": 512,
    "concurrency": 256,
    "max_batch": 256,
}
WIDE = {"tp": 16, "ep": 16, "attention_dp": 16}


def row(**job: object) -> api.Deployment:
    return mp.evaluate(**JOB, **WIDE, **job)


def test_terms_add_up_and_skew_is_one_of_them() -> None:
    even, skewed = row(routing="uniform"), row(routing="dirichlet:1.3")
    for one in (row(), even, skewed):
        for whole in ("step_", "pass_"):
            parts = [n for n in one if n.startswith(whole) and n != f"{whole}s"]
            assert sum(one[n] for n in parts) == pytest.approx(one[f"{whole}s"], rel=1e-12)
    assert even.step_imbalance_s < skewed.step_imbalance_s
    assert even.pass_imbalance_s < 0.25 * skewed.pass_imbalance_s
    assert skewed.ttft_s > even.ttft_s and skewed.tpot_s > even.tpot_s


def test_a_batch_wakes_fewer_of_unequal_experts() -> None:
    few = {"concurrency": 32, "max_batch": 32}
    names = ("uniform", "dirichlet:1.3", "dirichlet:0.5")
    awake = [mp.evaluate(**JOB | few, **WIDE, routing=n).active_experts for n in names]
    assert 16 > awake[0] > awake[1] > awake[2] > 1
    # The fitted default has a spread.
    assert mp.evaluate(**JOB | few, **WIDE).active_experts < awake[0]


@pytest.mark.parametrize("routing", ["uniform", "dirichlet:1.3", "dirichlet:9", "zipf:0.4"])
def test_the_ratio_is_that_of_the_routing_room(routing: str) -> None:
    found = row(routing=routing)
    tokens = found.mean_running / 16
    ratio = imbalance(routing, experts=256, top_k=8, ranks=16, tokens_per_rank=tokens)
    assert found.moe_imbalance_ratio == pytest.approx(ratio, rel=0.03)


def test_one_rank_has_no_hot_one() -> None:
    alone = mp.evaluate(**JOB, tp=8, routing="dirichlet:0.5")
    assert (alone.ep, alone.moe_imbalance_ratio, alone.step_imbalance_s) == (1, 1.0, 0.0)


def test_copies_trade_memory_for_balance() -> None:
    job = JOB | {"routing": "dirichlet:1.3"}
    few, many = (mp.evaluate(**job, **WIDE, redundant_experts=n) for n in (0, 16))
    assert many.weights_bytes > few.weights_bytes and many.kv_tokens < few.kv_tokens
    assert many.pass_imbalance_s < 0.2 * few.pass_imbalance_s
    assert many.moe_imbalance_ratio < few.moe_imbalance_ratio
    assert many.ttft_s < few.ttft_s
    # Without skew there is nothing to gain.
    even = [mp.evaluate(**JOB, **WIDE, routing="uniform", redundant_experts=n) for n in (0, 16)]
    assert even[1].pass_s >= 0.999 * even[0].pass_s


def test_the_search_takes_copies_where_routing_is_skewed() -> None:
    def copies(routing: str) -> int:
        best = mp.sweep(
            **{k: v for k, v in JOB.items() if k not in ("concurrency", "max_batch")},
            gpus=32,
            mode="agg",
            tp=16,
            pp=1,
            ep=16,
            spec_tokens=0,
            routing=routing,
            top=1,
        ).best
        return int(best.redundant_experts)

    assert copies("uniform") == 0 < copies("dirichlet:0.5")


def test_recorded_loads_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "loads.csv"
    layers = [[1.0 + (3.0 if e < 16 else 0.0) for e in range(256)] for _ in range(3)]
    pl.DataFrame([{f"e{e}": n for e, n in enumerate(counts)} for counts in layers]).write_csv(file)
    found = row(routing=str(file))
    # The first rank holds 16 experts of four parts each beside 240 of one: 64 of 304, over a 16th.
    assert found.moe_imbalance_ratio == pytest.approx(64 / 304 * 16, rel=0.01)
    with pytest.raises(InputError, match="256 experts"):
        mp.evaluate(**JOB | {"model": "qwen3-30b-a3b"}, tp=8, ep=8, routing=str(file))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"routing": "dirichlet:-1"}, "alpha"),
        ({"routing": "skewed"}, "not a routing model"),
        ({"routing": "missing.csv"}, "missing.csv"),
        ({"model": "llama-3.1-70b", "routing": "uniform"}, "no experts"),
    ],
)
def test_bad_routing_is_named(job: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        mp.evaluate(**JOB | job, tp=8)
