"""Trace replay: exact counts of the published vectors, and every kind of bad input."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import shared
from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.kv import replay

if TYPE_CHECKING:
    from pathlib import Path

LINE = '{"timestamp": %d, "input_length": %d, "output_length": 2, "hash_ids": %s}\n'


def write(folder: Path, text: str, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(
        tmp_path, LINE % (0, 30, [1, 2, 3]) + LINE % (5, 8, [9]) + LINE % (9, 30, [1, 2, 3])
    )


def test_points_and_curve_agree(small: Path) -> None:
    out = replay(small, block_size=10, capacities=[1, 2, 3, 4, None], ids="all", curve=True)
    assert (out.total_blocks, out.unique_blocks) == (7, 4)
    hits = [point.hit_blocks for point in out.points]
    assert hits == [0, 1, 2, 3, 3]
    assert out.curve == hits[:4]
    assert out.curve_frame()["hit_blocks"].to_list() == hits[:4]


def test_gzip_and_parquet_read_the_same(small: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "trace.jsonl.gz"
    zipped.write_bytes(gzip.compress(small.read_bytes()))
    frame = pl.DataFrame(
        {
            "arrival_s": [0.0, 0.005, 0.009],
            "input_tokens": [30, 8, 30],
            "output_tokens": [2, 2, 2],
            "block_ids": [[1, 2, 3], [9], [1, 2, 3]],
        }
    )
    frame.write_parquet(tmp_path / "trace.parquet")
    results = [
        replay(path, block_size=10, capacities=[3, 4], ids="all")
        for path in (small, zipped, tmp_path / "trace.parquet")
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", "trace.jsonl:1", "empty"),
        ("\n\n", "trace.jsonl", "empty"),
        ("nonsense\n", "trace.jsonl", "no known trace format"),
        (LINE % (0, 30, [1, 2, 3]) + '{"timestamp": 1, ', "trace.jsonl:2", "expected"),
        (LINE % (0, 0, [1]), "trace.jsonl:1", "prompt of 0 tokens"),
        (LINE % (5, 9, [1]) + LINE % (4, 9, [1]), "trace.jsonl:2", "do not decrease"),
        (LINE % (0, 30, [1, 2, 1]), "trace.jsonl:1", "twice in one request"),
        (LINE % (0, 30, []), "trace.jsonl:1", "hash_ids"),
        (LINE % (0, -3, [1]), "trace.jsonl:1", "input_length"),
    ],
)
def test_bad_lines(tmp_path: Path, text: str, place: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        replay(write(tmp_path, text), block_size=10)
    assert place in str(caught.value)
    assert what in str(caught.value)


def test_skip_bad_counts(tmp_path: Path) -> None:
    text = LINE % (0, 8, [1]) + "nonsense\n" + LINE % (1, 8, [1])
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=":2: "):
        replay(path, block_size=10)
    out = replay(path, block_size=10, skip_bad=1)
    assert (out.requests, out.skipped_lines) == (2, 1)
    assert out.first_skipped is not None
    assert ":2: " in out.first_skipped


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 0},
        {"capacities": [-1]},
        {"policy": "fifo", "curve": True},
        {"sample": 0.0},
        {"block_size": 15, "trace_block_size": 10},
        {"skip_bad": -1},
    ],
)
def test_bad_options(small: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replay(small, **{"block_size": 10, **options})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        replay(tmp_path / "none.jsonl")


def python_lru(requests: list[list[int]], capacity: int) -> int:
    """Transparent reference: a dictionary in order of use."""
    pool: dict[int, None] = {}
    hits = 0
    for ids in requests:
        for i in ids:
            if i not in pool:
                break
            hits += 1
        for i in reversed(ids):
            pool.pop(i, None)
            pool[i] = None
            if len(pool) > capacity:
                del pool[next(iter(pool))]
    return hits


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30))
def test_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, walks: list[list[int]]
) -> None:
    names: dict[tuple[int, ...], int] = {}
    requests = [
        [names.setdefault(tuple(walk[:n]), len(names)) for n in range(1, len(walk) + 1)]
        for walk in walks
    ]
    text = "".join(LINE % (t, 10 * len(ids), ids) for t, ids in enumerate(requests))
    path = write(tmp_path_factory.mktemp("t"), text)
    out = replay(path, block_size=10, ids="all", curve=True)
    assert out.curve == [python_lru(requests, c) for c in range(1, len(names) + 1)]


POLICIES = {"lru_tail": "lru", "lru_head": "naive", "fifo": "fifo", "inf": "lru"}


def test_published_counts() -> None:
    trace = shared("truth/traces/mooncake_conversation_trace.jsonl")
    vectors = json.loads(shared("truth/kv/kv_vectors.json").read_text())
    rows = vectors["trace_replay"]["mooncake_conversation"]["replay"]
    assert len(rows) == 38
    for policy in ("lru_tail", "lru_head", "fifo"):
        for mode in ("all_ids", "full_only"):
            want = [r for r in rows if r["mode"] == mode and r["policy"] in (policy, "inf")]
            out = replay(
                trace,
                block_size=512,
                capacities=[r["capacity"] for r in want],
                policy=POLICIES[policy],  # type: ignore[arg-type]
                ids="all" if mode == "all_ids" else "full",
            )
            for row, point in zip(want, out.points, strict=True):
                assert out.total_blocks == row["blocks"]
                assert point.hit_blocks == row["hit_blocks"]
                assert point.hit_tokens == row["hit_tokens"]
                assert point.requests_with_hit == row["requests_with_hit"]
                assert point.evictions == row["evictions"]


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        ("sharegpt-llama-3.1-8b", {1: 20067, 16: 19520, 64: 18880, 256: 16384}),
        ("sharegpt-qwen3-30b-a3b", {1: 21005, 16: 20448, 64: 19776, 256: 17152}),
    ],
)
def test_token_traces(name: str, hits: dict[int, int]) -> None:
    trace = shared(f"truth/traces/vllm_runs/{name}-300-sps10.jsonl.gz")
    for block, tokens in hits.items():
        assert replay(trace, block_size=block).points[0].hit_tokens == tokens


HOSTILE = {
    "nan": LINE.replace("%d", "NaN", 1) % (9, [1]),
    "infinity": LINE.replace("%d", "1e400", 1) % (9, [1]),
    "huge length": LINE % (0, 10**20, [1]),
    "huge id": LINE % (0, 9, [10**20]),
    "negative id": LINE % (0, 9, [-1]),
    "fraction": LINE.replace("%d", "1.5", 2).replace("1.5", "0", 1) % ([1],),
    "deep": '{"hash_ids": [1], "timestamp": 0, "x": ' + "[" * 100_000 + "\n",
    "field twice": LINE.replace("}", ', "hash_ids": [2]}') % (0, 9, [1]),
    "nul bytes": '{"hash_ids"' + "\0" * 100 + "\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_lines_are_told_by_their_place(tmp_path: Path, text: str) -> None:
    good = LINE % (0, 9, [7])
    with pytest.raises(InputError, match=r"trace\.jsonl:2: "):
        replay(write(tmp_path, good + text), block_size=10)
    assert replay(write(tmp_path, good + text), block_size=10, skip_bad=1).skipped_lines == 1


def test_hostile_gzip(tmp_path: Path) -> None:
    text = "".join(LINE % (i, 20, [2 * i, 2 * i + 1]) for i in range(3000))
    whole = gzip.compress(text.encode())
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    for form in (None, "mooncake"):
        with pytest.raises(InputError, match=r"trace\.jsonl\.gz"):
            replay(path, format=form, block_size=10)  # type: ignore[arg-type]
    # A hundred kilobytes that unpack to a hundred megabytes of nothing.
    path.write_bytes(gzip.compress((LINE % (0, 9, [7])).encode() + b"\n" * (100 << 20), 1))
    with pytest.raises(InputError, match="blank lines"):
        replay(path, block_size=10)
    # Two members, one after the other, are one file.
    half = text.index("\n", len(text) // 2) + 1
    path.write_bytes(b"".join(gzip.compress(t.encode()) for t in (text[:half], text[half:])))
    assert replay(path, block_size=10).requests == 3000


def test_a_curve_as_json_is_the_curve(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = replay(small, block_size=10, ids="all", curve=True)
    for more in ([], ["--capacity", "2,inf"]):
        with pytest.raises(SystemExit):
            main(["kv", "replay", str(small), "--block-size", "10", "--ids", "all", "--curve",
                  "--json", *more])  # fmt: skip
        data = json.loads(capsys.readouterr().out)
        assert data["curve"] == out.to_dict()["curve"]
        assert len(data["points"]) == (2 if more else 4)


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_charts(small: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("vl_convert")
    path = tmp_path / f"hits.{kind}"
    of_model = ["--model", "gpt-oss-20b", "--capacity", "10,20,30", "--trace-block-size", "10"]
    for more in (["--block-size", "10"], of_model):
        path.unlink(missing_ok=True)
        with pytest.raises(SystemExit) as left:
            main(["kv", "replay", str(small), "--plot", str(path), *more])
        assert left.value.code == 0
        assert path.stat().st_size > 1000
