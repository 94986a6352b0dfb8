"""torchtitan 0.3: a generated Python recipe.

torchtitan is configured by functions that return a ``Trainer.Config``; its command-line flags are
frozen and will go. The names of fields differ between 0.3 and later heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.export.job import Job, Launch, NotExpressible
from meshplan.export.slurm import batch_script

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTED_WITH = "torchtitan 0.3.0"

SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
RECOMPUTE = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
RESHARD = {"none": "default", "zero2": "never", "zero3": "always", "hsdp": "always"}

BASES = {
    "llama-3.1-8b": ("llama3", "llama3_8b"),
    "llama-3.1-70b": ("llama3", "llama3_70b"),
    "llama-3.1-405b": ("llama3", "llama3_405b"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
    "qwen3-14b": ("qwen3", "qwen3_14b"),
    "qwen3-32b": ("qwen3", "qwen3_32b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
}
"""Model → (module, function) of the configuration that torchtitan 0.3.0 ships for it."""

STAGES = '''
LAYERS = {sizes}
"""Layers of each pipeline chunk; chunk c sits on stage c mod {pp}."""


def stages() -> list[list[str]]:
    """Modules of each pipeline chunk."""
    chunks, start = [], 0
    for size in LAYERS:
        chunks.append([f"layers.{{i}}" for i in range(start, start + size)])
        start += size
    chunks[0].insert(0, "tok_embeddings")
    chunks[-1] += ["norm", "lm_head"]
    return chunks

'''


def torchtitan(job: Job) -> Launch:
    """Write a recipe, and a batch script that trains with it."""
    _refuse(job)
    base = BASES.get(job.name.lower())
    files = {"plan.py": recipe(job)}
    if base:
        command = (
            "# PYTHONPATH must hold the folder of plan.py.\n"
            'export PYTHONPATH="$PWD:${PYTHONPATH:-}"\n'
            '{torchrun} -m torchtitan.train --module plan --config planned "$@"'
        )
        files["launch.sh"] = batch_script(job, command, {})
    return Launch("torchtitan", TESTED_WITH, files, tuple(_notes(job, known=base is not None)))


def parallelism(job: Job) -> dict[str, object]:
    """Fields of ``ParallelismConfig``, the stages of a pipeline apart."""
    at = job.layout
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": job.replicas,
        "data_parallel_shard_degree": at.shard_group // at.cp,
        "fsdp_reshard_after_forward": RESHARD[at.sharding],
        "tensor_parallel_degree": at.tp,
        "enable_sequence_parallel": at.sequence_parallel,
        "context_parallel_degree": at.cp,
        "expert_parallel_degree": at.ep,
        "pipeline_parallel_degree": at.pp,
    }
    if at.pp > 1:
        fields["pipeline_parallel_schedule"] = SCHEDULES[at.schedule]
        fields["pipeline_parallel_microbatch_size"] = at.micro_batch
    return fields


def batch(job: Job) -> dict[str, int]:
    """Fields of ``TrainingConfig``.

    A pipeline takes the whole batch of a data-parallel rank and cuts it into micro-batches; without
    one, a micro-batch is a step of gradient accumulation.
    """
    at = job.layout
    local = at.micro_batch * (job.micro_batches if at.pp > 1 else 1)
    return {
        "seq_len": int(job.training["seq_len"]),
        "local_batch_size": local,
        "global_batch_size": int(job.training["global_batch"]),
    }


def recipe(job: Job) -> str:
    """Text of the recipe: ``apply`` for any configuration, ``planned`` where the model is known."""
    at = job.layout
    base = BASES.get(job.name.lower())
    policy = RECOMPUTE[at.recompute]
    imports = ["from torchtitan.config import ParallelismConfig"]
    if policy:
        imports.append(f"from torchtitan.distributed.activation_checkpoint import {policy}")
    if base:
        imports.append(f"from torchtitan.models.{base[0]}.config_registry import {base[1]}")
    imports.append("from torchtitan.trainer import Trainer")
    fields = "".join(f"        {name}={value!r},\n" for name, value in parallelism(job).items())
    if at.pp > 1:
        fields += "        module_fqns_per_model_part=stages(),\n"
    sets = "".join(f"    config.training.{name} = {value}\n" for name, value in batch(job).items())
    return (
        f'"""Layout of {job.name} on {job.gpus} GPUs, for {TESTED_WITH}."""\n\n'
        + "\n".join(imports)
        + "\n"
        + (STAGES.format(sizes=job.chunk_sizes(), pp=at.pp) if at.pp > 1 else "\n")
        + "\ndef apply(config: Trainer.Config) -> Trainer.Config:\n"
        + '    """Set the layout on a configuration."""\n'
        + f"    config.parallelism = ParallelismConfig(\n{fields}    )\n{sets}"
        + f"    config.activation_checkpoint = {f'{policy}.Config()' if policy else None}\n"
        + "    return config\n"
        + (_planned(base[1], job.name) if base else "")
    )


def _planned(function: str, name: str) -> str:
    return (
        "\n\ndef planned() -> Trainer.Config:\n"
        f'    """Return the shipped configuration of {name} under the layout."""\n'
        f"    return apply({function}())\n"
    )


def _refuse(job: Job) -> None:
    at, training = job.layout, job.training
    dtype = training["compute_dtype"]
    unsharded = at.sharding == "none" and at.dp * at.cp > 1
    group = at.shard_group % at.cp != 0 or at.sharding not in RESHARD
    folded = at.shard_group * at.tp % at.ep != 0
    refusals = {
        f"schedule {at.schedule}": at.schedule not in SCHEDULES,
        f"recompute {at.recompute}: a policy holds for every layer": at.recompute not in RECOMPUTE,
        f"sharding {at.sharding}: FSDP2 shards parameters": unsharded or at.sharding == "zero1",
        "shard_group must be a multiple of cp": group and at.sharding in RESHARD,
        f"etp = {at.etp}: experts have no tensor parallelism of their own": at.etp > 1,
        f"dp_shard · cp · tp must be a multiple of ep = {at.ep}": folded,
        f"compute format {dtype}: bf16 is computed, fp8 and fp4 by converters": dtype == "fp16",
        "gradients are reduced in fp32": training["grad_dtype"] != "fp32",
    }
    reasons = [reason for reason, holds in refusals.items() if holds]
    if reasons:
        raise NotExpressible("torchtitan", reasons)


def _notes(job: Job, *, known: bool) -> Iterator[str]:
    if not known:
        yield f"torchtitan ships no configuration of {job.name}: call apply() on your own"
    if job.training["compute_dtype"] != "bf16":
        yield (
            f"{job.training['compute_dtype']}: build the model with its converter, for example "
            "model_registry(..., converters=[Float8LinearConverter.Config(...)])"
        )
    if job.mtp_layers and job.layout.pp > 1:
        yield "place the multi-token-prediction heads in the last chunk of stages()"
