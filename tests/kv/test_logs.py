"""Engine arithmetic against what engines logged and against the published vectors."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from conftest import shared
from meshplan.kv.gpus import GIB
from meshplan.kv.size import Flags, Hardware, Size, size


def gqa(layers: int, kv_heads: int, head_dim: int = 128, heads: int = 32) -> dict[str, Any]:
    """A dense model whose cache has the stated shape."""
    return {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
    }


def mla(layers: int) -> dict[str, Any]:
    """A latent-attention model of DeepSeek's widths."""
    return {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "vocab_size": 102400,
        "tie_word_embeddings": False,
    }


@dataclass(frozen=True)
class Case:
    """How a row of the table is asked."""

    model: dict[str, Any] | str
    flags: dict[str, Any] = field(default_factory=dict)


def qwen35(hidden: int, layers: int, kv_heads: int, v_heads: int) -> dict[str, Any]:
    """Qwen3.5: three gated-delta-net layers, then one of attention, 256 wide."""
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": 17408,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": v_heads,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
    }


SGLANG: dict[str, Any] = {"engine": "sglang"}
LLAMACPP: dict[str, Any] = {"engine": "llama.cpp"}
CASES = {
    "Llama-3.1-8B-Instruct": Case(gqa(32, 8)),
    "Meta-Llama-3-8B": Case(gqa(32, 8)),
    "Qwen3-14B": Case(gqa(40, 8)),
    "(same, fp8, max_len 221000) est_max_model_len": Case(gqa(48, 4)),
    "DeepSeek-V3 f16 (llama.cpp)": Case("deepseek-v3", LLAMACPP),
    "Kimi-K2 (SGLang)": Case("deepseek-v3", SGLANG),
    "Pixtral-12B (Aphrodite)": Case(gqa(40, 8)),
    "Qwen3-4B (pegainfer)": Case(gqa(36, 8)),
    "GLM-4.x 92L PP8": Case(gqa(92, 8, heads=96), {"engine_version": "0.14"}),
    "(vllm.rs qwen3-vl)": Case(gqa(64, 8, heads=64)),
}


def ask(row: dict[str, str], case: Case, gib: float) -> Size:
    flags: dict[str, Any] = {
        "tensor_parallel": int(row["tp"] or 1),
        "pipeline_parallel": int(row["pp"] or 1),
        "kv_dtype": row["kv_dtype"] or "auto",
        "max_model_len": int(row["max_model_len"] or 131072),
        "block_size": int(row["block_size"] or 16),
        **case.flags,
    }
    return size(case.model, Flags(**flags), Hardware(available_memory=[gib * GIB]))


def test_logged_blocks() -> None:
    path = shared("truth", "kv", "kv_logs.csv")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["check"].startswith("match")]
    assert len(rows) == 11
    for row in rows:
        case, gib = CASES[row["model"]], float(row["available_kv_gib"])
        logged = int(row["reported_blocks_or_tokens"])
        low, high = (ask(row, case, gib + step) for step in (-0.005, 0.005))
        if "est_max" in row["check"] + row["note"] + row["model"]:
            assert low.max_len_that_fits <= logged <= high.max_len_that_fits + 16
            continue
        if row["unit"] == "blocks":
            assert low.num_blocks <= logged <= high.num_blocks, row
        else:
            assert low.tokens <= logged <= high.tokens, row
        if row["reported_concurrency"]:
            shown = row["reported_concurrency"]
            assert f"{low.max_concurrency:.2f}" <= shown <= f"{high.max_concurrency:.2f}" or (
                len(shown) < 4 and abs(low.max_concurrency - float(shown)) < 0.05
            )


QWEN = qwen35(5120, 64, 4, 48)
HYBRID: list[tuple[dict[str, Any], dict[str, Any], float, dict[str, Any]]] = [
    (
        QWEN,
        {"tensor_parallel": 2, "kv_dtype": "fp8", "max_model_len": 131072},
        4.99,
        {"block_tokens": 1568, "bytes_per_block": 25_690_112, "blocks_per_request": 90,
         "num_blocks": 208, "tokens": 302_921},
    ),
    (
        qwen35(2048, 40, 2, 32),
        {"kv_dtype": "fp8", "max_model_len": 131072},
        6.01,
        {"block_tokens": 2096, "bytes_per_block": 21_463_040, "blocks_per_request": 69,
         "num_blocks": 300, "tokens": 569_878},
    ),
    (
        QWEN,
        {"tensor_parallel": 2, "kv_dtype": "fp8_e5m2", "max_model_len": 262144,
         "speculative_tokens": 3},
        425 * 27_852_800 / GIB,
        {"block_tokens": 1600, "bytes_per_block": 27_852_800, "blocks_per_request": 179,
         "num_blocks": 425, "tokens": 622_408},
    ),
    (
        QWEN,
        {"max_model_len": 32768, "engine_version": "0.17"},
        1487 * 51_380_224 / GIB,
        {"block_tokens": 784, "bytes_per_block": 51_380_224, "blocks_per_request": 45,
         "num_blocks": 1487, "tokens": 290_864},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "flags", "gib", "want"), HYBRID)
def test_hybrids_integer_for_integer(
    model: dict[str, Any], flags: dict[str, Any], gib: float, want: dict[str, Any]
) -> None:
    answer = size(model, Flags(**flags), Hardware(available_memory=[gib * GIB]))
    assert {name: answer.report[name] for name in want} == want
    assert len(answer.groups) == 4


def test_both_generations_of_the_log_line() -> None:
    """vllm#40691: 290,864 tokens under the old line is 33.04 × 32,768 = 1.08 M of capacity."""
    flags = Flags(max_model_len=32768, engine_version="0.17")
    memory = Hardware(available_memory=[1487 * 51_380_224])
    answer = size(QWEN, flags, memory)
    assert answer.log_lines == {
        "blocks_over_groups": 290_864,
        "concurrency_times_length": 1487 * 32768 // 45,
    }
    assert f"{answer.max_concurrency:.2f}" == "33.04"


def test_tokens_vary_with_the_longest_request() -> None:
    """vllm#51041, #54458: the same pool, 8,192 against 262,144 tokens a request."""
    memory = Hardware(available_memory=[20 * GIB])
    short, long = (size(QWEN, Flags(max_model_len=n), memory) for n in (8192, 262144))
    assert short.num_blocks == long.num_blocks
    assert long.tokens > 1.5 * short.tokens
    # Blocks of a request are a fixed part (states) and one per block of tokens.
    for answer in (short, long):
        tokens = -(-answer.max_model_len // answer.block_tokens)
        assert answer.blocks_per_request == tokens + 3 * 2


def vectors(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(shared("truth", "kv", "kv_vectors.json").read_text())[
        name
    ]
    assert rows
    return rows


PER_TOKEN: dict[str, dict[str, Any] | str] = {
    "llama-2-7b": gqa(32, 32), "llama-2-13b": gqa(40, 40, heads=40),
    "llama-2-70b": gqa(80, 8, heads=64), "llama-3-8b": gqa(32, 8),
    "llama-3-70b": gqa(80, 8, heads=64), "llama-3.1-405b": gqa(126, 8, heads=128),
    "mistral-7b": gqa(32, 8), "mixtral-8x7b": gqa(32, 8), "mixtral-8x22b": gqa(56, 8, heads=48),
    "mistral-nemo-12b": gqa(40, 8), "mistral-small-24b": gqa(40, 8), "qwen1.5-7b": gqa(32, 32),
    "qwen2.5-7b": gqa(28, 4, heads=28), "qwen2.5-14b": gqa(48, 8, heads=40),
    "qwen2.5-32b": gqa(64, 8, heads=40), "qwen2.5-72b": gqa(80, 8, heads=64),
    "qwen3-4b": gqa(36, 8), "qwen3-8b": gqa(36, 8), "qwen3-14b": gqa(40, 8, heads=40),
    "qwen3-32b": gqa(64, 8, heads=64), "qwen3-30b-a3b": gqa(48, 4),
    "qwen3-235b-a22b": gqa(94, 4, heads=64), "glm-4.6(92L)": gqa(92, 8, heads=96),
    "deepseek-coder-6.7b": gqa(32, 32), "falcon-7b(MQA)": gqa(32, 1, 64, heads=71),
    "gpt-oss-20b(all-full)": "gpt-oss-20b", "gpt-oss-120b(all-full)": "gpt-oss-120b",
    "gemma-3-27b(all-full)": "gemma-3-27b", "llama-4-scout(all-full)": gqa(48, 8, heads=40),
    "deepseek-v2-lite": mla(27), "deepseek-v2": "deepseek-v2",
    "deepseek-v3/r1": "deepseek-v3", "kimi-k2": "deepseek-v3",
}  # fmt: skip


def test_bytes_per_token() -> None:
    rows = vectors("per_token")
    seen = 0
    for row in rows:
        name = row["model"].split("(MLA")[0]
        packed = row["model"].removesuffix(")").split()[-1]
        kv_dtype = packed if packed.endswith("ds_mla") else {2: "bf16", 1: "fp8"}[row["elem_bytes"]]
        try:
            answer = size(
                PER_TOKEN[name],
                Flags(tensor_parallel=row["tp"], kv_dtype=kv_dtype, max_model_len=4096),
                Hardware(available_memory=[GIB]),
            )
        except Exception as error:
            raise AssertionError(row) from error
        assert answer.bytes_per_token_per_gpu == row["bytes_per_token_per_gpu"], row
        seen += 1
    assert seen == 130


def gemma(full: int, window: int, width: int) -> dict[str, Any]:
    pattern = ["sliding_attention"] * window + ["full_attention"] * full
    return {**gqa(full + window, 8), "model_type": "gemma3_text", "layer_types": pattern,
            "sliding_window": width}  # fmt: skip


def test_group_plans() -> None:
    models: dict[str, Any] = {
        "gpt-oss-20b": "gpt-oss-20b",
        "gpt-oss-120b": "gpt-oss-120b",
        "gemma-3-27b": "gemma-3-27b",
    }
    seen = 0
    for row in vectors("hybrid_plan"):
        if row["model"] not in models:
            continue
        answer = size(
            models[row["model"]],
            Flags(
                max_model_len=row["max_len"], max_num_batched_tokens=row["max_num_batched_tokens"]
            ),
            Hardware(available_memory=[10 * GIB]),
        )
        assert answer.bytes_per_block == row["bytes_per_block"]
        assert answer.blocks_per_request == row["blocks_per_max_request"]
        groups = row["full_groups"] + row["window_groups"]
        assert len(answer.groups) == groups
        concurrency = answer.num_blocks / answer.blocks_per_request
        assert answer.max_concurrency == pytest.approx(concurrency)
        assert concurrency == pytest.approx(row["concurrency_per_10GiB"], rel=2e-4)
        seen += 1
    assert seen == len(models)
