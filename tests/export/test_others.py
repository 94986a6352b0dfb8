"""torchtitan recipes, DeepSpeed configurations, batch scripts."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_jobs import cluster, job, model, moe_model, training
from meshplan.errors import InputError
from meshplan.export import EXPORTERS, Job, NotExpressible, export
from meshplan.export.deepspeed import config
from meshplan.export.slurm import header
from meshplan.export.torchtitan import batch, parallelism


def test_torchtitan_shards_within_a_group_and_replicates_over_groups() -> None:
    fields = parallelism(job(sharding="hsdp", shard_group=8, cp=2, dp=16))
    assert fields["data_parallel_shard_degree"] == 4
    assert fields["data_parallel_replicate_degree"] == 4
    assert fields["fsdp_reshard_after_forward"] == "always"


def test_torchtitan_pipeline_takes_the_whole_batch_of_a_rank() -> None:
    assert batch(job(sharding="zero3"))["local_batch_size"] == 32
    assert batch(job(sharding="zero3", pp=1, dp=128, micro_batch=2))["local_batch_size"] == 2


def test_torchtitan_recipe_places_layers_as_the_estimate_does() -> None:
    of = job(of=moe_model(), tp=1, pp=16, dp=64, ep=64, sharding="zero3", sequence_parallel=False)
    text = export(of, "torchtitan").files["plan.py"]
    start, stop = text.index("LAYERS ="), text.index("def apply")
    names: dict[str, Any] = {}
    exec(compile(text[start:stop], "plan.py", "exec"), names)
    stages = names["stages"]()
    assert len(stages) == 16
    assert stages[0][:2] == ["tok_embeddings", "layers.0"]
    assert stages[-1][-3:] == ["layers.60", "norm", "lm_head"]
    assert sum(module.startswith("layers.") for stage in stages for module in stage) == 61
    compile(text, "plan.py", "exec")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sharding": "zero1"}, "zero1"),
        ({"schedule": "zb-h1"}, "zb-h1"),
        ({"recompute": "block", "recompute_layers": 4}, "policy"),
        ({"etp": 2, "of": moe_model()}, "etp"),
        ({"work": training(compute_dtype="fp16")}, "fp16"),
    ],
)
def test_torchtitan_says_what_it_cannot(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(NotExpressible, match=word):
        export(job(**{"sharding": "zero3", **changes}), "torchtitan")


def test_a_model_that_torchtitan_does_not_ship_is_a_note() -> None:
    launch = export(job(of=model(name='my """ model\nimport os'), sharding="zero3"), "torchtitan")
    assert list(launch.files) == ["plan.py"]
    assert launch.notes
    compile(launch.files["plan.py"], "plan.py", "exec")
    assert "import os" not in launch.files["plan.py"].splitlines()


def test_deepspeed_batch_adds_up() -> None:
    at = {"tp": 1, "pp": 1, "dp": 256, "micro_batch": 2, "sequence_parallel": False}
    got = config(job(sharding="zero3", **at))
    assert got["train_batch_size"] == 1024
    product = got["train_micro_batch_size_per_gpu"] * got["gradient_accumulation_steps"] * 256
    assert product == 1024
    assert got["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sequence_parallel": True}, "sequence parallelism"),
        ({"sharding": "zero2"}, "pipeline"),
        ({"sharding": "hsdp", "shard_group": 8, "pp": 1, "dp": 128}, "MiCS"),
        ({"cp": 2, "dp": 16}, "Ulysses"),
        ({"work": training(compute_dtype="fp8")}, "fp8"),
    ],
)
def test_deepspeed_says_what_it_cannot(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(NotExpressible, match=word):
        export(job(**{"sequence_parallel": False, **changes}), "deepspeed")


def test_batch_script_asks_for_whole_nvlink_domains() -> None:
    assert "--segment=18" in header(job(on=cluster("blackwell", 4, 72), dp=36))
    assert not [line for line in header(job()) if "segment" in line]
    assert "--nodes=128" in header(job())
    assert "--gpus-per-node=4" in header(job(dp=1, tp=4, pp=1))


def test_unknown_framework_is_an_input_error() -> None:
    with pytest.raises(InputError, match="must be one of megatron"):
        export(job(), "jax")


power = st.integers(0, 3).map(lambda n: 2**n)


@given(
    target=st.sampled_from(sorted(EXPORTERS)),
    tp=power, pp=power, cp=power, dp=power,
    sharding=st.sampled_from(["none", "zero1", "zero2", "zero3"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    moe=st.booleans(),
)  # fmt: skip
def test_whatever_is_written_parses(
    target: str, tp: int, pp: int, cp: int, dp: int, sharding: str, recompute: str, moe: bool
) -> None:
    of: Job = job(
        of=moe_model() if moe else model(), tp=tp, pp=pp, cp=cp, dp=dp, sharding=sharding,
        recompute=recompute, sequence_parallel=tp > 1,
        shard_group=1 if sharding == "none" else dp * cp,
    )  # fmt: skip
    try:
        files = export(of, target).files
    except NotExpressible:
        return
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
        elif name.endswith(".json"):
            json.loads(text)
        else:
            assert text.startswith("#!/usr/bin/env bash\n#SBATCH ")


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed"])
def test_scripts_are_valid_shell(target: str) -> None:
    at = {"pp": 1, "dp": 128, "sharding": "zero3"}
    at |= {"tp": 1, "dp": 1024, "sequence_parallel": False} if target == "deepspeed" else {}
    text = export(job(**at), target).files["launch.sh"]
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
