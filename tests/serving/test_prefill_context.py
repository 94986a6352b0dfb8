"""Prefill context parallelism: ranks that share a prompt, in the estimate, the search and the flags."""

from __future__ import annotations

import pytest

import meshplan as mp

JOB = {
    "workload": "serving",
    "model": "deepseek-v3",
    "cluster": "h200",
    "backend": "sglang",
    "isl": 32768,
    "osl": 64,
    "concurrency": 4,
}


def row(**job: object) -> mp.serving.result.Deployment:
    return mp.evaluate(**JOB | job)


def test_a_long_prompt_is_shared() -> None:
    whole, parts = (row(tp=8, ep=8, pcp=pcp) for pcp in (1, 4))
    assert (whole.pcp, parts.pcp) == (1, 4)
    # A quarter of the queries of four times the heads are the same pairs, and the projections that
    # every rank repeats are cut.
    assert parts.pass_core_s == pytest.approx(whole.pass_core_s, rel=1e-9)
    assert parts.pass_elementwise_s == pytest.approx(whole.pass_elementwise_s / 4, rel=1e-9)
    assert parts.pass_projections_s < whole.pass_projections_s
    # Weights of attention are cut over two GPUs instead of eight.
    assert parts.weights_bytes > whole.weights_bytes and parts.kv_tokens < whole.kv_tokens
    assert parts.step_projections_s > whole.step_projections_s


def test_the_search_cuts_prompts_only_where_it_is_asked() -> None:
    job = {k: v for k, v in JOB.items() if k != "concurrency"}
    space = {"gpus": 16, "mode": "disagg", "pp": 1, "spec_tokens": 0, "tp": 8, "top": 3}

    def degrees(**more: object) -> tuple[set[int], set[int]]:
        frame = mp.sweep(**job, **space, **more).frame
        return set(frame["pcp"].unique()), set(frame["prefill_pcp"].unique())

    assert degrees() == ({1}, {1})
    assert degrees(prefill={"pcp": [2]}) == ({1}, {2})


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        ({"pcp": 3}, "topology"),
        ({"backend": "vllm", "pcp": 2, "attention_dp": 2, "ep": 8}, "backend"),
        ({"backend": "trtllm", "pcp": 2}, "backend"),
        ({"backend": "sglang", "pcp": 2, "dcp": 2}, "backend"),
    ],
)
def test_rules_refuse_what_no_backend_runs(job: dict[str, object], rule: str) -> None:
    assert row(tp=8, **job).status == rule
