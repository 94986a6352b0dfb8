"""Sweeps of block sizes and layouts, lengths, and transfers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from conftest import shared
from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.kv import Axes, Flags, Hardware, Route, lengths_of, size, sweep, transfer
from meshplan.kv.gpus import GIB
from meshplan.kv.sweep import fixed, lognormal, parse_lengths

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_equal_the_single_question() -> None:
    axes = Axes(
        block_sizes=(16, 128), kv_dtypes=("bf16", "fp8"), tensor_parallel=(1, 2),
        pipeline_parallel=(1, 2), max_model_lens=(4096, 32768), prefixes=(0, 500),
    )  # fmt: skip
    hardware = Hardware(gpu="h100")
    rows = pl.DataFrame(sweep("llama-3.1-8b", axes, fixed(2000, 200), hardware=hardware))
    assert len(rows) == 2**6
    for row in rows.iter_rows(named=True):
        one = size(
            "llama-3.1-8b",
            Flags(
                tensor_parallel=row["tp"],
                pipeline_parallel=row["pp"],
                kv_dtype=row["kv_format"],
                block_size=row["block_tokens"],
                max_model_len=row["max_len_tokens"],
                max_num_batched_tokens=row["chunk_tokens"],
            ),
            hardware,
        )
        assert (row["num_blocks"], row["blocks_per_request"], row["bytes_per_block"]) == (
            one.num_blocks,
            one.blocks_per_request,
            one.bytes_per_block,
        )


def test_published_waste() -> None:
    """Slots that the Azure code trace allocates and wastes, exactly."""
    vectors = json.loads(shared("truth", "kv", "kv_vectors.json").read_text())["azure"]["code"]
    lengths = lengths_of(shared("truth", "traces", "AzureLLMInferenceTrace_code.csv"))
    assert lengths.requests == vectors["n"]
    blocks = [8, 16, 32, 64, 128, 256, 512, 1024]
    for block in blocks:
        waste = lengths.waste(block)
        assert waste["allocated_tokens"] == vectors[f"alloc_tokens_bs{block}"]
        assert waste["ratio"] == pytest.approx(vectors[f"frag_bs{block}"], abs=1e-12)


def test_published_waste_of_the_conversation_trace() -> None:
    vectors = json.loads(shared("truth", "kv", "kv_vectors.json").read_text())["trace_replay"]
    stats = vectors["mooncake_conversation"]["stats"]
    lengths = lengths_of(shared("truth", "traces", "mooncake_conversation_trace.jsonl"))
    for block in (16, 512, 1024):
        assert lengths.waste(block)["ratio"] == pytest.approx(stats[f"frag_bs{block}"], abs=1e-12)


def test_distributions() -> None:
    drawn = lognormal(2000, 0.9, 100)
    mean = sum(p * n for p, _, n in drawn.rows) / drawn.requests
    assert mean == pytest.approx(2000, rel=0.02)
    assert parse_lengths("fixed:10,5").rows[0][:2] == (10, 5)
    for bad in ("", "fixed:0,1", "hist:", "hist:3", "lognormal:10,9,1", "normal:1,2"):
        with pytest.raises(InputError):
            parse_lengths(bad)


@pytest.mark.parametrize(
    "axes",
    [
        Axes(block_sizes=()),
        Axes(block_sizes=(0,)),
        Axes(shares=(1.5,)),
        Axes(kv_dtypes=("fp3",)),
        Axes(prefixes=(-1,)),
    ],
)
def test_bad_axes(axes: Axes) -> None:
    with pytest.raises(InputError):
        sweep("llama-3.1-8b", axes, fixed(10, 1), hardware=Hardware(available_memory=[GIB]))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(SystemExit) as left:
        main(["kv", "sweep", "--model", "llama-3.1-8b", "--available-memory", "40GiB",
              "--lengths", "fixed:2000,200", "--shared-prefix", "0,240", "--block-size", "16,784",
              "--output", str(path)])  # fmt: skip
    assert left.value.code == 0
    assert "4 combinations" in capsys.readouterr().out
    saved = pl.read_parquet(path)["saved_prefill_ratio"].to_list()
    # A shared prefix of 240 tokens is shorter than a block of 784: nothing is saved.
    assert saved[1] > 0.1
    assert saved[3] == 0


def test_transfer() -> None:
    route = Route(prefill_tp=8, decode_tp=8, prefill_links=8, decode_links=8)
    answer = transfer("llama-3.1-8b", 10_000, route)
    assert answer.bytes == 10_000 * 131_072
    assert answer.whole_s == pytest.approx(answer.bytes / 8 / 50e9)
    assert transfer("deepseek-v3", 1000, route).bytes == 1000 * 70_272
    with pytest.raises(InputError):
        transfer("llama-3.1-8b", 10, route, cached=11)
    with pytest.raises(InputError):
        transfer("llama-3.1-8b", -1, route)


def test_transfer_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kv", "transfer", "--model", "qwen3-30b-a3b", "--prompt", "1000",
              "--prefill-tp", "1", "--decode-tp", "8", "--json"])  # fmt: skip
    data = json.loads(capsys.readouterr().out)
    assert data["unique_slices"] == 4
    assert data["bytes"] == 1000 * 98_304
