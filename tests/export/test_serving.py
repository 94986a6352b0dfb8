"""Launch arguments of serving engines."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshplan.export import NotExpressible
from meshplan.export.serving import Engine, export

BASE = Engine(
    role="serve", workers=2, tp=16, pp=1, attention_dp=1, pcp=1, ep=1, moe_tp=16, dcp=1, max_batch=256,
    max_batched_tokens=8192, block_tokens=64, recv_interval=1, memory_share=0.9, spec_tokens=0,
    redundant_experts=0, kv_dtype="fp8", max_len=5120, model="deepseek-v3", experts=256,
    gpus_per_node=8,
)  # fmt: skip


def engine(**changes: Any) -> Engine:
    from dataclasses import replace

    return replace(BASE, **changes)


def words(backend: str, one: Engine) -> list[str]:
    files = export(backend, [one]).files
    text = next(text for name, text in files.items() if name.endswith(".sh"))
    return shlex.split(text.replace("\\\n", " "), comments=True)


def after(found: list[str], flag: str) -> str:
    return found[found.index(flag) + 1]


def test_prefill_context_ranks_lie_inside_tp() -> None:
    found = words("vllm", engine(role="prefill", pcp=4, ep=16, moe_tp=1))
    assert after(found, "--tensor-parallel-size") == "4"
    assert after(found, "--prefill-context-parallel-size") == "4"
    found = words("sglang", engine(role="prefill", pcp=4, ep=16, moe_tp=1))
    assert (after(found, "--tp-size"), after(found, "--attn-cp-size")) == ("16", "4")
    assert "--enable-prefill-cp" in found and after(found, "--cp-strategy") == "zigzag"
    found = words("sglang", engine(role="prefill", pcp=4, ep=16, moe_tp=1, sparse=True))
    assert after(found, "--cp-strategy") == "interleave"


def test_vllm_attention_replicas_are_data_parallel_ranks() -> None:
    one = engine(attention_dp=16, ep=16, moe_tp=1, redundant_experts=32, max_batch=1024,
                 max_batched_tokens=16 * 8192, spec_tokens=1)  # fmt: skip
    found = words("vllm", one)
    start = found.index("exec")
    assert found[start:][:4] == ["exec", "vllm", "serve", "deepseek-v3"]
    assert after(found, "--tensor-parallel-size") == "1"
    assert after(found, "--data-parallel-size") == "16"
    assert after(found, "--nnodes") == "2"
    assert "--enable-expert-parallel" in found and "--enable-eplb" in found
    assert after(found, "--eplb-config.num_redundant_experts") == "32"
    assert (after(found, "--max-num-seqs"), after(found, "--max-num-batched-tokens")) == (
        "64",
        "8192",
    )
    assert after(found, "--kv-cache-dtype") == "fp8"
    assert json.loads(after(found, "--speculative-config"))["num_speculative_tokens"] == 1


def test_sglang_tp_counts_attention_replicas() -> None:
    one = engine(attention_dp=16, ep=16, moe_tp=1, redundant_experts=32, recv_interval=30)
    found = words("sglang", one)
    assert after(found, "--tp-size") == "16" and after(found, "--attn-dp-size") == "16"
    assert after(found, "--ep-size") == "16"
    assert after(found, "--ep-num-redundant-experts") == "32"
    assert after(found, "--chunked-prefill-size") == "8192"
    assert after(found, "--max-running-requests") == "256"
    assert after(found, "--kv-cache-dtype") == "fp8_e4m3"
    assert after(found, "--scheduler-recv-interval") == "30"
    assert after(found, "--nnodes") == "2"


def test_trtllm_writes_yaml() -> None:
    one = engine(attention_dp=16, ep=16, moe_tp=1, spec_tokens=3)
    files = export("trtllm", [one]).files
    text = files["trtllm-serve.yaml"]
    for line in ("tensor_parallel_size: 16", "enable_attention_dp: true", "max_batch_size: 16",
                 "moe_expert_parallel_size: 16", "  free_gpu_memory_fraction: 0.9",
                 "  num_nextn_predict_layers: 3"):  # fmt: skip
        assert line in text.splitlines()


def test_only_the_first_node_of_vllm_serves_requests() -> None:
    text = export("vllm", [engine()]).files["vllm-serve.sh"].replace("exec vllm", "echo")
    shell = {rank: f"NODE_RANK={rank} MASTER_ADDR=a\n{text}" for rank in (0, 1)}
    said = {
        rank: subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True).stdout
        for rank, script in shell.items()
    }
    assert "--headless" not in said[0] and said[1].rstrip().endswith("--headless")
    assert "--node-rank 1 --master-addr a" in said[1]


def test_a_block_that_vllm_takes_anyway_is_not_said() -> None:
    assert "--block-size" not in words("vllm", engine(block_tokens=16))
    assert after(words("vllm", engine(block_tokens=64)), "--block-size") == "64"


def test_deepep_would_raise_a_smaller_ep() -> None:
    one = engine(attention_dp=16, ep=16, moe_tp=1)
    assert after(words("sglang", one), "--moe-a2a-backend") == "deepep"
    assert "--moe-a2a-backend" not in words("sglang", engine(attention_dp=16, ep=8, moe_tp=2))


def test_copies_of_experts_for_trtllm_are_slots() -> None:
    one = engine(attention_dp=16, ep=16, moe_tp=1, redundant_experts=32)
    lines = export("trtllm", [one]).files["trtllm-serve.yaml"].splitlines()
    at = lines.index("  load_balancer:")
    assert lines[at - 1] == "moe_config:"
    assert lines[at + 1 :][:2] == ["    num_slots: 288", "    layer_updates_per_iter: 1"]


def test_two_kinds_of_engines() -> None:
    pair = [engine(role="prefill", workers=3), engine(role="decode")]
    launch = export("sglang", pair)
    assert list(launch.files) == ["sglang-prefill.sh", "sglang-decode.sh"]
    assert "--disaggregation-mode prefill" in launch.files["sglang-prefill.sh"]
    assert "sglang-prefill: start 3 of them" in launch.notes


@pytest.mark.parametrize(
    ("backend", "changes", "reason"),
    [
        ("vllm", {"ep": 4, "moe_tp": 4}, "ep 4 of 16"),
        ("trtllm", {"attention_dp": 4}, "4 attention replicas"),
        ("trtllm", {"dcp": 2}, "decode context parallelism"),
        ("trtllm", {"pcp": 2}, "prefill context parallelism"),
        ("sglang", {"pcp": 2, "dcp": 2}, "decode context ranks beside those of prefill"),
        ("sglang", {"kv_dtype": "nvfp4"}, "a cache in nvfp4"),
        ("sglang", {"ep": 4, "moe_tp": 2}, "expert TP"),
        ("sglang", {"pp": 2, "spec_tokens": 1}, "drafts in a pipeline"),
        ("vllm", {"role": "decode", "dcp": 2}, "dcp 2 of 16"),
        ("trtllm", {"tp": 4, "pp": 3, "moe_tp": 4}, "3 stages of 4 GPUs over 2 nodes"),
    ],
)
def test_what_cannot_be_said_is_refused(backend: str, changes: Any, reason: str) -> None:
    with pytest.raises(NotExpressible, match=reason):
        export(backend, [engine(**changes)])


def test_a_script_is_one_command_of_the_shell() -> None:
    one = engine(model="a b; rm -rf /", tp=8)
    text = export("vllm", [one]).files["vllm-serve.sh"]
    assert "'a b; rm -rf /'" in text
    assert re.match(r"#!/bin/sh\nexec vllm serve ", text)


def test_the_command(tmp_path: Path) -> None:
    job = (
        *("export", "--workload", "serving", "--gpus", "16", "--model", "deepseek-v3"),
        *(
            "--cluster",
            "h200",
            "--isl",
            "2048",
            "--osl",
            "256",
            "--to",
            "sglang",
            "--mode",
            "disagg",
        ),
        *("--pp", "1", "--dcp", "1", "--spec-tokens", "0", "--folder", str(tmp_path)),
    )
    command = [sys.executable, "-m", "meshplan.cli.app", *job]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"sglang-prefill.sh", "sglang-decode.sh"}
    assert "a router sends each request" in done.stderr
