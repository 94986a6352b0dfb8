"""Prefix caches of models with several kinds of layers, against a free queue in plain Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import shared
from meshplan._core import kv_replay
from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.kv import Flags, replay
from reference.hybrid_pool import Pool, need

if TYPE_CHECKING:
    from pathlib import Path

FULL = {"kind": "full", "block_tokens": 4}
WINDOW = {"kind": "window", "block_tokens": 4, "window": 6}
KINDS: list[list[dict[str, Any]]] = [
    [FULL, {"kind": "window", "block_tokens": 4, "window": 9}],
    [FULL, WINDOW, WINDOW],
    [FULL, {"kind": "window", "block_tokens": 12, "window": 13}],
    [FULL, {"kind": "state", "block_tokens": 4}],
    [{"kind": "state", "block_tokens": 4}, FULL, {"kind": "state", "block_tokens": 4}],
    [{"kind": "chunk", "block_tokens": 4, "chunk": 16}, FULL],
    [{"kind": "window", "block_tokens": 4, "window": 9}],
]


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that go on from earlier ones, cut anywhere."""
    found: list[list[int]] = []
    for _ in range(draw(st.integers(2, 14))):
        start: list[int] = []
        if found and draw(st.booleans()):
            old = draw(st.sampled_from(found))
            start = old[: draw(st.integers(0, len(old)))]
        found.append(start + draw(st.lists(st.integers(0, 2), min_size=1, max_size=40)))
    return found


@settings(deadline=None)
@given(prompts(), st.sampled_from(KINDS), st.integers(4, 20), st.integers(0, 12))
def test_equals_a_free_queue(
    tmp_path_factory: pytest.TempPathFactory,
    trace: list[list[int]],
    groups: list[dict[str, Any]],
    chunk: int,
    spare: int,
) -> None:
    capacity = max(need(groups, chunk, len(prompt)) for prompt in trace) + spare
    path = tmp_path_factory.mktemp("trace") / "tokens.jsonl"
    rows = [
        {"input_toks": len(p), "output_toks": 1, "arrival_time_ns": i, "input_tok_ids": p}
        for i, p in enumerate(trace)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    block = min(group["block_tokens"] for group in groups)
    options = {
        "block_tokens": block, "capacities": [capacity, None], "policy": "lru", "ids": "full",
        "layers": {"groups": groups, "chunk_tokens": chunk},
    }  # fmt: skip
    reader = {"format": "tokens", "block_tokens": block}
    out = json.loads(kv_replay(str(path), json.dumps(reader), json.dumps(options)))
    for point, blocks in zip(out["points"], (capacity, 10**9), strict=True):
        pool = Pool(blocks, groups, chunk)
        hits = [pool.request(prompt) for prompt in trace]
        assert point["hit_tokens"] == sum(hits)
        assert point["requests_with_hit"] == sum(hit > 0 for hit in hits)
        assert point["evictions"] == pool.evicted
        assert point["oversized_requests"] == 0


def test_a_model_of_one_kind_keeps_its_counts_and_its_curve() -> None:
    trace = shared("truth", "traces", "mooncake_conversation_trace.jsonl")
    flags = {"block_size": 512, "capacities": [1000, 30000]}
    plain = replay(trace, **flags)
    of_model = replay(trace, model="llama-3.1-8b", curve=True, **flags)
    assert [p.hit_blocks for p in plain.points] == [12_990, 95_337]
    assert of_model.points == plain.points
    assert of_model.curve is not None


def test_windows_of_gpt_oss_on_a_published_trace() -> None:
    trace = shared("truth", "traces", "mooncake_conversation_trace.jsonl")
    out = replay(trace, model="gpt-oss-20b", block_size=512, capacities=[2000, 20000, None])
    full = replay(trace, block_size=512, capacities=[1000, 10000, None])
    assert [group["kind"] for group in out.groups] == ["full", "window"]
    hits, plain = ([p.hit_blocks for p in r.points] for r in (out, full))
    # Without a bound the window asks for nothing that the full layers have not kept.
    assert hits[2] == plain[2] == 105_592
    # Twice the blocks for two groups: what left the window is evicted first, so more is found
    # than if all blocks were full ones.
    assert hits == sorted(hits)
    assert hits[0] >= plain[0] * 0.95
    assert hits[1] >= plain[1] * 0.95


def test_states_are_found_at_checkpoints_only() -> None:
    trace = shared("truth", "traces", "mooncake_conversation_trace.jsonl")
    out = replay(trace, model="qwen3-next-80b-a3b", capacities=[None])
    assert {group["kind"] for group in out.groups} == {"full", "state"}
    assert out.block_size > 256
    plain = replay(trace, block_size=512)
    assert 0 < out.points[0].token_hit_ratio < plain.points[0].token_hit_ratio


LINE = '{"timestamp": %d, "input_length": %d, "output_length": 2, "hash_ids": %s}\n'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (0, 1536, [1, 2, 3]) + LINE % (9, 2048, [1, 2, 3, 4]))
    return path


def test_no_curve_for_several_kinds(small: Path) -> None:
    with pytest.raises(InputError, match="there is no curve"):
        replay(small, model="gpt-oss-20b", curve=True)
    with pytest.raises(InputError, match="only lru"):
        replay(small, model="gpt-oss-20b", policy="fifo")
    with pytest.raises(InputError, match="only vLLM"):
        replay(small, model="gpt-oss-20b", flags=Flags(engine="sglang"))


def test_the_engines_block_on_a_trace_of_longer_ids(small: Path) -> None:
    out = replay(small, model="gpt-oss-20b", capacities=[None, 40])
    assert out.block_size == 16
    assert out.points[0].hit_tokens == 1536
    # A pool that the prompt does not fit is told.
    assert out.points[1].oversized_requests == 2


def test_the_command(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["kv", "replay", str(small), "--model", "gpt-oss-20b", "--json"])
    assert left.value.code == 0
    data = json.loads(capsys.readouterr().out)
    assert [group["kind"] for group in data["groups"]] == ["full", "window"]
    assert data["points"][0]["hit_blocks"] == 96
    with pytest.raises(SystemExit):
        main(["kv", "replay", str(small), "--model", "gpt-oss-20b"])
    assert "group window: blocks of 16, window 128" in capsys.readouterr().out
