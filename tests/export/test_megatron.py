"""Megatron-LM flags and Megatron-Bridge fields."""

from __future__ import annotations

import re

import pytest

from export_jobs import cluster, job, moe_model, training
from meshplan.export import Job, NotExpressible, export
from meshplan.export.megatron import PRECISION, pipeline_layout


def flags(of: Job) -> dict[str, str]:
    """Flag → the words that follow it."""
    script = export(of, "megatron").files["launch.sh"]
    block = script.split("LAYOUT=(\n")[1].split("\n)\n")[0]
    pairs = (line.strip().partition(" ") for line in block.splitlines())
    return {flag: value for flag, _, value in pairs}


def script(of: Job) -> str:
    return export(of, "megatron").files["launch.sh"]


def test_a_dense_layout() -> None:
    got = flags(job())
    assert got["--tensor-model-parallel-size"] == "8"
    assert got["--pipeline-model-parallel-size"] == "4"
    assert got["--micro-batch-size"] == "1"
    assert got["--global-batch-size"] == "1024"
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--bf16"} <= set(got)
    assert got["--hidden-dropout"] == "0"
    assert not [flag for flag in got if "expert" in flag or "recompute" in flag]


def test_expert_tensor_parallelism_is_always_said_for_experts() -> None:
    at = {"tp": 4, "pp": 1, "dp": 256, "ep": 1, "etp": 1}
    assert flags(job(of=moe_model(), **at))["--expert-tensor-parallel-size"] == "1"
    assert flags(job(of=moe_model(), **at))["--expert-model-parallel-size"] == "1"


def test_no_sequence_parallelism_without_tensor_parallelism() -> None:
    assert "--sequence-parallel" not in flags(job(tp=1, dp=256, sequence_parallel=True))


@pytest.mark.parametrize(
    ("architecture", "changes", "line"),
    [
        ("hopper", {}, "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("hopper", {"tp": 1, "dp": 128, "cp": 2}, "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("hopper", {"tp": 1, "dp": 256}, None),
        ("blackwell", {}, None),
        ("hopper", {"sharding": "zero3"}, "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_one_connection_where_megatron_insists(
    architecture: str, changes: dict[str, int], line: str | None
) -> None:
    text = script(job(on=cluster(architecture), **changes))
    found = [words for words in text.splitlines() if "CUDA_DEVICE_MAX_CONNECTIONS" in words]
    assert found == ([line] if line else [])


def test_even_virtual_stages_are_layers_per_chunk() -> None:
    got = flags(job(vpp=5, schedule="interleaved"))
    assert got["--num-layers-per-virtual-pipeline-stage"] == "4"
    assert "--pipeline-model-parallel-layout" not in got


def test_uneven_stages_are_a_layout_string() -> None:
    of = job(of=moe_model(), tp=1, pp=16, dp=64, ep=64, sequence_parallel=False)
    text = pipeline_layout(of)
    assert text == "Et*3|(t*4|)*13t*4|t*3mL" or text == "Et*3|(t*4|)*13t*3|t*3mL"
    assert flags(of)["--pipeline-model-parallel-layout"] == f"'{text}'"
    assert sum(of.chunk_sizes()) == 61


def test_block_recomputation_counts_layers_of_a_chunk() -> None:
    at = {"vpp": 5, "schedule": "interleaved", "recompute": "block"}
    assert flags(job(recompute_layers=10, **at))["--recompute-num-layers"] == "2"
    with pytest.raises(NotExpressible, match="chunks"):
        export(job(recompute_layers=7, **at), "megatron")


def test_full_and_selective_recomputation() -> None:
    full = flags(job(recompute="full"))
    assert full["--recompute-method"] == "uniform"
    assert full["--recompute-num-layers"] == "1"
    selective = flags(job(recompute="selective"))
    assert selective["--recompute-modules"] == "core_attn"
    assert "--recompute-method" not in selective


def test_sharded_parameters_are_megatron_fsdp() -> None:
    got = flags(job(sharding="hsdp", shard_group=8))
    assert got["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert got["--num-distributed-optimizer-instances"] == "4"
    assert got["--ckpt-format"] == "fsdp_dtensor"
    assert flags(job(sharding="zero2"))["--data-parallel-sharding-strategy"] == "optim_grads"


def test_replicated_optimizer_is_plain_data_parallelism() -> None:
    assert "--use-distributed-optimizer" not in flags(job(sharding="none", shard_group=1))


def test_rank_order_with_data_outermost() -> None:
    assert "--use-tp-pp-dp-mapping" in flags(job(work=training(pipeline_outermost=False)))
    with pytest.raises(NotExpressible, match="rank order"):
        export(job(work=training(pipeline_outermost=False), sharding="zero3"), "megatron")


def test_block_scaled_fp8_depends_on_the_device() -> None:
    work = training(compute_dtype="fp8_block")
    assert flags(job(work=work))["--fp8-recipe"] == "blockwise"
    assert flags(job(work=work, on=cluster("blackwell")))["--fp8-recipe"] == "mxfp8"


def test_every_reason_is_named() -> None:
    wrong = job(schedule="zb-h1", sharding="zero3", work=training(pipeline_outermost=False))
    with pytest.raises(NotExpressible) as caught:
        export(wrong, "megatron")
    assert len(caught.value.problems) == 2
    assert caught.value.status == 1


@pytest.mark.parametrize("compute", sorted(set(PRECISION) - {"mxfp8"}))
def test_bridge_sets_the_same_layout(compute: str) -> None:
    work = training(compute_dtype=compute, grad_dtype="bf16", overlap={"tp": True})
    launch = export(job(work=work, cp=2, dp=16), "megatron-bridge")
    text = launch.files["plan.py"]
    compile(text, "plan.py", "exec")
    assert "cfg.model.tensor_model_parallel_size = 8\n" in text
    assert "cfg.train.micro_batch_size = 1\n" in text
    assert "CommOverlapConfig(tp_comm_overlap=True)" in text
    assert "cfg.mixed_precision.grad_reduce_in_fp32 = False\n" in text
    assert re.search(r"needs CUDA_DEVICE_MAX_CONNECTIONS=1", text)
