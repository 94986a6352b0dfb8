"""How many KV blocks an engine gets, and what limits it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from meshplan._core import kv_size
from meshplan.errors import InputError, require_finite
from meshplan.kv.gpus import GIB, visible_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from meshplan.hf import ModelSpec

ENGINES: Final = {
    "vllm": "vllm",
    "aphrodite": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrt-llm": "trtllm",
    "trt-llm": "trtllm",
    "llamacpp": "llamacpp",
    "llama.cpp": "llamacpp",
}
"""Engine by the names that people write."""

VERSIONS: Final = {
    "vllm": ((0, 2), (0, 33)),
    "sglang": ((0, 3), (0, 5)),
    "trtllm": ((0, 7), (1, 3)),
}
"""First and last version whose rules are known."""

KV_FORMATS: Final = {
    "auto": "bf16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "bf16",
    "f16": "bf16",
    "float16": "bf16",
    "half": "bf16",
    "fp32": "fp32",
    "float32": "fp32",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "int8": "int8",
    "fp8_ds_mla": "fp8_ds_mla",
    "nvfp4_ds_mla": "nvfp4_ds_mla",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "fp4_e2m1": "nvfp4",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
}
"""Cache format of the core by the engines' names for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Flags of an engine, under vLLM's names where it has one.

    Attributes
    ----------
    engine, engine_version
        Engine, and its version if its rules changed (default: the newest known).
    tensor_parallel, pipeline_parallel, decode_context_parallel, prefill_context_parallel
        Ranks of one replica.
    expert_parallel
        Ranks that share the experts; 1: they are cut by tensor parallelism.
    redundant_experts
        Replicas of experts in a layer, over all ranks (vLLM's ``num_redundant_experts``, SGLang's
        ``ep_num_redundant_experts``): they lower the memory that is predicted for the cache.
    pipeline_layers
        Layers of each stage, if not the engine's own split.
    kv_dtype, block_size
        Format of the cache and tokens in a block (default: the engine's).
    max_model_len
        Longest request (default: what the model states).
    max_num_batched_tokens, max_num_seqs, max_concurrent_batches
        Limits of a batch (default: the engine's for the GPU), and batches in flight.
    mamba_cache_mode
        ``none`` or ``align``: states are checkpointed for prefix caching (default: by version).
    speculative_tokens
        Draft tokens of the model's own prediction heads.
    hybrid
        Windows are honoured; otherwise every layer keeps every token.
    free_gpu_memory_fraction
        TensorRT-LLM's share of free memory.
    swa_full_tokens_ratio, mamba_full_memory_ratio
        SGLang's split of hybrid memory.
    """

    engine: str = "vllm"
    engine_version: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1
    expert_parallel: int = 1
    redundant_experts: int = 0
    pipeline_layers: Sequence[int] | None = None
    kv_dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_concurrent_batches: int = 1
    mamba_cache_mode: str | None = None
    speculative_tokens: int = 0
    hybrid: bool = True
    free_gpu_memory_fraction: float = 0.9
    swa_full_tokens_ratio: float = 0.8
    mamba_full_memory_ratio: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Where the cache's memory comes from.

    Attributes
    ----------
    available_memory
        Bytes that the engine reported as available: one value, one per stage or one per worker.
        What follows is then ignored.
    gpu, gpu_memory
        Name of the GPU, or the bytes that it shows.
    memory_share
        vLLM's ``gpu_memory_utilization`` or SGLang's ``mem_fraction_static``.
    weight_dtype, weights_memory
        Format of the weights (default: the checkpoint's), or the bytes of one GPU's weights.
    graphs
        CUDA graphs are captured.
    """

    available_memory: Sequence[float] | None = None
    gpu: str | None = None
    gpu_memory: float | None = None
    memory_share: float | None = None
    weight_dtype: str | None = None
    weights_memory: float | None = None
    graphs: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    """Answer of `size`: the core's report, with the question that led to it.

    Attributes
    ----------
    report
        Fields of the core's report, as `planner kv size --json` prints them.
    max_model_len
        Longest request of the question.
    engine
        Engine of the question.
    assumptions
        What was assumed about the model.
    """

    report: Mapping[str, Any]
    max_model_len: int
    engine: str
    assumptions: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        """Fields of the report."""
        if name.startswith("_") or name not in self.report:
            raise AttributeError(name)
        return self.report[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"engine": self.engine, "max_model_len": self.max_model_len, **self.report}


def size(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec,
    flags: Flags | None = None,
    hardware: Hardware | None = None,
) -> Size:
    """Size the KV cache of a model under an engine.

    Parameters
    ----------
    model
        Preset, ``config.json``, folder, parsed config or model.
    flags
        Flags of the engine.
    hardware
        Memory that the engine reported, or the GPU to predict it for.

    Returns
    -------
    Size
        Blocks, tokens, concurrency and what limits them. A pool of no blocks is an answer, not an
        error.

    Raises
    ------
    InputError
        If a flag makes no sense or nothing says how much memory there is.
    """
    flags, hardware = flags or Flags(), hardware or Hardware()
    from meshplan.hf import load_model

    spec = load_model(model)
    max_len = _max_len(spec, flags)
    report = json.loads(kv_size(canonical_query(spec, flags, hardware)))
    for name in ("bytes_per_token_per_gpu", "growth_bytes_per_token_per_gpu"):
        if float(report[name]).is_integer():
            report[name] = int(report[name])
    return Size(report, max_len, _engine(flags.engine), list(spec.assumptions))


def refusals(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec, flags: Flags
) -> list[str]:
    """Say why an engine would not start in this layout, whatever the memory.

    Attention heads must be a multiple of the tensor-parallel ranks; vLLM shards the tokens of MHA,
    GQA and MQA over ``tp / kv_heads`` context ranks at most, which hold copies of the same heads
    (``config/model.py``).

    Examples
    --------
    >>> refusals("llama-3.1-8b", Flags(tensor_parallel=3))
    ['tp = 3 does not divide 32 attention heads']
    >>> refusals("llama-3.1-8b", Flags(tensor_parallel=8, decode_context_parallel=2))
    ['dcp = 2 is above tp / KV heads = 8 / 8']
    """
    from meshplan.hf import load_model

    tp, dcp = flags.tensor_parallel, flags.decode_context_parallel
    found: dict[str, None] = {}
    for kind in load_model(model).canonical["kinds"]:
        mixer = kind.get("mixer") or {}
        heads, kv_heads = mixer.get("heads"), mixer.get("kv_heads")
        if heads and heads % tp:
            found[f"tp = {tp} does not divide {heads} attention heads"] = None
        if flags.engine == "vllm" and dcp > 1 and kv_heads and dcp * kv_heads > tp:
            found[f"dcp = {dcp} is above tp / KV heads = {tp} / {kv_heads}"] = None
    return list(found)


def canonical_query(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec, flags: Flags, hardware: Hardware
) -> str:
    """Text of a question for the core."""
    from meshplan.hf import load_model

    spec = load_model(model)
    engine = _engine(flags.engine)
    query = _query(flags, engine, _max_len(spec, flags), hardware)
    query["memory"] = _memory(hardware, engine)
    # Spliced as text: the core reads the model's JSON exactly as it was made.
    return json.dumps(query)[:-1] + ', "model": ' + spec.canonical_json() + "}"


def _max_len(spec: ModelSpec, flags: Flags) -> int:
    """Longest request: as stated, or as the model states."""
    length = flags.max_model_len
    if length is None:
        length = spec.canonical.get("max_positions")
    if length is None:
        raise InputError(
            "the model does not state its longest context",
            field="max_model_len",
            hint="state it: --max-model-len 131072",
        )
    return int(length)


def _engine(name: str) -> str:
    engine = ENGINES.get(name.strip().lower())
    if engine is None:
        known = ", ".join(sorted(set(ENGINES.values())))
        raise InputError("is not an engine that is known", field="engine", value=name, hint=known)
    return engine


def parse_version(engine: str, text: str | None) -> tuple[int, int] | None:
    """Read a version whose rules are known: ``v0.11.2`` is 0.11."""
    if text is None:
        return None
    first, last = VERSIONS.get(engine, (None, None))
    if first is None or last is None:
        raise InputError(
            f"has no versions that differ for {engine}", field="engine_version", value=text
        )
    match = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:[.\-+a-z0-9]*)", text.strip().lower())
    version = (int(match[1]), int(match[2])) if match else None
    if version is None or not first <= version <= last:
        span = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
        raise InputError(
            f"is not a version of {engine} whose rules are known",
            field="engine_version",
            value=text,
            hint=f"{span}; leave it out for the newest",
        )
    return version


def _query(flags: Flags, engine: str, max_len: int, hardware: Hardware) -> dict[str, Any]:
    kv_format = KV_FORMATS.get(flags.kv_dtype.strip().lower())
    if kv_format is None:
        hint = "one of " + ", ".join(KV_FORMATS)
        raise InputError("is not a cache format", field="kv_dtype", value=flags.kv_dtype, hint=hint)
    if flags.mamba_cache_mode not in (None, "none", "align"):
        value = str(flags.mamba_cache_mode)
        raise InputError("must be none or align", field="mamba_cache_mode", value=value)
    for item in fields(flags):
        value = getattr(flags, item.name)
        least = 0 if item.name in ("speculative_tokens", "redundant_experts") else 1
        if (
            item.type in ("int", "int | None")
            and value is not None
            and not least <= value < 1 << 40
        ):
            rule = f"must be at least {least} and below 2^40"
            raise InputError(rule, field=item.name, value=str(value))
    for name in ("free_gpu_memory_fraction", "swa_full_tokens_ratio", "mamba_full_memory_ratio"):
        require_finite(**{name: getattr(flags, name)})
    stages = list(flags.pipeline_layers or [])
    if any(not 0 <= n < 1 << 31 for n in stages):
        rule = "each stage must hold at least 0 layers"
        raise InputError(rule, field="pipeline_layers", value=",".join(map(str, stages)))
    version = parse_version(engine, flags.engine_version)
    tokens, seqs = _default_batch(hardware, version, max_len)
    return {
        "engine": engine,
        "version": version,
        "tp": flags.tensor_parallel,
        "pp": flags.pipeline_parallel,
        "dcp": flags.decode_context_parallel,
        "pcp": flags.prefill_context_parallel,
        "ep": flags.expert_parallel,
        "redundant_experts": flags.redundant_experts,
        "pp_layers": list(flags.pipeline_layers) if flags.pipeline_layers else None,
        "kv_format": kv_format,
        "block_tokens": flags.block_size,
        "max_len": max_len,
        "max_batched_tokens": flags.max_num_batched_tokens or tokens,
        "max_seqs": flags.max_num_seqs or seqs,
        "batches_in_flight": flags.max_concurrent_batches,
        "mamba_mode": flags.mamba_cache_mode,
        "draft_tokens": flags.speculative_tokens,
        "hybrid": flags.hybrid,
        "free_fraction": flags.free_gpu_memory_fraction,
        "swa_ratio": flags.swa_full_tokens_ratio,
        "mamba_ratio": flags.mamba_full_memory_ratio,
    }


MOST_BYTES: Final = float(1 << 60)
"""Memory of a GPU beyond which a figure is a mistake."""

WEIGHTS: Final = ("fp32", "bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
"""Formats of weights."""

V1: Final = (0, 8)
"""First vLLM whose default engine cuts prompts into chunks."""

LONG_CHUNKS: Final = (0, 6)
"""First vLLM that does so where requests may be long."""

LONG_PROMPT: Final = 32768
"""Longest request up to which it does not, before `V1`."""


def _default_batch(
    hardware: Hardware, version: tuple[int, int] | None, max_len: int
) -> tuple[int, int]:
    """Tokens and requests of a batch of vLLM's server.

    On devices of 70 GiB and more, A100 apart, 8192 tokens and 1024 requests, else 2048 and 256
    (`vllm/engine/arg_utils.py`, 0.9 and later). Before that a batch holds the longest request, of at
    least 2048 tokens, and from 0.6 on 512 tokens where requests may be longer than 32,768.
    """
    if hardware.available_memory is not None or hardware.gpu is None:
        return 8192, 256
    if version is not None and version < V1:
        chunks = max_len > LONG_PROMPT and version >= LONG_CHUNKS
        return (512 if chunks else max(max_len, 2048)), 256
    large = visible_bytes(hardware.gpu) >= 70 * GIB and "a100" not in hardware.gpu.lower()
    return (8192, 1024) if large else (2048, 256)


def check_weights(dtype: str | None) -> None:
    """Refuse a format of weights that is not known."""
    if dtype is not None and dtype not in WEIGHTS:
        hint = "one of " + ", ".join(WEIGHTS)
        raise InputError("is not a format of weights", field="weight_dtype", value=dtype, hint=hint)


def _memory(hardware: Hardware, engine: str) -> dict[str, Any]:
    if hardware.available_memory is not None:
        for value in hardware.available_memory:
            if not abs(value) < MOST_BYTES:
                rule = "must be finite and below 1 EiB"
                raise InputError(rule, field="available_memory", value=f"{value:g} B")
        return {"kind": "available", "bytes": [float(b) for b in hardware.available_memory]}
    total = hardware.gpu_memory
    if total is None:
        if hardware.gpu is None:
            raise InputError(
                "nothing says how much memory there is",
                field="gpu",
                hint="--gpu h100, or --available-memory '20.5 GiB' as the engine reported it",
            )
        total = visible_bytes(hardware.gpu)
    if not 0 < total < MOST_BYTES:
        rule = "must be above 0 and below 1 EiB"
        raise InputError(rule, field="gpu_memory", value=f"{total:g} B")
    check_weights(hardware.weight_dtype)
    require_finite(weights_memory=hardware.weights_memory)
    share = hardware.memory_share
    if share is None:
        share = 0.88 if engine == "sglang" else 0.9
    if not 0 < share <= 1:
        field = "mem_fraction_static" if engine == "sglang" else "memory_share"
        raise InputError("must be above 0 and at most 1", field=field, value=str(share))
    return {
        "kind": "device",
        "total_bytes": float(total),
        "share": share,
        "weight_dtype": hardware.weight_dtype,
        "weights_bytes": hardware.weights_memory,
        "graphs": hardware.graphs,
    }
