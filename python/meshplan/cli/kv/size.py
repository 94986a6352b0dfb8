"""``planner kv size``: the blocks that an engine gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan.cli.kv.show import note, print_columns, print_json
from meshplan.errors import Infeasible, InputError
from meshplan.units import UnitError, format_bytes, parse_bytes

if TYPE_CHECKING:
    from meshplan.kv.log import EngineLog
    from meshplan.kv.size import Flags, Hardware, Size

MOST_RANKS = 64
"""Largest tensor parallelism that is tried as a way out."""


def parse_memories(text: str) -> list[float]:
    """Bytes from ``8.69GiB,7.4GiB``; a negative value is what an engine reports when all is used.

    >>> parse_memories("1GiB,-2GB")
    [1073741824.0, -2000000000.0]
    """
    found = []
    for part in text.split(","):
        value = part.strip()
        sign = -1.0 if value.startswith("-") else 1.0
        try:
            found.append(sign * parse_bytes(value.removeprefix("-")))
        except UnitError as error:
            raise InputError(
                error.rule, field="--available-memory", value=part, hint=error.hint
            ) from None
    return found


def _bytes(text: str | None, field: str) -> float | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except UnitError as error:
        raise InputError(error.rule, field=field, value=text, hint=error.hint) from None


def _layers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        rule = "must be whole numbers, such as 12,12,11,11"
        raise InputError(rule, field="--pp-layers", value=text) from None


def size(
    model: Annotated[str | None, typer.Option(help="Preset, config.json or folder.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU, to predict its memory: h100, …")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm or llamacpp.")] = "",
    engine_version: Annotated[str | None, typer.Option(help="Such as 0.14.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks (1).")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages (1).")] = None,
    dcp: Annotated[int, typer.Option(help="Decode context ranks.")] = 1,
    pcp: Annotated[int, typer.Option(help="Prefill context ranks.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that share the experts (1: cut by TP).")] = 1,
    redundant_experts: Annotated[
        int, typer.Option(help="Replicas of experts in a layer, over all ranks.")
    ] = 0,
    pp_layers: Annotated[str | None, typer.Option(help="Layers by stage: 12,12,11,11.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest request, tokens.")] = None,
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", "--kv-cache-dtype", help="Cache format.")
    ] = "",
    block_size: Annotated[int | None, typer.Option(help="Tokens in a block (page).")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens of a batch.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests of a batch.")] = None,
    max_concurrent_batches: Annotated[int, typer.Option(help="Batches in flight.")] = 1,
    mamba_cache_mode: Annotated[str | None, typer.Option(help="none or align.")] = None,
    speculative_tokens: Annotated[int, typer.Option(help="Draft tokens (MTP).")] = 0,
    no_hybrid: Annotated[
        bool, typer.Option("--no-hybrid", help="Keep every token in windowed layers too.")
    ] = False,
    available_memory: Annotated[
        str | None, typer.Option(help="As the engine reported it; one value or one per worker.")
    ] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory that the GPU shows.")] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="vLLM's share of the total (0.9).")
    ] = None,
    mem_fraction_static: Annotated[
        float | None, typer.Option(help="SGLang's static share (0.88).")
    ] = None,
    free_gpu_memory_fraction: Annotated[
        float, typer.Option(help="TensorRT-LLM's share of free memory.")
    ] = 0.9,
    weight_dtype: Annotated[str | None, typer.Option(help="Format of the weights.")] = None,
    weights_memory: Annotated[str | None, typer.Option(help="Weights of one GPU.")] = None,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="No graphs.")] = False,
    from_log: Annotated[
        Path | None, typer.Option(help="Start-up log of an engine, to explain its numbers.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Blocks, tokens and concurrency of an engine's KV cache, and what limits them.

    Memory is what the engine reported (`--available-memory`, `--from-log`) or is predicted for
    `--gpu`. If a request of full length does not fit, the exit status is 1 and the nearest change
    that helps is named.
    """
    from meshplan.kv.size import Flags, Hardware, refusals
    from meshplan.kv.size import size as run

    log = _read(from_log)
    if model is None:
        model = _model_of(log)
    flags = Flags(
        engine=engine or (log.engine if log else "vllm"),
        engine_version=engine_version or _version_of(log),
        tensor_parallel=_count(log, "tp") if tp is None else tp,
        pipeline_parallel=_count(log, "pp") if pp is None else pp,
        decode_context_parallel=dcp,
        prefill_context_parallel=pcp,
        expert_parallel=ep,
        redundant_experts=redundant_experts,
        pipeline_layers=_layers(pp_layers),
        kv_dtype=kv_dtype or (log and log.text("kv_dtype")) or "auto",
        block_size=block_size,
        max_model_len=_whole(log, "max_len") if max_model_len is None else max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_concurrent_batches=max_concurrent_batches,
        mamba_cache_mode=mamba_cache_mode,
        speculative_tokens=speculative_tokens,
        hybrid=not no_hybrid,
        free_gpu_memory_fraction=free_gpu_memory_fraction,
    )
    memories = parse_memories(available_memory) if available_memory is not None else None
    if memories is None and log is not None and log.available_bytes:
        memories = [min(log.available_bytes)]
    share = mem_fraction_static if flags.engine == "sglang" else gpu_memory_utilization
    hardware = Hardware(
        available_memory=memories,
        gpu=gpu,
        gpu_memory=_bytes(gpu_memory, "--gpu-memory"),
        memory_share=share,
        weight_dtype=weight_dtype,
        weights_memory=_bytes(weights_memory, "--weights-memory"),
        graphs=not enforce_eager,
    )
    if log is not None and memories is None and gpu is None and hardware.gpu_memory is None:
        hardware = _memory_of(log, model, flags, hardware)
    answer = run(model, flags, hardware)
    _talk(answer)
    for problem in refusals(model, flags):
        note(f"{answer.engine} refuses this layout: {problem}")
    _print(answer, flags, hardware, log, json=json)
    if log is None and not answer.fits:
        raise Infeasible(_shortfall(answer), hint=_way_out(model, flags, hardware, answer))


def _read(path: Path | None) -> EngineLog | None:
    if path is None:
        return None
    from meshplan.kv.log import read_log

    return read_log(path)


def _model_of(log: EngineLog | None) -> str:
    name = log.text("model") if log else None
    if name is None:
        raise InputError(
            "is missing" if log is None else "is not stated in the log",
            field="--model",
            hint="a preset, a config.json, or a folder that holds one",
        )
    from meshplan.hf import presets

    preset = None if Path(name).exists() else presets.published(name)
    if preset is None:
        return name
    if preset != name:
        note(f"{name} of the log has the structure of the preset {preset}")
    return preset


def _version_of(log: EngineLog | None) -> str | None:
    """Version that a log states, if its rules are known."""
    from meshplan.kv.size import VERSIONS, parse_version

    text = log.text("version") if log else None
    if log is None or text is None or log.engine not in VERSIONS:
        return None
    try:
        parse_version(log.engine, text)
    except InputError as error:
        note(f"{error}; the newest that is known is taken (--engine-version)")
        return None
    return text


def _memory_of(log: EngineLog, model: str, flags: Flags, hardware: Hardware) -> Hardware:
    """Memory that the blocks of a log take, where it does not state what was available."""
    from dataclasses import replace

    from meshplan.kv.explain import implied_blocks
    from meshplan.kv.size import size as run

    none = run(model, flags, replace(hardware, available_memory=[0.0]))
    blocks = implied_blocks(log, none)
    if blocks is None:
        return hardware
    note(f"the log states no available memory: it is taken to be that of its {blocks:,} blocks")
    share = flags.free_gpu_memory_fraction if none.engine == "trtllm" else 1.0
    per_stage = [(blocks + 0.5) * stage["bytes_per_block"] / share for stage in none.stages]
    return replace(hardware, available_memory=per_stage)


def _whole(log: EngineLog | None, name: str) -> int | None:
    value = log.number(name) if log else None
    return None if value is None else int(value)


def _count(log: EngineLog | None, name: str) -> int:
    return _whole(log, name) or 1


def _talk(answer: Size) -> None:
    for assumption in answer.assumptions:
        note(assumption)


def _shortfall(answer: Size) -> str:
    available = answer.stages[answer.limiting_stage]["available_bytes"]
    if available <= 0:
        return f"no memory is left for the cache ({format_bytes(available)}): 0 blocks"
    return (
        f"a request of {answer.max_model_len:,} tokens does not fit: it needs "
        f"{answer.blocks_per_request:,} blocks, {answer.shortfall_blocks:,} more than there are"
    )


def _way_out(model: str, flags: Flags, hardware: Hardware, answer: Size) -> str:
    """Nearest changes that would make a request of full length fit."""
    from dataclasses import replace

    from meshplan.kv.size import size as run

    ways = []
    if answer.max_len_that_fits > 0:
        ways.append(f"--max-model-len {answer.max_len_that_fits}")
    # Memory that an engine reported says nothing about other layouts.
    tp = flags.tensor_parallel * 2 if hardware.available_memory is None else 0
    while 0 < tp <= MOST_RANKS:
        try:
            found = run(model, replace(flags, tensor_parallel=tp), hardware)
        except InputError:
            break
        if found.fits:
            ways.append(f"--tp {tp}")
            break
        tp *= 2
    if flags.kv_dtype == "auto" and answer.engine == "vllm":
        halved = run(model, replace(flags, kv_dtype="fp8"), hardware)
        ways += ["--kv-dtype fp8"] if halved.fits else []
    return " or ".join(ways) if ways else "take a GPU with more memory, or smaller weights"


def _print(
    answer: Size, flags: Flags, hardware: Hardware, log: EngineLog | None, *, json: bool
) -> None:
    lines = []
    if log is not None:
        from meshplan.kv.explain import explain

        lines = explain(log, answer)
    if json:
        data = answer.to_dict()
        if log is not None:
            from dataclasses import asdict

            data["log"] = [asdict(line) for line in lines]
        print_json(data)
        return
    _print_engine_lines(answer)
    print()
    _print_pool(answer)
    _print_stages(answer)
    if lines:
        print()
        verdict = {True: "agrees", False: "differs", None: ""}
        rows = [[i.what, i.logged, i.computed, verdict[i.agrees], i.why] for i in lines]
        print_columns(["log", "logged", "computed", "", "because"], rows)


def _print_engine_lines(answer: Size) -> None:
    if answer.engine == "vllm":
        print(f"# GPU blocks: {answer.num_blocks}")
        print(f"GPU KV cache size: {answer.tokens:,} tokens")
        print(
            f"Maximum concurrency for {answer.max_model_len:,} tokens per request: "
            f"{answer.max_concurrency:.2f}x"
        )
    elif answer.engine == "sglang":
        print(f"max_total_num_tokens={answer.tokens}, context_len={answer.max_model_len}")
    elif answer.engine == "trtllm":
        print(f"Number of blocks in KV cache primary pool: {answer.num_blocks}")
        print(f"max tokens in paged KV cache ({answer.tokens})")
    else:
        print(f"n_ctx slots: {answer.tokens}")


def _print_pool(answer: Size) -> None:
    print(f"bytes per token and GPU  {answer.bytes_per_token_per_gpu:,}")
    tokens = f"{answer.block_tokens} token{'s' if answer.block_tokens > 1 else ''}"
    print(f"bytes per block          {answer.bytes_per_block:,} ({tokens})")
    print(f"blocks per request       {answer.blocks_per_request:,}")
    for group in answer.groups:
        kind = group["class"]
        name = kind if isinstance(kind, str) else " ".join(f"{k} {v:,}" for k, v in kind.items())
        print(
            f"  group {name}: {group['layers']} layers, blocks of {group['block_tokens']}, "
            f"{group['blocks_per_request']:,} a request"
        )


def _print_stages(answer: Size) -> None:
    for index, stage in enumerate(answer.stages):
        limits = "  <- limits" if len(answer.stages) > 1 and index == answer.limiting_stage else ""
        print(
            f"stage {index}: {stage['layers']} layers, {format_bytes(stage['available_bytes'])} "
            f"for the cache, {stage['num_blocks']:,} blocks{limits}"
        )
        terms = stage["memory"]
        if terms:
            parts = [
                f"{name.removesuffix('_bytes')} {format_bytes(terms[name])}"
                for name in ("usable_bytes", "weights_bytes", "activation_bytes", "graph_bytes")
            ]
            print(
                f"  {', '.join(parts)}, context {format_bytes(terms['context_bytes'])} (predicted)"
            )
            if terms["replica_bytes"]:
                print(f"  of the weights, replicas {format_bytes(terms['replica_bytes'])}")
