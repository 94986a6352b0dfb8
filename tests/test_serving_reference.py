"""The serving estimate against the slow reference: every term, memory and the closed form."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import polars as pl
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshplan import _core
from meshplan.specs import serving_costs
from reference.serving import estimate, jobs, outcome, play, replay
from test_reference import CURVE, FABRIC

HARDWARE = json.loads(serving_costs.hardware_json("hopper"))
SOFTWARE = json.loads(serving_costs.software_json("vllm"))
RANDOM = jobs.jobs(curve=CURVE, fabric=FABRIC, hardware_names=HARDWARE, software_names=SOFTWARE)
TOLERANCE = 1e-9


def engine(job: dict[str, Any]) -> dict[str, Any]:
    """Estimate of the core, without the requests."""
    return json.loads(_core.serving_estimate(json.dumps(job))[0])


def apart(
    found: Any, expected: Any, name: str = "", rel_tol: float = TOLERANCE, whole: float = 0.0
) -> list[tuple[str, Any, Any]]:
    """Where two trees of numbers part; a term is compared to itself or to a vanishing part of all."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), name
        assert set(found) == set(expected), (name, set(found) ^ set(expected))
        numbers = [v for v in expected.values() if isinstance(v, float)]
        top = max(map(abs, numbers), default=0.0)
        return [
            pair
            for key, value in expected.items()
            for pair in apart(found[key], value, f"{name}.{key}", rel_tol, top)
        ]
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), name
        pairs = enumerate(zip(found, expected, strict=True))
        return [pair for i, two in pairs for pair in apart(*two, f"{name}[{i}]", rel_tol)]
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        number = not isinstance(found, bool) and isinstance(found, (int, float))
        near = number and math.isclose(found, expected, rel_tol=rel_tol, abs_tol=1e-14 * whole)
        return [] if near else [(name, found, expected)]
    return [] if found == expected else [(name, found, expected)]


def check_terms(job: dict[str, Any]) -> None:
    found = engine(job)
    expected = estimate.terms(job, found["outcome"]["mean_running"])
    assert apart({name: found[name] for name in expected}, expected) == []


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(RANDOM)
def test_every_term_agrees(job: dict[str, Any]) -> None:
    check_terms(job | {"mode": "mean"})


def check_means(job: dict[str, Any]) -> bool:
    job = job | {"mode": "mean"}
    found = engine(job)
    if not found["fits"]:
        return False
    expected = estimate.means(job)
    out = found["outcome"] | {"prefill_busy_ratio": found["prefill_busy_ratio"]}
    got = {name: out[name] for name in expected}
    got |= {name: got[name]["mean"] for name in ("ttft_s", "tpot_s")}
    assert apart(got, expected) == []
    return True


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(RANDOM)
def test_the_closed_form_agrees(job: dict[str, Any]) -> None:
    check_means(job)


# The replay


Row = dict[str, Any]


def played(job: dict[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    """Estimate of the core, and its requests."""
    told, requests = _core.serving_estimate(json.dumps(job))
    return json.loads(told), pl.DataFrame(requests).to_dicts()


def same(found: float | None, expected: float, scale_s: float) -> bool:
    """Equal but for the order of sums; `scale_s` is a time of which these are differences."""
    found = math.nan if found is None else found
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale_s)


def check_requests(rows: list[Row], requests: list[replay.Request]) -> None:
    """Each request has the same times in both."""
    assert len(rows) == len(requests)
    for row, r in zip(rows, requests, strict=True):
        expected = {
            "send_s": r.send_s,
            "queue_s": r.start_s - r.send_s,
            "ttft_s": r.first_s - r.send_s,
            "tpot_s": outcome.tpot_s(r),
            "finish_s": r.finish_s,
        }
        for name, value in expected.items():
            assert same(row[name], value, r.finish_s), (r.number, name, row[name], value)
        assert row["preemptions"] == r.preemptions


def check_replay(job: dict[str, Any], *, blocked: bool) -> None:
    """Every request and every figure of the outcome; `blocked`: also how long requests were."""
    found, rows = played(job)
    assume(found["fits"])
    there = play.play(job, rows)
    # What hangs on the last digit of a time is decided by the order of sums.
    assume(not there.close_call)
    check_requests(rows, there.requests)
    got = found["outcome"] | {"prefill_busy_ratio": found["prefill_busy_ratio"]}
    expected = dict(there.outcome)
    if not blocked:
        # The engine looks who waits once for a run of steps, so it sees no more than there is.
        assert got["blocked_ratio"] <= expected.pop("blocked_ratio") + TOLERANCE
        expected.pop("saturated")
    assert apart({name: got[name] for name in expected}, expected) == []


def replays(examples: int) -> Any:
    """Settings of a test that plays."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[*SLOW, HealthCheck.filter_too_much],
    )


SMALL = jobs.small_jobs(RANDOM)
ROOM = st.integers(50, 3000)


def tight(job: dict[str, Any], room: int) -> dict[str, Any]:
    """A pool for the longest request and some tokens more, so that requests wait or lose theirs.

    SGLang's pool stays large: the engine tries again every 16 steps only.
    """
    if job["deployment"]["backend"] == "sglang":
        return job
    job["deployment"]["decode"]["engine"]["spec_tokens"] = 0
    longest = job["load"]["input"]["tokens"] + job["load"]["output"]["tokens"]
    return jobs.with_pool(job, longest + room)


@replays(60)
@given(SMALL, ROOM, st.booleans())
def test_a_closed_loop_is_played_token_by_token(
    job: dict[str, Any], room: int, small_pool: bool
) -> None:
    # Step times are linear in the context, so runs of steps are exact.
    job = jobs.without_latency(job)
    job["deployment"]["prefill"] = None
    check_replay(tight(job, room) if small_pool else job, blocked=True)


@replays(60)
@given(SMALL, ROOM, st.booleans(), st.booleans())
def test_requests_that_come_between_steps_are_played_token_by_token(
    job: dict[str, Any], room: int, small_pool: bool, timed: bool
) -> None:
    # With step times that do not depend on the context, so are the steps until a request is seen.
    job = jobs.without_context(job)
    job["deployment"]["prefill"] = None
    if timed:
        job["load"] |= {"arrivals": {"kind": "open", "rate_per_s": 5.0, "cv": 1.0}, "requests": 60}
        job["deployment"]["decode"]["workers"] = 1
    check_replay(tight(job, room) if small_pool else job, blocked=False)


@replays(60)
@given(SMALL, ROOM, st.booleans(), st.booleans())
def test_prefill_and_decode_apart_are_played_token_by_token(
    job: dict[str, Any], room: int, small_pool: bool, timed: bool
) -> None:
    job = jobs.without_context(job)
    sides = job["deployment"]
    sides["prefill"] = sides["prefill"] or copy.deepcopy(sides["decode"])
    if timed:
        job["load"] |= {"arrivals": {"kind": "open", "rate_per_s": 5.0, "cv": 1.0}, "requests": 60}
    check_replay(tight(job, room) if small_pool else job, blocked=False)
