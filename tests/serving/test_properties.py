"""Properties of serving estimates of random models: limits, conservation, monotony."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from test_serving_reference import SMALL, Row, played, replays

Job = dict[str, Any]


def with_load(job: Job, **changes: Any) -> Job:
    return job | {"load": job["load"] | changes}


def closed(clients: int) -> dict[str, Any]:
    return {"kind": "closed", "concurrency": clients}


def equal(tokens: int) -> dict[str, Any]:
    return {"tokens": tokens, "low": 1.0}


def answered(rows: list[Row]) -> list[Row]:
    return [r for r in rows if r["finish_s"] is not None and not math.isnan(r["finish_s"])]


@replays(60)
@given(SMALL)
def test_every_request_is_answered_once_or_refused(job: Job) -> None:
    found, rows = played(job)
    assume(found["fits"])
    out = found["outcome"]
    load = job["load"]
    clients = load["arrivals"]["concurrency"]
    assume(clients % job["deployment"]["decode"]["workers"] == 0 or job["deployment"]["prefill"])
    if job["deployment"]["prefill"]:
        assert out["requests"] == len(rows) == (load["requests"] or 10 * clients)
    done = answered(rows)
    assert out["rejected"] == 0
    assert len(done) == len(rows)
    for r in done:
        assert r["queue_s"] >= 0
        assert r["ttft_s"] > 0
        assert r["send_s"] + r["ttft_s"] <= r["finish_s"] * (1 + 1e-12)
        assert load["input"]["low"] * load["input"]["tokens"] - 1 <= r["input_tokens"]
        assert r["input_tokens"] <= load["input"]["tokens"]
        assert r["hit_tokens"] < r["input_tokens"]
    # Never more at work than there are clients (of an engine, where one of each kind is played).
    marks = [(r["send_s"], 1) for r in done] + [(r["finish_s"], -1) for r in done]
    at_once = most = 0
    for _, change in sorted(marks):
        at_once += change
        most = max(most, at_once)
    assert most <= clients


@replays(60)
@given(SMALL)
def test_littles_law(job: Job) -> None:
    job["deployment"]["decode"]["workers"] = 1
    job = with_load(job, requests=None)
    found, rows = played(job)
    assume(found["fits"])
    out, done = found["outcome"], answered(rows)
    clients = job["load"]["arrivals"]["concurrency"]
    latency = sum(r["finish_s"] - r["send_s"] for r in done) / len(done)
    assert out["requests_per_s"] * latency == pytest.approx(clients)
    output = sum(r["output_tokens"] for r in done) / len(done)
    assert out["output_tokens_per_s"] == pytest.approx(out["requests_per_s"] * output)
    if job["deployment"]["prefill"] is None and out["preemptions"] == 0:
        inside = sum(r["finish_s"] - r["send_s"] - r["queue_s"] for r in done)
        assert out["mean_running"] * out["makespan_s"] == pytest.approx(inside)


@replays(60)
@given(SMALL, st.booleans())
def test_one_client_waits_for_nobody(job: Job, mean: bool) -> None:
    # TTFT is latency and one pass, TPOT the step of one request at its mean context.
    job["deployment"]["prefill"] = None
    job["deployment"]["decode"]["engine"] |= {"spec_tokens": 0, "max_batched_tokens": 1 << 20}
    tokens, answer = job["load"]["input"]["tokens"], max(job["load"]["output"]["tokens"], 2)
    job = with_load(
        job, arrivals=closed(1), input=equal(tokens), output=equal(answer), prefix_hit_ratio=0.0
    )
    job["deployment"]["decode"]["workers"] = 1
    found, _ = played(job | {"mode": "mean" if mean else "replay"})
    assume(found["fits"])
    software, out = job["software"], found["outcome"]
    outside = software["ttft_s"] + software["ttft_per_token_s"] * tokens
    first = outside + sum(found["prefill"].values())
    assert out["ttft_s"]["mean"] == pytest.approx(first)
    assert out["tpot_s"]["mean"] == pytest.approx(sum(found["decode"].values()))


@replays(60)
@given(SMALL, st.integers(1, 3000))
def test_a_longer_prompt_has_a_later_first_token(job: Job, more: int) -> None:
    tokens = job["load"]["input"]["tokens"]
    job = with_load(job, arrivals=closed(1), output=equal(8), requests=1, prefix_hit_ratio=0.0)
    short, _ = played(with_load(job, input=equal(tokens)))
    long, _ = played(with_load(job, input=equal(tokens + more)))
    assume(short["fits"] and long["fits"])
    least = short["outcome"]["ttft_s"]["mean"] * (1 - 1e-12)
    assert long["outcome"]["ttft_s"]["mean"] >= least


@replays(60)
@given(SMALL, st.sampled_from([2, 3, 4]))
def test_more_engines_are_never_worse(job: Job, times: int) -> None:
    # The same clients on more engines: steps of fewer requests, no longer queue. Attention replicas
    # that wait for each other are another matter: with fewer clients they wait longer.
    pool = job["deployment"]["decode"]
    assume(job["deployment"]["backend"] != "trtllm" or pool["engine"]["attention_dp"] == 1)
    job["deployment"]["prefill"] = None
    pool["workers"] = 1
    pool["engine"]["spec_tokens"] = 0
    # A step with a tiny pass in it must not be shorter than one without.
    job["software"]["mixed_decode_share"] = max(job["software"]["mixed_decode_share"], 1.0)
    job = with_load(
        job,
        arrivals=closed(4 * times),
        requests=None,
        input=equal(job["load"]["input"]["tokens"]),
        output=equal(job["load"]["output"]["tokens"] + 1),
    )
    few, _ = played(job)
    many_job = copy.deepcopy(job)
    many_job["deployment"]["decode"]["workers"] = times
    many, _ = played(many_job)
    assume(few["fits"])
    assert many["outcome"]["requests_per_s"] >= few["outcome"]["requests_per_s"] * 0.98
    assert many["outcome"]["tpot_s"]["mean"] <= few["outcome"]["tpot_s"]["mean"] * 1.02
