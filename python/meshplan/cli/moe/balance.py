"""``planner moe balance``: place experts and their replicas on ranks."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan.cli.moe.common import (
    MOST,
    Json,
    LoadsArgument,
    Nodes,
    Plot,
    Ranks,
    SkipDense,
    Where,
    counts,
    labels,
    numbers,
    quantity,
    table,
)
from meshplan.errors import InputError
from meshplan.units import format_bytes, parse_bytes, parse_bytes_per_s, parse_seconds

if TYPE_CHECKING:
    from meshplan.moe.loads import Loads


class Policy(StrEnum):
    """Balancers."""

    BEST = "best"
    EPLB = "eplb"


class Engine(StrEnum):
    """Engines that load a placement."""

    SGLANG = "sglang"
    VLLM = "vllm"
    ASCEND = "vllm-ascend"


MOVING = "Cost of moving"


def balance(
    loads: LoadsArgument,
    ranks: Ranks,
    nodes: Nodes = 1,
    groups: Annotated[int, typer.Option(min=1, max=MOST, help="Expert groups of the router.")] = 1,
    redundant: Annotated[int, typer.Option(min=0, max=MOST, help="Spare slots for replicas.")] = 0,
    policy: Annotated[Policy, typer.Option(help="Balancer.")] = Policy.BEST,
    keep_groups: Annotated[
        bool, typer.Option("--keep-groups", help="best: a router group stays on one node.")
    ] = False,
    speeds: Annotated[
        str, typer.Option(help="Relative speed of each rank: 1,1,0.8,… (default: alike).")
    ] = "",
    robust: Annotated[
        bool, typer.Option("--robust", help="One placement for all snapshots: lowest worst case.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write the map for an engine.")] = None,
    engine: Annotated[Engine, typer.Option(help="Format of --output.")] = Engine.SGLANG,
    model: Annotated[
        str, typer.Option(help="Preset or config.json: bytes of experts and replicas on a rank.")
    ] = "",
    weight_dtype: Annotated[
        str | None, typer.Option(help="Format of its weights (default: the checkpoint's).")
    ] = None,
    expert_bytes: Annotated[
        str, typer.Option(help="Weights of one expert: 44 MB.", rich_help_panel=MOVING)
    ] = "",
    rebalance_every: Annotated[
        str,
        typer.Option(help="Try these intervals, in snapshots: 1,2,4.", rich_help_panel=MOVING),
    ] = "",
    steps_per_snapshot: Annotated[
        float, typer.Option(help="Steps between snapshots.", rich_help_panel=MOVING)
    ] = 1000.0,
    layer_time: Annotated[
        str, typer.Option(help="Experts of a balanced layer, a step.", rich_help_panel=MOVING)
    ] = "300 us",
    link: Annotated[
        str, typer.Option(help="Bandwidth that moves experts.", rich_help_panel=MOVING)
    ] = "50 GB/s",
    stall: Annotated[
        str, typer.Option(help="Standstill at a rearrangement.", rich_help_panel=MOVING)
    ] = "0 s",
    where: Where = None,
    skip_dense: SkipDense = False,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Place experts and their replicas on ranks, layer by layer."""
    from meshplan.moe import api
    from meshplan.moe.loads import read_loads

    if plot is not None:
        from meshplan.kv.plot import check

        check(plot)
    recorded = read_loads(loads, ranks=ranks, skip_dense=skip_dense, where=labels(where))
    if robust:
        if policy is Policy.EPLB:
            raise InputError("--robust has a balancer of its own", field="--policy", value="eplb")
        layers = api.balance_robust(
            recorded.snapshots,
            ranks=ranks,
            nodes=nodes,
            groups=groups,
            redundant=redundant,
            speeds=numbers(speeds, "--speeds"),
            keep_groups=keep_groups,
        )
    else:
        if len(recorded.snapshots) > 1:
            print(f"note: {len(recorded.snapshots)} snapshots are summed", file=sys.stderr)
        layers = api.balance(
            recorded.total,
            ranks=ranks,
            nodes=nodes,
            groups=groups,
            redundant=redundant,
            policy=policy.value,
            speeds=numbers(speeds, "--speeds"),
            keep_groups=keep_groups,
        )
    for layer, number in zip(layers, recorded.layers, strict=True):
        layer["layer"] = number
    answer = _by_layer_and_column(layers)
    if model:
        answer["memory"] = _memory(model, recorded, ranks, redundant, weight_dtype)
        expert_bytes = expert_bytes or f"{answer['memory']['expert_bytes']} B"
    elif expert_bytes:
        size = quantity(expert_bytes, "--expert-bytes", parse_bytes)
        answer["replica_bytes_per_rank"] = redundant / ranks * size * len(layers)
    if rebalance_every:
        answer["rebalance"] = api.rebalance(
            recorded.snapshots,
            ranks=ranks,
            redundant=redundant,
            every=counts(rebalance_every, "--rebalance-every"),
            steps_per_snapshot=steps_per_snapshot,
            balanced_layer_s=quantity(layer_time, "--layer-time", parse_seconds),
            expert_bytes=_needed(expert_bytes),
            bytes_per_s=quantity(link, "--link", parse_bytes_per_s),
            stall_s=quantity(stall, "--stall", parse_seconds),
        )
    _write(layers, recorded, output, engine, ranks)
    _draw(recorded, redundant, ranks, plot)
    if as_json:
        print(json.dumps(answer))
    else:
        _print(layers, answer)


def _memory(
    model: str, recorded: Loads, ranks: int, redundant: int, weight_dtype: str | None
) -> dict[str, Any]:
    """Bytes of experts and replicas on a rank of this model."""
    from meshplan.moe import api

    found = api.expert_memory(model, ranks=ranks, redundant=redundant, weight_dtype=weight_dtype)
    if found["experts"] != recorded.experts:
        raise InputError(
            f"has {found['experts']} experts, the loads are of {recorded.experts}",
            field="--model",
            value=model,
        )
    return found


def _needed(expert_bytes: str) -> float:
    if not expert_bytes:
        raise InputError(
            "is needed to charge the moves",
            field="--expert-bytes",
            hint="or --model; 3 · hidden · expert width · bytes a weight, 44 MB for DeepSeek-V3",
        )
    return quantity(expert_bytes, "--expert-bytes", parse_bytes)


def _write(
    layers: list[dict[str, Any]],
    recorded: Loads,
    output: Path | None,
    engine: Engine,
    ranks: int,
) -> None:
    if output is None:
        return
    from meshplan.moe.placement import engine_map
    from meshplan.output import write_text

    placed = engine_map(layers, engine.value, ranks, recorded.dense)
    write_text(output, json.dumps(placed) + "\n", field="--output")
    print(f"wrote {output} for {engine.value}", file=sys.stderr)


def _draw(recorded: Loads, redundant: int, ranks: int, plot: Path | None) -> None:
    if plot is None:
        return
    from meshplan.kv.plot import save
    from meshplan.moe.plot import plot_redundancy

    save(plot_redundancy(recorded.total, ranks, redundant), plot)


def _by_layer_and_column(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Layers as records, and each field over all layers (a matrix, where it is a list)."""
    return {"layers": layers, **{key: [layer[key] for layer in layers] for key in layers[0]}}


def _print(layers: list[dict[str, Any]], answer: dict[str, Any]) -> None:
    rows = []
    for layer in layers:
        found, bound = layer["rank_max_over_mean"], layer["bound_max_over_mean"]
        rows.append(
            (
                str(layer["layer"]),
                f"{layer['contiguous_max_over_mean']:.4f}",
                f"{found:.4f}",
                f"{bound:.4f}",
                f"{100 * (found / bound - 1):.3f}",
                str(max(layer["logical_count"])),
                str(layer["duplicates"]),
            )
        )
    table(("layer", "in order", "balanced", "bound", "gap %", "replicas", "duplicates"), rows)
    if "memory" in answer:
        memory = answer["memory"]
        print(
            f"experts take {format_bytes(memory['experts_bytes_per_rank'])} of each rank over "
            f"{memory['moe_layers']} MoE layers, {memory['slots_per_rank']:g} slots a layer; of "
            f"that, replicas {format_bytes(memory['replica_bytes_per_rank'])}, which the KV cache "
            "loses"
        )
    elif "replica_bytes_per_rank" in answer:
        size = format_bytes(answer["replica_bytes_per_rank"])
        print(f"replicas take {size} of each rank, which the KV cache loses")
    if "rebalance" in answer:
        print()
        heads = ("every", "max/mean", "moved", "experts s", "moving s", "net gain %")
        table(heads, [_interval(row) for row in answer["rebalance"]])


def _interval(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["every"] or "never"),
        f"{row['rank_max_over_mean']:.4f}",
        str(row["moved_experts"]),
        f"{row['experts_s']:.2f}",
        f"{row['moving_s']:.2f}",
        f"{100 * row['net_gain_ratio']:.2f}",
    )
