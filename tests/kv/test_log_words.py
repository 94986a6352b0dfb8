"""Start-up logs as people have them: published names, versions of tomorrow, no stated memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from meshplan.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "INFO Initializing a V1 LLM engine (v{}) with config: model='{}', max_seq_len={}, "


def explained(
    capsys: pytest.CaptureFixture[str], path: Path, log: str, *args: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:
    path.write_text(log)
    with pytest.raises(SystemExit) as left:
        main(["kv", "size", "--from-log", str(path), "--json", *args])
    out, err = capsys.readouterr()
    assert left.value.code == 0, err
    data = json.loads(out)
    return data, {line["what"]: line for line in data["log"]}, err


def test_a_published_name_is_resolved_and_a_new_version_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = HEAD.format("0.99.1", "meta-llama/Llama-3.1-8B-Instruct", 8192)
    log += "\nINFO Available KV cache memory: 5.06 GiB\nINFO GPU KV cache size: 41,440 tokens\n"
    data, lines, err = explained(capsys, tmp_path / "a.log", log)
    assert data["num_blocks"] == 2590
    assert lines["tokens"]["agrees"] is True
    assert "structure of the preset llama-3.1-8b" in err
    assert "0.99.1" in err
    assert "newest" in err


def test_blocks_stand_for_a_memory_that_is_not_stated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = "# GPU blocks: 1952, # CPU blocks: 2048\n"
    log += "Maximum concurrency for 20000 tokens per request: 1.56x\n"
    data, lines, err = explained(capsys, tmp_path / "a.log", log, "--model", "llama-3.1-8b")
    assert (data["num_blocks"], lines["concurrency"]["agrees"]) == (1952, True)
    assert "no available memory" in err


@pytest.mark.parametrize(
    ("version", "tokens", "blocks"), [("0.13.0", 290_864, 1484), ("0.20.1", 1_082_800, 1487)]
)
def test_tokens_stand_for_it_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, tokens: int, blocks: int
) -> None:
    """vllm#40691: the older line divides blocks by groups, the newer one states the concurrency."""
    log = HEAD.format(version, "Qwen/Qwen3.5-27B", 32768) + "tensor_parallel_size=1,\n"
    log += "Setting attention block size to 784 tokens\nPadding mamba page size by 0.13%\n"
    log += f"GPU KV cache size: {tokens:,} tokens\n"
    args = ("--mamba-cache-mode", "none")
    data, lines, _ = explained(capsys, tmp_path / "a.log", log, *args)
    assert data["num_blocks"] == blocks
    assert [lines[name]["agrees"] for name in ("block size", "padding of states, %")] == [True] * 2


def test_a_refusal_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = HEAD.format("0.11.0", "llama-3.1-8b", 131072) + (
        "\nValueError: To serve at least one request with the models's max seq len (131072), "
        "(16.00 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(4.24 GiB). Based on the available memory, the estimated maximum model length is 34736."
    )
    _, lines, _ = explained(capsys, tmp_path / "a.log", log)
    assert lines["needed, GiB"]["agrees"] is True
    assert lines["estimated longest request"]["agrees"] is True


def test_keys_and_values_of_sglang_are_added(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-30B-A3B', tp_size=2)\n"
        "KV Cache is allocated. #tokens: 812646, K size: 18.60 GB, V size: 18.60 GB\n"
        "max_total_num_tokens=812646, context_len=40960\n"
    )
    data, lines, _ = explained(capsys, tmp_path / "a.log", log)
    assert (data["engine"], lines["tokens"]["agrees"]) == ("sglang", True)
    assert data["groups"][0]["layers"] == 48


@pytest.mark.parametrize(
    ("args", "first", "hint"),
    [
        (["--tp", "0"], "--tp = 0", "see planner kv size --help"),
        (["--pp", "99"], "--pp = 99", "see planner kv size --help"),
        (["--gpu-memory-utilization", "nan"], "--gpu-memory-utilization = nan", "see planner"),
        (["--weight-dtype", "foo"], "--weight-dtype = foo", "one of fp32, bf16"),
        (["--pp", "2", "--pp-layers", "40,-8"], "--pp-layers = 40,-8", "see planner"),
        (["--kv-dtype", "fp8_ds_mla"], "--kv-dtype = fp8_ds_mla", "see planner"),
        (["--free-gpu-memory-fraction", "nan"], "--free-gpu-memory-fraction = nan", "see planner"),
        (["--available-memory", "99999999999999 GiB"], "--available-memory", "see planner"),
    ],
)
def test_errors_name_the_flag(
    capsys: pytest.CaptureFixture[str], args: list[str], first: str, hint: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["kv", "size", "--model", "llama-3.1-8b", "--gpu", "h100", *args])
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert err.startswith(f"error: {first}")
    assert f"hint: {hint}" in err


def test_a_layout_that_the_engine_refuses_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["kv", "size", "--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "3"])
    assert left.value.code in (0, None)
    assert "refuses this layout: tp = 3 does not divide 32" in capsys.readouterr().err


def test_states_of_qwen3_next_have_the_type_of_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its config does not state another; vLLM sets the attention block to 544 tokens."""
    args = ["--model", "qwen3-next-80b-a3b", "--available-memory", "40GiB", "--json"]
    with pytest.raises(SystemExit):
        main(["kv", "size", *args, "--max-model-len", "32768"])
    assert json.loads(capsys.readouterr().out)["block_tokens"] == 544
