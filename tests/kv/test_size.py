"""`planner kv size`: flags, logs, predictions, and complaints that were made about engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.kv.gpus import GIB, visible_bytes
from meshplan.kv.log import parse_log
from meshplan.kv.size import Flags, Hardware, size

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {
    "num_blocks",
    "tokens",
    "max_concurrency",
    "bytes_per_token_per_gpu",
    "bytes_per_block",
    "blocks_per_request",
}


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["kv", "size", *args])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--model", "llama-3.1-8b", "--engine", "vllm", "--tp", "2",
        "--max-model-len", "20000", "--available-memory", "3.81 GiB", "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert code == 0
    assert set(data) >= KEYS
    assert (data["num_blocks"], data["bytes_per_token_per_gpu"]) == (3901, 65536)


def test_negative_memory_is_no_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "llama-3.1-8b", "--available-memory", "-2GiB", "--json")
    data = json.loads(out)
    assert (code, data["num_blocks"], data["tokens"], data["fits"]) == (1, 0, 0, False)
    assert "0 blocks" in err
    assert "hint: take a GPU with more memory" in err


def test_a_request_longer_than_the_pool(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--model", "llama-3.1-8b", "--available-memory", "2.89GiB",
        "--max-model-len", "29000",
    )  # fmt: skip
    assert code == 1
    assert "Maximum concurrency for 29,000 tokens per request: 0.82x" in out
    assert "334 more than there are" in err
    assert "hint: --max-model-len 23664 or --kv-dtype fp8" in err


def test_more_ranks_are_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--model", "llama-3.1-70b", "--gpu", "h100", "--json")
    assert code == 1
    assert "hint: --tp 4" in err
    assert run(capsys, "--model", "llama-3.1-70b", "--gpu", "h100", "--tp", "4")[0] == 0


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--gpu", "h100"], "--model"),
        (["--model", "llama-3.1-8b"], "how much memory"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--engine", "foo"], "engine = foo"),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h100", "--engine-version", "9.9"],
            "--engine-version = 9.9",
        ),
        (["--model", "llama-3.1-8b", "--gpu", "gtx-1080"], "gpu = gtx-1080"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "0"], "--tp = 0"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--kv-dtype", "fp3"], "--kv-dtype = fp3"),
        (["--model", "llama-3.1-8b", "--available-memory", "8 Gb"], "bits"),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "0"],
            "--max-model-len = 0",
        ),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--pp", "99"], "pp = 99"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--pp-layers", "a,b"], "--pp-layers"),
    ],
)
def test_bad_questions(capsys: pytest.CaptureFixture[str], args: list[str], what: str) -> None:
    code, out, err = run(capsys, *args)
    assert code == 2
    assert out == ""
    assert what in err


VLLM_LOG = """\
INFO 05-01 [core.py:71] Initializing a V1 LLM engine (v0.11.0) with config: model='llama-3.1-8b', \
max_seq_len=32768, tensor_parallel_size=2, pipeline_parallel_size=1, kv_cache_dtype=auto,
(Worker_TP0) INFO Model loading took 7.51 GiB and 2.9 seconds
(Worker_TP0) INFO Available KV cache memory: 8.69 GiB
(Worker_TP1) INFO Available KV cache memory: 7.46 GiB
INFO GPU KV cache size: 122,208 tokens
INFO Maximum concurrency for 32,768 tokens per request: 3.73x
"""


def test_a_log_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(VLLM_LOG)
    code, out, _ = run(capsys, "--from-log", str(path), "--json")
    data = json.loads(out)
    lines = {line["what"]: line for line in data["log"]}
    assert code == 0
    assert data["tokens"] == 122_224  # the smaller worker's 7.46 GiB
    assert lines["tokens"]["agrees"] is True
    assert lines["concurrency"]["agrees"] is True
    code, out, _ = run(capsys, "--from-log", str(path))
    assert "agrees" in out


def test_logs_of_other_engines() -> None:
    log = parse_log("KV Cache is allocated. #tokens: 8050, KV size: 0.53 GB\ncontext_len=4096")
    assert (log.engine, log.number("tokens"), log.number("max_len")) == ("sglang", 8050, 4096)
    log = parse_log(
        "Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, "
        "available: 46.52 GiB\nNumber of blocks in KV cache primary pool: 1234"
    )
    assert (log.engine, log.number("blocks")) == ("trtllm", 1234)


def test_a_log_without_a_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text("hello\n")
    code, _, err = run(capsys, "--from-log", str(path))
    assert code == 2
    assert "says nothing about a KV cache" in err


def gqa(layers: int, kv_heads: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    }


def test_sharded_heads_quadruple_the_blocks() -> None:
    """transformers#48566: an unsharded head count gave 814 blocks of 256 where 3,258 fit."""
    memory = Hardware(available_memory=[814.5 * 256 * 262144])
    blocks = [
        size(gqa(64, 8), Flags(tensor_parallel=tp, block_size=256), memory).num_blocks
        for tp in (1, 4)
    ]
    assert blocks == [814, 3258]


def test_shares_mean_different_things() -> None:
    """vllm#21348: vLLM's share is of the total after profiling, SGLang's is the static part."""
    hardware = Hardware(gpu="h100", memory_share=0.9)
    vllm, sglang = (
        size("qwen3-235b-a22b", Flags(engine=e, tensor_parallel=8), hardware)
        for e in ("vllm", "sglang")
    )
    taken = [a.stages[0]["memory"] for a in (vllm, sglang)]
    assert taken[0]["usable_bytes"] == taken[1]["usable_bytes"]
    assert taken[0]["activation_bytes"] > 0 == taken[1]["activation_bytes"]
    assert vllm.tokens < sglang.tokens


def test_kv_is_per_gpu() -> None:
    """vllm#5248: tokens of a pool do not multiply with tp once heads are replicated."""
    memory = Hardware(available_memory=[GIB])
    tokens = [size(gqa(64, 8), Flags(tensor_parallel=t), memory).tokens for t in (4, 8, 16)]
    assert tokens[1] == pytest.approx(2 * tokens[0], rel=0.01)
    assert tokens[2] == tokens[1]


def test_gpu_names() -> None:
    assert visible_bytes("H100-80GB") == visible_bytes("h100") == visible_bytes("h100-sxm")
    assert visible_bytes("A100-40GB") < visible_bytes("a100") / 1.9
    assert visible_bytes("80 GiB") == 80 * GIB
    with pytest.raises(InputError):
        visible_bytes("abacus")


@settings(max_examples=40, deadline=None)
@given(
    gib=st.floats(-4, 64),
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    block=st.sampled_from([1, 16, 32, 128]),
    engine=st.sampled_from(["vllm", "sglang", "llamacpp"]),
)
def test_more_memory_never_means_fewer_blocks(gib: float, tp: int, block: int, engine: str) -> None:
    flags = Flags(engine=engine, tensor_parallel=tp, block_size=block, max_model_len=4096)
    less, more = (
        size("llama-3.1-8b", flags, Hardware(available_memory=[b * GIB])) for b in (gib, gib + 1)
    )
    assert 0 <= less.num_blocks <= more.num_blocks
    assert less.num_blocks * less.bytes_per_block <= max(gib, 0) * GIB
    assert less.fits == (less.num_blocks >= less.blocks_per_request)
