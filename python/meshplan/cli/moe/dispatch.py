"""``planner moe dispatch``: traffic and time of one MoE layer."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from meshplan.cli.moe.common import MOST, Json, Nodes, Ranks, counts, quantity
from meshplan.errors import InputError
from meshplan.units import (
    format_bytes,
    format_bytes_per_s,
    format_seconds,
    parse_bytes_per_s,
    parse_flops,
)


class Kernel(StrEnum):
    """Kernels of the exchange."""

    NORMAL = "normal"
    LOW_LATENCY = "low-latency"
    FORWARDING = "low-latency-forwarding"


class Fit(StrEnum):
    """Measurements that say what the kernels reach."""

    PUBLISHED = "published"
    HOPPER = "hopper"


class Overlap(StrEnum):
    """What hides the exchange."""

    NONE = "none"
    SHARED = "shared-experts"
    TWO = "two-micro-batches"


LAYER = "Time of the whole layer"


def dispatch(
    experts: Annotated[int, typer.Option(min=1, max=MOST, help="Experts of a layer.")],
    top_k: Annotated[int, typer.Option(min=1, max=MOST, help="Experts per token.")],
    ranks: Ranks,
    tokens: Annotated[int, typer.Option(min=1, max=(1 << 32) - 1, help="Tokens on each rank.")],
    hidden: Annotated[int, typer.Option(min=1, max=MOST, help="Width of a token.")],
    nodes: Nodes = 1,
    kernel: Annotated[Kernel, typer.Option(help="How messages travel.")] = Kernel.NORMAL,
    routing: Annotated[
        str, typer.Option(help="uniform, dirichlet:A, zipf:S, lognormal:S or a file; MODEL*LEFT.")
    ] = "uniform",
    group_limit: Annotated[
        str, typer.Option(help="Router groups, and groups a token may use: 8,4.")
    ] = "",
    nvlink: Annotated[str, typer.Option(help="NVLink of a GPU, one direction.")] = "450 GB/s",
    nic: Annotated[str, typer.Option(help="NIC of a GPU, one direction.")] = "50 GB/s",
    fit: Annotated[
        Fit, typer.Option(help="What kernels reach: DeepEP's tables (H800), or H100 and H200.")
    ] = Fit.PUBLISHED,
    trials: Annotated[int, typer.Option(min=1, max=1_000_000, help="Batches drawn.")] = 64,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Seed of the draws.")] = 0,
    matrix: Annotated[bool, typer.Option("--matrix", help="JSON: rank-to-rank matrix.")] = False,
    expert_hidden: Annotated[
        int, typer.Option(min=0, max=MOST, help="Width of an expert.", rich_help_panel=LAYER)
    ] = 0,
    shared_experts: Annotated[
        int, typer.Option(min=0, max=MOST, help="Shared experts.", rich_help_panel=LAYER)
    ] = 0,
    weight_bytes: Annotated[
        float, typer.Option(help="Bytes per weight.", rich_help_panel=LAYER)
    ] = 1.0,
    flops: Annotated[
        str, typer.Option(help="Grouped-GEMM FLOP/s that a rank reaches.", rich_help_panel=LAYER)
    ] = "600 TFLOP/s",
    memory: Annotated[
        str, typer.Option(help="Memory bandwidth that a rank reaches.", rich_help_panel=LAYER)
    ] = "2.6 TB/s",
    overlap: Annotated[
        Overlap, typer.Option(help="What hides the exchange.", rich_help_panel=LAYER)
    ] = Overlap.NONE,
    as_json: Json = False,
) -> None:
    """Bytes and time of dispatch and combine, and of the experts between them."""
    from meshplan.moe import api

    question = api.dispatch_question(
        routing=api.read_routing(routing),
        experts=experts,
        top_k=top_k,
        ranks=ranks,
        nodes=nodes,
        tokens=tokens,
        group_limit=_pair(group_limit),
        hidden=hidden,
        kernel=kernel.value.replace("-", "_"),
        nvlink_bytes_per_s=quantity(nvlink, "--nvlink", parse_bytes_per_s),
        nic_bytes_per_s=quantity(nic, "--nic", parse_bytes_per_s),
        trials=trials,
        seed=seed,
        matrix=matrix,
        fit=fit.value,
    )
    answer = api.dispatch(question)
    if expert_hidden:
        answer["layer"] = api.layer_time(
            question,
            expert_hidden=expert_hidden,
            shared_experts=shared_experts,
            weight_bytes=weight_bytes,
            flops_per_s=quantity(flops, "--flops", parse_flops),
            bytes_per_s=quantity(memory, "--memory", parse_bytes_per_s),
            overlap=overlap.value.replace("-", "_"),
        )
    if as_json:
        print(json.dumps(answer))
    else:
        _print(answer)


def _pair(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    found = counts(text, "--group-limit")
    if len(found) != 2:
        raise InputError("two numbers: groups,kept", field="--group-limit", value=text)
    return found[0], found[1]


def _print(answer: dict[str, Any]) -> None:
    copies = answer["copies"]
    print(f"ranks of a token          {copies['distinct_ranks']:.3f}")
    print(f"nodes of a token          {copies['distinct_nodes']:.3f}")
    print(f"fullest rank over mean    {copies['rank_max_over_mean']:.3f}")
    for phase in ("dispatch", "combine"):
        side = answer[phase]
        print(f"{phase:<26}{format_seconds(side['time_s'])}")
        print(f"  over the NIC            {format_bytes(side['nic_bytes'])}")
        print(f"  over NVLink             {format_bytes(side['nvlink_bytes'])}")
        print(f"  logical bandwidth       {format_bytes_per_s(side['logical_bytes_per_s'])}")
    for name, value in answer.get("layer", {}).items():
        print(f"{name.removesuffix('_s').replace('_', ' '):<26}{format_seconds(value)}")
