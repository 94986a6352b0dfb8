"""DeepSpeed 0.19: its JSON configuration, and what must be said in code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from meshplan.export.job import Job, Launch, NotExpressible
from meshplan.export.slurm import batch_script

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTED_WITH = "deepspeed 0.19.8"

STAGE = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def deepspeed(job: Job) -> Launch:
    """Write ``ds_config.json`` and a batch script."""
    _refuse(job)
    command = '{torchrun} train.py --deepspeed_config ds_config.json "$@"'
    files = {
        "ds_config.json": json.dumps(config(job), indent=2) + "\n",
        "launch.sh": batch_script(job, command, {}),
    }
    return Launch("deepspeed", TESTED_WITH, files, tuple(_notes(job)))


def config(job: Job) -> dict[str, Any]:
    """Return the configuration: batch = micro-batch · accumulation · data-parallel ranks."""
    at, training = job.layout, job.training
    zero: dict[str, Any] = {"stage": STAGE[at.sharding]}
    if at.sharding != "none":
        zero["overlap_comm"] = bool(training["overlap"]["dp"])
    half = "fp16" if training["compute_dtype"] == "fp16" else "bf16"
    settings: dict[str, Any] = {
        "train_batch_size": training["global_batch"],
        "train_micro_batch_size_per_gpu": at.micro_batch,
        "gradient_accumulation_steps": job.micro_batches,
        "zero_optimization": zero,
        half: {"enabled": True},
        "communication_data_type": training["grad_dtype"],
    }
    if at.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": at.tp}
    if at.cp > 1:
        settings["sequence_parallel_size"] = at.cp
    return settings


def _refuse(job: Job) -> None:
    at, dtype = job.layout, job.training["compute_dtype"]
    staged = at.pp > 1 and STAGE.get(at.sharding, 0) > 1
    refusals = {
        f"sharding {at.sharding}: MiCS was removed": at.sharding not in STAGE,
        f"schedule {at.schedule}: PipelineModule runs 1f1b": at.schedule != "1f1b",
        f"sharding {at.sharding} with pipeline stages": staged,
        "sequence parallelism of the tensor-parallel kind": at.sequence_parallel and at.tp > 1,
        f"etp = {at.etp}: experts are split over the tensor-parallel group or not at all": (
            at.etp not in {1, at.tp}
        ),
        f"ep = {at.ep} must divide dp = {at.dp}": at.dp % at.ep != 0,
        f"cp_comm {job.training['cp_comm']}: context parallelism is Ulysses (all_to_all)": (
            at.cp > 1 and job.training["cp_comm"] != "all_to_all"
        ),
        f"compute format {dtype}": dtype not in {"bf16", "fp16"},
    }
    reasons = [reason for reason, holds in refusals.items() if holds]
    if reasons:
        raise NotExpressible("DeepSpeed", reasons)


def _notes(job: Job) -> Iterator[str]:
    at = job.layout
    if at.pp > 1:
        sizes = ", ".join(map(str, job.chunk_sizes()))
        yield f"wrap the model in PipelineModule(num_stages={at.pp}); layers per stage: {sizes}"
    if job.experts:
        yield f"build each MoE layer with ep_size={at.ep}"
    if at.recompute != "none":
        which = {
            "block": f"the first {at.recompute_layers} layers of a stage",
            "full": "each layer",
        }
        yield f"checkpoint {which.get(at.recompute, 'the attention core')} in the model's code"
