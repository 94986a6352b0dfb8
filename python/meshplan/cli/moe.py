"""``planner moe``: recorded loads, expert placement, hot ranks, dispatch and combine."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from meshplan.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="MoE routing: loads, hot ranks, expert placement, dispatch and combine.",
)

LoadsArgument = Annotated[
    Path, typer.Argument(help="Counts per layer and expert: CSV, Parquet or JSON.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Where = Annotated[
    list[str] | None, typer.Option("--where", help="LABEL=VALUE: read only such rows.")
]
SkipDense = Annotated[
    bool, typer.Option("--skip-dense", help="Leave out layers in which no expert has a load.")
]


class Policy(StrEnum):
    """Balancers."""

    BEST = "best"
    EPLB = "eplb"


class Engine(StrEnum):
    """Engines that load a placement."""

    SGLANG = "sglang"
    VLLM = "vllm"
    ASCEND = "vllm-ascend"


@app.callback()
def _moe() -> None:
    """MoE routing: loads, hot ranks, expert placement, dispatch and combine."""


@app.command()
def balance(
    loads: LoadsArgument,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the expert-parallel group.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that hold the ranks.")] = 1,
    groups: Annotated[int, typer.Option(min=1, help="Expert groups of the router.")] = 1,
    redundant: Annotated[int, typer.Option(min=0, help="Spare slots for replicas.")] = 0,
    policy: Annotated[Policy, typer.Option(help="Balancer.")] = Policy.BEST,
    keep_groups: Annotated[
        bool, typer.Option(help="best: replicas of a router group stay on one node.")
    ] = False,
    speeds: Annotated[
        str, typer.Option(help="Relative speed of each rank, as 1,1,0.8,… (default: alike).")
    ] = "",
    output: Annotated[Path | None, typer.Option(help="Write the map for an engine.")] = None,
    engine: Annotated[Engine, typer.Option(help="Format of --output.")] = Engine.SGLANG,
    where: Where = None,
    skip_dense: SkipDense = False,
    as_json: Json = False,
) -> None:
    """Place experts and their replicas on ranks, layer by layer."""
    from meshplan.moe.api import balance as place
    from meshplan.moe.loads import read_loads
    from meshplan.moe.placement import engine_map, write_json

    recorded = read_loads(loads, ranks=ranks, skip_dense=skip_dense, where=_labels(where))
    if len(recorded.snapshots) > 1:
        print(f"note: {len(recorded.snapshots)} snapshots are summed", file=sys.stderr)
    layers = place(
        recorded.total,
        ranks=ranks,
        nodes=nodes,
        groups=groups,
        redundant=redundant,
        policy=policy.value,
        speeds=_numbers(speeds, "speeds"),
        keep_groups=keep_groups,
    )
    for layer, number in zip(layers, recorded.layers, strict=True):
        layer["layer"] = number
    if output is not None:
        write_json(output, engine_map(layers, engine.value, ranks, recorded.dense))
        print(f"wrote {output} for {engine.value}", file=sys.stderr)
    if as_json:
        print(json.dumps(_by_layer_and_column(layers)))
    else:
        _print_balance(layers)


def _by_layer_and_column(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Layers as records, and each field over all layers (a matrix, where it is a list)."""
    return {"layers": layers, **{key: [layer[key] for layer in layers] for key in layers[0]}}


def _print_balance(layers: list[dict[str, Any]]) -> None:
    head = ("layer", "in order", "balanced", "bound", "gap %", "most replicas", "duplicates")
    print(" ".join(f"{name:>13}" for name in head))
    for layer in layers:
        found, bound = layer["rank_max_over_mean"], layer["bound_max_over_mean"]
        cells = (
            str(layer["layer"]),
            f"{layer['contiguous_max_over_mean']:.4f}",
            f"{found:.4f}",
            f"{bound:.4f}",
            f"{100 * (found / bound - 1):.3f}",
            str(max(layer["logical_count"])),
            str(layer["duplicates"]),
        )
        print(" ".join(f"{cell:>13}" for cell in cells))


def _labels(where: list[str] | None) -> dict[str, str]:
    labels = {}
    for item in where or []:
        key, found, value = item.partition("=")
        if not found:
            raise InputError("must be LABEL=VALUE", field="--where", value=item)
        labels[key.strip().lower()] = value
    return labels


def _numbers(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError("numbers with commas between", field=f"--{name}", value=text) from None
