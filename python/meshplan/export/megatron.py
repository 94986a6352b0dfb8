"""Megatron-LM and Megatron-Bridge: one list of settings, written as flags or as fields.

Names and rules were read in Megatron-LM 0.20 and checked against megatron-core 0.16.1 and the parser
of 0.19.2; ``tests/export/flags.toml`` lists them.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from meshplan.export.job import Job, Launch, NotExpressible
from meshplan.export.slurm import batch_script

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTED_WITH = "megatron-core 0.19.2"
BRIDGE_TESTED_WITH = "not run; names read in Megatron-Bridge 0.6.2"


class Setting(NamedTuple):
    """One setting, under both of its names; an empty name means: not needed there."""

    flag: str
    field: str
    value: int | bool | str | tuple[str, ...]


SCHEDULES = {"1f1b", "interleaved"}
CP_COMM = {"p2p": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
ATTENTION = {"unfused": "unfused", "flash2": "flash", "flash3": "flash"}
FSDP = {"zero2": "optim_grads", "zero3": "optim_grads_params", "hsdp": "optim_grads_params"}

PRECISION = {
    "bf16": ((), "bf16_mixed"),
    "fp16": ((), "fp16_mixed"),
    "fp8": (
        (("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
        "bf16_with_fp8_current_scaling_mixed",
    ),
    "fp8_block": (
        (("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
        "bf16_with_fp8_subchannel_scaling_mixed",
    ),
    "mxfp8": ((("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")), "bf16_with_mxfp8_mixed"),
    "nvfp4": ((("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")), "bf16_with_nvfp4_mixed"),
}
"""Compute format → (flags, recipe of Megatron-Bridge). Block-scaled fp8 is `mxfp8` from Blackwell
on and `blockwise` before."""


def megatron_lm(job: Job) -> Launch:
    """Write a shell script of Megatron-LM arguments, inside a batch script."""
    _refuse(job, "Megatron-LM")
    lines = [_flag(setting) for setting in settings(job) if setting.flag]
    arguments = "\n".join(f"    {line}" for line in lines)
    command = (
        f"LAYOUT=(\n{arguments}\n)\n"
        "MODEL=() # the flags of your model, data, optimizer and checkpoints\n\n"
        '{torchrun} pretrain_gpt.py "${LAYOUT[@]}" "${MODEL[@]}" "$@"'
    )
    files = {"launch.sh": batch_script(job, command, _environment(job))}
    return Launch("megatron", TESTED_WITH, files, tuple(_notes(job)))


def megatron_bridge(job: Job) -> Launch:
    """Write a function that sets the fields of a Megatron-Bridge configuration."""
    _refuse(job, "Megatron-Bridge")
    chosen = [setting for setting in settings(job) if setting.field]
    overlap = [s for s in chosen if s.field.startswith("comm_overlap.")]
    lines = [f"cfg.{s.field} = {_literal(s.value)}" for s in chosen if s not in overlap]
    imports = ["from megatron.bridge.training.mixed_precision import get_mixed_precision_config"]
    if overlap:
        imports.insert(0, "from megatron.bridge.training.comm_overlap import CommOverlapConfig")
        switches = {"tp_comm_overlap": False} | {s.field.split(".")[1]: s.value for s in overlap}
        words = ", ".join(f"{name}={value}" for name, value in switches.items())
        lines.append(f"cfg.comm_overlap = CommOverlapConfig({words})")
    fp32 = job.training["grad_dtype"] == "fp32"
    lines.append(
        f'cfg.mixed_precision = get_mixed_precision_config("{PRECISION[_recipe(job)][1]}")'
    )
    lines.append(f"cfg.mixed_precision.grad_reduce_in_fp32 = {fp32}")
    body = "".join(f"    {line}\n" for line in [*lines, "return cfg"])
    text = (
        f'"""Layout of {job.name} on {job.gpus} GPUs, for Megatron-Bridge."""\n\n'
        + "\n".join(imports)
        + "\n\n\ndef apply(cfg):\n"
        + f'    """Set the layout on a ConfigContainer; {_environment_words(job)}."""\n{body}'
    )
    return Launch("megatron-bridge", BRIDGE_TESTED_WITH, {"plan.py": text}, tuple(_notes(job)))


def settings(job: Job) -> list[Setting]:
    """Every setting of the layout, in the order in which people read them."""
    return [
        *_degrees(job),
        *_pipeline(job),
        *_data_parallel(job),
        *_batch(job),
        *_recompute(job),
        *_overlap(job),
        *_precision(job),
    ]


def pipeline_layout(job: Job) -> str:
    """Layers of each chunk in Megatron's letters, equal neighbours folded: ``Et*7|(t*8|)*14t*7L``.

    ``E`` embedding, ``t`` layer, ``m`` multi-token-prediction head, ``L`` loss.
    """
    sizes = job.chunk_sizes()
    first, *middle, last = [f"t*{size}" if size else "" for size in sizes]
    runs = [(text, len(list(same))) for text, same in groupby(middle)]
    inner = "".join(f"({t}|)*{n}" if n > 1 else f"{t}|" for t, n in runs)
    return f"E{first}|{inner}{last}{'m' * job.mtp_layers}L"


def _degrees(job: Job) -> Iterator[Setting]:
    at = job.layout
    yield Setting("--tensor-model-parallel-size", "model.tensor_model_parallel_size", at.tp)
    yield Setting("--pipeline-model-parallel-size", "model.pipeline_model_parallel_size", at.pp)
    yield Setting("--context-parallel-size", "model.context_parallel_size", at.cp)
    if at.cp > 1:
        kind = CP_COMM[job.training["cp_comm"]]
        yield Setting("--cp-comm-type", "model.cp_comm_type", kind)
    if job.experts:
        yield Setting("--expert-model-parallel-size", "model.expert_model_parallel_size", at.ep)
        # Always said: left out, it is the tensor-parallel size.
        yield Setting("--expert-tensor-parallel-size", "model.expert_tensor_parallel_size", at.etp)
        if at.ep > 1:
            yield Setting(
                "--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", "alltoall"
            )
    sequence = at.sequence_parallel and at.tp > 1
    yield Setting("--sequence-parallel" if sequence else "", "model.sequence_parallel", sequence)
    if at.pp > 1 and not job.training["pipeline_outermost"]:
        yield Setting("--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping", True)


def _pipeline(job: Job) -> Iterator[Setting]:
    at, sizes = job.layout, job.chunk_sizes()
    if len(set(sizes)) > 1:
        name = "model.pipeline_model_parallel_layout"
        yield Setting("--pipeline-model-parallel-layout", name, pipeline_layout(job))
    elif at.vpp > 1:
        flag = "--num-layers-per-virtual-pipeline-stage"
        yield Setting(flag, "", sizes[0])
        yield Setting("", "model.virtual_pipeline_model_parallel_size", at.vpp)
    if job.mtp_layers:
        yield Setting("--mtp-num-layers", "model.mtp_num_layers", job.mtp_layers)


def _data_parallel(job: Job) -> Iterator[Setting]:
    at = job.layout
    if at.sharding == "none":
        return
    yield Setting("--use-distributed-optimizer", "ddp.use_distributed_optimizer", True)
    if at.sharding in FSDP:
        yield Setting("--use-megatron-fsdp", "ddp.use_megatron_fsdp", True)
        strategy = FSDP[at.sharding]
        name = "ddp.data_parallel_sharding_strategy"
        yield Setting("--data-parallel-sharding-strategy", name, strategy)
        yield Setting("--ckpt-format", "checkpoint.ckpt_format", "fsdp_dtensor")
        yield Setting(
            "--no-gradient-accumulation-fusion", "model.gradient_accumulation_fusion", False
        )
    if job.replicas > 1:
        name = "ddp.num_distributed_optimizer_instances"
        yield Setting("--num-distributed-optimizer-instances", name, job.replicas)


def _batch(job: Job) -> Iterator[Setting]:
    training = job.training
    yield Setting("--micro-batch-size", "train.micro_batch_size", job.layout.micro_batch)
    yield Setting("--global-batch-size", "train.global_batch_size", training["global_batch"])
    yield Setting("--seq-length", "model.seq_length", training["seq_len"])
    name = "model.make_vocab_size_divisible_by"
    yield Setting("--make-vocab-size-divisible-by", name, training["vocab_multiple"])


def _recompute(job: Job) -> Iterator[Setting]:
    at = job.layout
    if at.recompute == "none":
        return
    selective = at.recompute == "selective"
    grain = "selective" if selective else "full"
    yield Setting("--recompute-granularity", "model.recompute_granularity", grain)
    if selective:
        yield Setting("--recompute-modules", "model.recompute_modules", ("core_attn",))
        return
    # Megatron counts the layers of a chunk, the planner those of a stage.
    block = at.recompute == "block"
    number = at.recompute_layers // at.vpp if block else 1
    method = "block" if block else "uniform"
    yield Setting("--recompute-method", "model.recompute_method", method)
    yield Setting("--recompute-num-layers", "model.recompute_num_layers", number)


def _overlap(job: Job) -> Iterator[Setting]:
    overlap = job.training["overlap"]
    if overlap["dp"] and job.layout.dp * job.layout.cp > 1:
        yield Setting("--overlap-grad-reduce", "ddp.overlap_grad_reduce", True)
        if job.layout.sharding != "none":
            yield Setting("--overlap-param-gather", "ddp.overlap_param_gather", True)
    if overlap["tp"] and job.layout.sequence_parallel and job.layout.tp > 1:
        yield Setting("--tp-comm-overlap", "comm_overlap.tp_comm_overlap", True)
    if overlap["ep"] and job.layout.ep > 1:
        name = "comm_overlap.overlap_moe_expert_parallel_comm"
        yield Setting("--overlap-moe-expert-parallel-comm", name, True)


def _precision(job: Job) -> Iterator[Setting]:
    training = job.training
    flags, _ = PRECISION[_recipe(job)]
    half = "--fp16" if training["compute_dtype"] == "fp16" else "--bf16"
    yield Setting(half, "", True)
    for flag, value in flags:
        yield Setting(flag, "", value)
    reduce_flag = {"fp32": "--accumulate-allreduce-grads-in-fp32", "bf16": "--grad-reduce-in-bf16"}
    flag = reduce_flag.get(training["grad_dtype"], "")
    yield Setting(flag, "", True)
    backend = ATTENTION[training["attention_kernel"]]
    yield Setting("--attention-backend", "", backend)
    if not training["dropout"]:  # Megatron's own default is 0.1
        yield Setting("--attention-dropout", "model.attention_dropout", 0)
        yield Setting("--hidden-dropout", "model.hidden_dropout", 0)


def _recipe(job: Job) -> str:
    compute = str(job.training["compute_dtype"])
    return "mxfp8" if compute == "fp8_block" and not job.before_blackwell else compute


def _refuse(job: Job, framework: str) -> None:
    """Raise with everything that Megatron cannot say about a layout."""
    at, training = job.layout, job.training
    fsdp = at.sharding in FSDP
    hidden = training["overlap"]["ep"] and at.ep > 1
    dtype = training["compute_dtype"]
    refusals = {
        f"schedule {at.schedule}: only 1f1b and interleaved exist": at.schedule not in SCHEDULES,
        f"compute format {dtype}": _recipe(job) not in PRECISION,
        "recompute_layers of a stage do not divide over its chunks": (
            at.recompute == "block" and at.recompute_layers % at.vpp != 0
        ),
        "Megatron-FSDP excludes the rank order tp-cp-ep-pp-dp": (
            fsdp and at.pp > 1 and not training["pipeline_outermost"]
        ),
        "hiding expert dispatch excludes full recomputation": (
            hidden and at.recompute in {"full", "block"}
        ),
        "hiding expert dispatch in a pipeline needs virtual stages (vpp > 1)": (
            hidden and at.pp > 1 and at.vpp == 1
        ),
        "hiding expert dispatch allows one multi-token-prediction head": (
            hidden and job.mtp_layers > 1
        ),
    }
    reasons = [reason for reason, holds in refusals.items() if holds]
    if reasons:
        raise NotExpressible(framework, reasons)


def _environment(job: Job) -> dict[str, str | None]:
    """Environment that Megatron insists on; None: must not be set."""
    at = job.layout
    if at.sharding in FSDP:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": None}
    if (at.tp > 1 or at.cp > 1) and job.before_blackwell:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {}


def _environment_words(job: Job) -> str:
    environment = _environment(job)
    if not environment:
        return "no environment variable is needed"
    ((name, value),) = environment.items()
    return f"{name} must not be set" if value is None else f"needs {name}={value}"


def _notes(job: Job) -> Iterator[str]:
    longest, seq_len = job.model.get("max_positions"), job.training["seq_len"]
    if longest is not None and longest < seq_len:
        yield f"--max-position-embeddings must be at least {seq_len}; the model states {longest}"
    if job.training["overlap"]["tp"] and job.layout.tp > 1:
        yield "--tp-comm-overlap needs Transformer Engine built with user buffers"
    if job.is_mla:
        yield "the model has latent attention: --multi-latent-attention, no --group-query-attention"


def _flag(setting: Setting) -> str:
    value = setting.value
    if isinstance(value, bool):
        return setting.flag
    if isinstance(value, tuple):
        return " ".join([setting.flag, *value])
    quoted = f"'{value}'" if set(str(value)) & set("|*()") else str(value)
    return f"{setting.flag} {quoted}"


def _literal(value: int | bool | str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
