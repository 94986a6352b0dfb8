"""Launch arguments of serving engines: vLLM, SGLang, TensorRT-LLM.

Flags as in the named releases; ``tests/export/flags.toml`` lists them with their values and source.
What a backend cannot be told is refused; what it decides itself is a note.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.export.job import Launch, NotExpressible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TESTED_WITH = {
    "vllm": "vLLM 0.33.0",
    "sglang": "SGLang 0.5.23",
    "trtllm": "TensorRT-LLM 1.2",
}
"""Release whose flags are written."""

CACHES = {
    "vllm": {"bf16": "auto", "fp16": "auto", "fp8": "fp8"},
    "sglang": {"bf16": "auto", "fp16": "auto", "fp8": "fp8_e4m3"},
    "trtllm": {"bf16": "auto", "fp16": "auto", "fp8": "fp8"},
}
"""Names of cache formats."""

VLLM_BLOCK = 16
"""Block of vLLM where none is asked for. Saying it would keep attention kernels out that want a
larger one, so it is not said."""

DP_BALANCE = {"enable_balance": True, "batching_wait_iters": 0, "timeout_iters": 60}
"""TensorRT-LLM's attention replicas wait for each other before they prefill, as the estimate of
them assumes; left alone they do not."""

HEADLESS = '[ "$NODE_RANK" = 0 ] || set -- --headless "$@"'
"""Nodes of a vLLM engine after its first serve no requests."""


@dataclass(frozen=True)
class Engine:
    """One engine of a row, with what it is for."""

    role: str
    workers: int
    tp: int
    pp: int
    attention_dp: int
    pcp: int
    ep: int
    moe_tp: int
    dcp: int
    max_batch: int
    max_batched_tokens: int
    block_tokens: int
    recv_interval: int
    memory_share: float
    spec_tokens: int
    redundant_experts: int
    kv_dtype: str
    max_len: int
    model: str
    experts: int
    gpus_per_node: int
    sparse: bool = False

    @property
    def attention_tp(self) -> int:
        """Tensor parallelism of attention."""
        return self.tp // (self.attention_dp * self.pcp)

    @property
    def nodes(self) -> int:
        """Nodes that the engine fills."""
        return -(-self.tp * self.pp // self.gpus_per_node)


def engines(
    row: Mapping[str, Any], *, model: str, max_len: int, node: int, experts: int, sparse: bool
) -> list[Engine]:
    """Engines of a row: one kind, or one for prefill and one for decode."""
    shared: dict[str, Any] = {
        "block_tokens": row["block_tokens"],
        "recv_interval": row["recv_interval"],
        "memory_share": row["memory_share_ratio"],
        "kv_dtype": row["kv_dtype"],
        "max_len": max_len,
        "model": model,
        "experts": experts,
        "gpus_per_node": node,
        "sparse": sparse,
    }
    axes = ("workers", "tp", "pp", "attention_dp", "pcp", "ep", "moe_tp", "redundant_experts")
    own = {axis: row[axis] for axis in axes}
    rest = {axis: row[axis] for axis in ("dcp", "spec_tokens", "max_batch", "max_batched_tokens")}
    role = "decode" if row["prefill_workers"] else "serve"
    found = [Engine(role=role, **own, **rest, **shared)]
    if row["prefill_workers"]:
        own = {axis: row[f"prefill_{axis}"] for axis in axes}
        budget = row["prefill_max_batched_tokens"]
        rest = {"dcp": 1, "spec_tokens": row["spec_tokens"], "max_batched_tokens": budget}
        rest["max_batch"] = max(own["attention_dp"], min(row["max_batch"], budget))
        found.insert(0, Engine(role="prefill", **own, **rest, **shared))
    return found


def refuse(engine: Engine, backend: str, what: str) -> NotExpressible:
    """Error of a deployment that a backend cannot be told."""
    return NotExpressible(TESTED_WITH[backend], [f"no flag for {what} ({engine.role} engine)"])


def cache(engine: Engine, backend: str) -> str:
    """Name of the cache format.

    Raises
    ------
    NotExpressible
        When the backend has none.
    """
    name = CACHES[backend].get(engine.kv_dtype)
    if name is None:
        raise refuse(engine, backend, f"a cache in {engine.kv_dtype}")
    return name


Flags = list[tuple[str, Any]]


def vllm(engine: Engine) -> tuple[Flags, list[str]]:
    """Flags of ``vllm serve``; its attention replicas are data-parallel ranks."""
    dp = engine.attention_dp
    if engine.ep not in (1, engine.tp):
        raise refuse(engine, "vllm", f"ep {engine.ep} of {engine.tp}")
    flags: Flags = [("--tensor-parallel-size", engine.attention_tp)]
    flags += [("--pipeline-parallel-size", engine.pp)] if engine.pp > 1 else []
    flags += [("--data-parallel-size", dp)] if dp > 1 else []
    flags += [("--prefill-context-parallel-size", engine.pcp)] if engine.pcp > 1 else []
    flags += [("--enable-expert-parallel", None)] if engine.ep > 1 else []
    flags += [("--decode-context-parallel-size", engine.dcp)] if engine.dcp > 1 else []
    if engine.redundant_experts:
        flags += [("--enable-eplb", None)]
        flags += [("--eplb-config.num_redundant_experts", engine.redundant_experts)]
    flags += [
        ("--gpu-memory-utilization", engine.memory_share),
        ("--max-num-seqs", max(1, engine.max_batch // dp)),
        ("--max-num-batched-tokens", max(1, engine.max_batched_tokens // dp)),
    ]
    if engine.block_tokens != VLLM_BLOCK:
        flags += [("--block-size", engine.block_tokens)]
    flags += [("--max-model-len", engine.max_len), ("--kv-cache-dtype", cache(engine, "vllm"))]
    if engine.spec_tokens:
        draft = {"method": "mtp", "num_speculative_tokens": engine.spec_tokens}
        flags.append(("--speculative-config", json.dumps(draft)))
    if engine.role != "serve":
        if engine.dcp not in (1, engine.attention_tp):
            what = f"dcp {engine.dcp} of {engine.attention_tp} beside a cache transfer"
            raise refuse(engine, "vllm", what)
        role = "kv_producer" if engine.role == "prefill" else "kv_consumer"
        transfer = {"kv_connector": "NixlConnector", "kv_role": role}
        flags.append(("--kv-transfer-config", json.dumps(transfer)))
    if engine.nodes > 1:
        # How many replicas a node holds, and which, follows from these three.
        flags += [("--nnodes", engine.nodes), ("--node-rank", "$NODE_RANK")]
        flags += [("--master-addr", "$MASTER_ADDR")]
    each = "slots and token budget are those of one data-parallel rank"
    return flags, [each] if dp > 1 else []


def sglang(engine: Engine) -> tuple[Flags, list[str]]:
    """Flags of ``sglang.launch_server``; tp counts the attention replicas."""
    if engine.experts and engine.ep * engine.moe_tp != engine.tp:
        what = f"ep {engine.ep} · expert TP {engine.moe_tp} on {engine.tp} GPUs"
        raise refuse(engine, "sglang", what)
    if engine.pp > 1 and engine.spec_tokens and engine.role != "prefill":
        raise refuse(engine, "sglang", "drafts in a pipeline, but for a prefill engine")
    flags: Flags = [("--tp-size", engine.tp)]
    flags += [("--pp-size", engine.pp)] if engine.pp > 1 else []
    flags += [("--attn-dp-size", engine.attention_dp)] if engine.attention_dp > 1 else []
    if engine.pcp > 1:
        if engine.dcp > 1:
            raise refuse(engine, "sglang", "decode context ranks beside those of prefill")
        # Keys are gathered whole but for sparse attention, which picks its own.
        strategy = "interleave" if engine.sparse else "zigzag"
        flags += [("--attn-cp-size", engine.pcp), ("--enable-prefill-cp", None)]
        flags += [("--cp-strategy", strategy)]
    flags += [("--ep-size", engine.ep)] if engine.ep > 1 else []
    flags += [("--dcp-size", engine.dcp)] if engine.dcp > 1 else []
    if engine.redundant_experts:
        flags += [("--enable-eplb", None), ("--ep-num-redundant-experts", engine.redundant_experts)]
    if engine.attention_dp > 1 and engine.ep == engine.tp:  # it would raise a smaller ep to tp
        flags += [("--moe-a2a-backend", "deepep")]
    flags += [
        ("--mem-fraction-static", engine.memory_share),
        ("--max-running-requests", engine.max_batch),
        ("--chunked-prefill-size", engine.max_batched_tokens),
        ("--page-size", engine.block_tokens),
        ("--context-length", engine.max_len),
        ("--kv-cache-dtype", cache(engine, "sglang")),
    ]
    if engine.recv_interval > 1:
        flags.append(("--scheduler-recv-interval", engine.recv_interval))
    if engine.spec_tokens:
        flags += [("--speculative-algorithm", "NEXTN")]
        flags += [("--speculative-num-steps", engine.spec_tokens), ("--speculative-eagle-topk", 1)]
        flags += [("--speculative-num-draft-tokens", engine.spec_tokens + 1)]
    flags += [("--disaggregation-mode", engine.role)] if engine.role != "serve" else []
    if engine.nodes > 1:
        flags += [("--nnodes", engine.nodes), ("--node-rank", "$NODE_RANK")]
        flags += [("--dist-init-addr", "$MASTER_ADDR:20000")]
    return flags, []


def trtllm(engine: Engine) -> tuple[dict[str, Any], list[str]]:
    """Options of ``trtllm-serve`` in a YAML file; attention DP is a switch."""
    if engine.attention_dp not in (1, engine.tp):
        what = f"{engine.attention_dp} attention replicas of {engine.tp} GPUs"
        raise refuse(engine, "trtllm", what)
    if engine.dcp > 1:
        raise refuse(engine, "trtllm", "decode context parallelism inside tp")
    if engine.pcp > 1:
        raise refuse(engine, "trtllm", "prefill context parallelism inside tp")
    dp = engine.attention_dp
    options: dict[str, Any] = {
        "tensor_parallel_size": engine.tp,
        "pipeline_parallel_size": engine.pp,
        "max_batch_size": max(1, engine.max_batch // dp),
        "max_num_tokens": max(1, engine.max_batched_tokens // dp),
        "max_seq_len": engine.max_len,
        "kv_cache_config": {
            "dtype": cache(engine, "trtllm"),
            "free_gpu_memory_fraction": engine.memory_share,
            "tokens_per_block": engine.block_tokens,
        },
    }
    if engine.experts:
        options |= {
            "moe_expert_parallel_size": engine.ep,
            "moe_tensor_parallel_size": engine.moe_tp,
        }
    if dp > 1:
        options |= {"enable_attention_dp": True, "attention_dp_config": DP_BALANCE}
    if engine.spec_tokens:
        layers = engine.spec_tokens
        options["speculative_config"] = {
            "decoding_type": "MTP",
            "num_nextn_predict_layers": layers,
        }
    if engine.redundant_experts:
        slots = engine.experts + engine.redundant_experts
        balancer = {"num_slots": slots, "layer_updates_per_iter": 1}
        options["moe_config"] = {"load_balancer": balancer}
    if engine.role != "serve":
        options["cache_transceiver_config"] = {"backend": "DEFAULT"}
    notes = (
        [f"start it with trtllm-llmapi-launch over {engine.nodes} nodes"]
        if engine.nodes > 1
        else []
    )
    return options, notes


SHELL: Mapping[str, tuple[str, Callable[[Engine], tuple[Flags, list[str]]]]] = {
    "vllm": ("vllm serve {model}", vllm),
    "sglang": ("python -m sglang.launch_server --model-path {model}", sglang),
}
"""Backends that are started by a command line."""


def export(backend: str, found: list[Engine]) -> Launch:
    """Files that start the engines of a deployment.

    Parameters
    ----------
    backend
        ``vllm``, ``sglang`` or ``trtllm``.
    found
        Its engines.

    Raises
    ------
    NotExpressible
        When the backend cannot be told a part of the deployment.
    """
    files: dict[str, str] = {}
    notes: list[str] = []
    for engine in found:
        name = f"{backend}-{engine.role}"
        if engine.nodes > 1 and engine.tp < engine.gpus_per_node and engine.pp % engine.nodes:
            what = f"{engine.pp} stages of {engine.tp} GPUs over {engine.nodes} nodes"
            raise refuse(engine, backend, what)
        if backend in SHELL:
            start, flags_of = SHELL[backend]
            flags, said = flags_of(engine)
            first = HEADLESS if backend == "vllm" and engine.nodes > 1 else ""
            start = start.format(model=shlex.quote(engine.model))
            files[f"{name}.sh"] = _script(start, flags, first)
        else:
            options, said = trtllm(engine)
            files[f"{name}.yaml"] = _yaml(options)
            serve = f"trtllm-serve {shlex.quote(engine.model)}"
            files[f"{name}.sh"] = _script(serve, [("--extra_llm_api_options", f"{name}.yaml")])
        many = f"start {engine.workers} of them" if engine.workers > 1 else "start one"
        notes += [f"{name}: {many}", *said]
    if len(found) > 1:
        notes.append("a router sends each request to a prefill engine, then to a decode engine")
    return Launch(backend, TESTED_WITH[backend], files, tuple(notes))


def _script(start: str, flags: Flags, first: str = "") -> str:
    """Script of one command; what it is given goes on to the engine."""
    lines = [start]
    for name, item in flags:
        lines.append(name if item is None else f"{name} {_word(item)}")
    command = " \\\n  ".join([*lines, '"$@"'])
    return "\n".join(["#!/bin/sh", *([first] if first else []), f"exec {command}"]) + "\n"


def _word(item: Any) -> str:
    """Value as a word of a shell; variables of the launcher stay open."""
    text = f"{item:g}" if isinstance(item, float) else str(item)
    return f'"{text}"' if text.startswith("$") else shlex.quote(text)


def _yaml(options: Mapping[str, Any], depth: int = 0) -> str:
    """Plain YAML: tables of words, numbers and switches."""
    lines = []
    for name, item in options.items():
        indent = "  " * depth
        if isinstance(item, dict):
            lines.append(f"{indent}{name}:\n{_yaml(item, depth + 1)}")
        else:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            lines.append(f"{indent}{name}: {text}\n")
    return "".join(lines)
