"""Predicted memory for the cache against what start-up logs state: the error, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from meshplan.kv.gpus import GIB
from meshplan.kv.size import Flags, Hardware, size


def dense(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int
) -> dict[str, Any]:
    """A dense model with untied tables."""
    return {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
    }  # fmt: skip


QWEN_1_5B = dense(1536, 8960, 28, 12, 2, 151936) | {"tie_word_embeddings": True}
QWEN_0_5B = dense(896, 4864, 24, 14, 2, 151936) | {"tie_word_embeddings": True}
QWEN_14B = dense(5120, 13824, 48, 40, 8, 152064)


@dataclass(frozen=True)
class Log:
    """What a log states: deployment, and memory for the cache of one GPU in GiB."""

    source: str
    gpu: str
    model: str | dict[str, Any]
    version: str
    max_len: int
    gib: float
    flags: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)


def blocks(count: int, bytes_per_token: int) -> float:
    """GiB of a pool of blocks of 16 tokens."""
    return count * 16 * bytes_per_token / GIB


TP2, TP4, TP8 = ({"tensor_parallel": n} for n in (2, 4, 8))
FP8 = {"weight_dtype": "fp8"}
LOGS = [
    Log("vllm#10517", "rtx3090", "llama-3.1-8b", "0.6", 20000, 3.81),
    Log("vllm#10517", "rtx3090", "llama-3.1-8b", "0.6", 29000, 2.89),
    Log("vllm#12330", "a100-40", "llama-3-8b", "0.6", 8192, 11.12),
    Log("vllm#2031", "a100", "llama-2-7b", "0.2", 4096, blocks(7351, 524_288)),
    Log("vllm#2031", "a100", "llama-2-70b", "0.2", 4096, blocks(20865, 81_920), TP4),
    Log("vllm#5248", "t4", dense(4096, 11008, 32, 32, 32, 32256), "0.4", 16384,
        blocks(507, 262_144), TP2),
    Log("vllm#6746", "h100", "llama-3.1-405b", "0.5", 131072, blocks(4962, 64_512), TP8, FP8),
    Log("vllm#10511", "h100", "llama-3-8b", "0.7", 8192, 53.29),
    Log("vllm#13061", "rtx4090", QWEN_14B, "0.7", 131072, 8.69, TP2, {"memory_share": 0.98}),
    Log("vllm#21348", "h100", "qwen3-235b-a22b", "0.9", 40960, 8.11, TP4, FP8),
    Log("LMCache#1241", "rtx4090", "qwen3-30b-a3b", "0.10", 32000, blocks(5474, 49_152), TP2, FP8),
    Log("talos-argocd-proxmox#1995", "rtx3090", "qwen3.5-27b", "0.33", 131072, 4.99,
        TP2 | {"kv_dtype": "fp8"}, FP8 | {"memory_share": 0.92}),
    Log("vLLM 0.19 run", "rtx4090", "llama-3.1-8b", "0.19", 32768, blocks(2588, 131_072)),
    Log("start-up log, A10", "a10", "llama-3.1-8b", "0.7", 131072, 4.60),
    Log("start-up log, A10", "a10", QWEN_1_5B, "0.7", 4096, 15.52),
    Log("start-up log, T4", "14.56 GiB", QWEN_0_5B, "0.7", 32768, 10.63),
    Log("start-up log, V100", "v100", "qwen2.5-7b", "0.7", 32768, 9.88),
]  # fmt: skip


def predicted(log: Log) -> dict[str, float]:
    """Terms of the model, GiB."""
    flags = Flags(engine_version=log.version, max_model_len=log.max_len, **log.flags)
    answer = size(log.model, flags, Hardware(gpu=log.gpu, **log.hardware))
    terms = answer.stages[0]["memory"]
    return {name.removesuffix("_bytes"): value / GIB for name, value in terms.items()}


UNEXPLAINED = {
    ("vllm#12330", 11.12): "states an activation peak of 9.37 GiB for batches of 8,192 tokens",
    ("vllm#2031", 25.47): "13 GiB beside PyTorch with four ranks; 38.6 GiB before that was counted",
    ("vllm#5248", 1.98): "the same time and cause, two T4",
    ("vllm#6746", 4.77): "attention of this FP8 checkpoint is in 16 bits: 8.4 GiB of weights",
    ("vllm#10511", 53.29): "a pull request under test: 1.79 GiB beside PyTorch on one GPU",
    ("vllm#21348", 8.11): "FP8 experts on Hopper: warm-up of kernels was counted",
}
"""Misses by more than a GiB: what the log says of them."""


def test_errors_against_logs() -> None:
    errors = {
        (log.source, round(log.gib, 2)): predicted(log)["available"] - log.gib for log in LOGS
    }
    size_of = sorted(abs(error) for error in errors.values())
    assert len(size_of) == 17
    # Quantiles that docs/kv-capacity.md states.
    assert size_of[8] < 0.35
    assert sum(error < 0.5 for error in size_of) >= 10
    assert {key for key, error in errors.items() if abs(error) > 1} == set(UNEXPLAINED)
    # Too much is predicted where something is missed, never far too little.
    assert min(errors.values()) > -0.2


@pytest.mark.parametrize(
    ("model", "gpu", "version", "max_len", "peak"),
    [
        ("llama-3-8b", "h100", "0.7", 8192, 1.26),  # vllm#10511
        (QWEN_1_5B, "a10", "0.7", 4096, 1.40),
        ("llama-3.2-3b", "8 GiB", "0.7", 10000, 1.22),
        ("qwen2.5-7b", "v100", "0.7", 32768, 4.35),
        (QWEN_0_5B, "14.56 GiB", "0.7", 32768, 1.44),
    ],
)
def test_activation_peaks_that_logs_state(
    model: str | dict[str, Any], gpu: str, version: str, max_len: int, peak: float
) -> None:
    """Sampling decides all but the fourth, which is a forward pass of 32,768 tokens."""
    terms = predicted(Log("", gpu, model, version, max_len, 0.0))
    assert terms["activation"] == pytest.approx(peak, rel=0.06)
