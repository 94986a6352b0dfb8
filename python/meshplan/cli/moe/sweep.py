"""``planner moe sweep``: imbalance over a grid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan.cli.moe.common import Json, Plot, counts, numbers
from meshplan.errors import Infeasible

if TYPE_CHECKING:
    import polars as pl

SHOWN = 40
"""Rows printed without ``--output``."""


def sweep(
    experts: Annotated[str, typer.Option(help="Experts: 64,256.")] = "256",
    top_k: Annotated[str, typer.Option(help="Experts per token.")] = "8",
    ranks: Annotated[str, typer.Option(help="Expert-parallel ranks.")] = "8,16,32,64",
    nodes: Annotated[str, typer.Option(help="Nodes.")] = "1",
    redundant: Annotated[str, typer.Option(help="Redundant experts.")] = "0,32",
    alpha: Annotated[
        str, typer.Option(help="Dirichlet concentration per expert; 0 is uniform.")
    ] = "0,1.3",
    tokens: Annotated[str, typer.Option(help="Tokens on each rank.")] = "32,128,1024,4096",
    capacity_factor: Annotated[str, typer.Option(help="Capacity factor; 0: dropless.")] = "0",
    capacity_rule: Annotated[
        str, typer.Option(help="Whose factor: megatron,switch,tutel.")
    ] = "megatron",
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0: one per core.")] = 0,
    output: Annotated[Path | None, typer.Option(help=".parquet, .csv or .arrow.")] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Imbalance, traffic, active experts and drops of every combination, in closed form."""
    import polars as pl

    from meshplan.moe import api

    if plot is not None:
        from meshplan.kv.plot import check

        check(plot)
    frame = api.sweep(
        experts=counts(experts, "--experts"),
        top_k=counts(top_k, "--top-k"),
        ranks=counts(ranks, "--ranks"),
        nodes=counts(nodes, "--nodes"),
        redundant=counts(redundant, "--redundant"),
        alpha=numbers(alpha, "--alpha"),
        tokens_per_rank=counts(tokens, "--tokens"),
        capacity_factor=numbers(capacity_factor, "--capacity-factor"),
        capacity_rule=[rule.strip() for rule in capacity_rule.split(",") if rule.strip()],
        threads=threads,
    )
    if output is not None:
        from meshplan.output import write

        rows = write([frame], output)
        print(f"wrote {rows:,} rows to {output}", file=sys.stderr)
    if plot is not None:
        from meshplan.kv.plot import save
        from meshplan.moe.plot import plot_sweep

        save(plot_sweep(frame), plot)
    if as_json:
        print(frame.fill_nan(None).write_json())
    elif output is None:
        with pl.Config(
            tbl_rows=SHOWN, tbl_cols=-1, tbl_hide_dataframe_shape=True, ascii_tables=True
        ):
            print(frame.head(SHOWN))
        if frame.height > SHOWN:
            print(f"{frame.height:,} rows; --output keeps them all", file=sys.stderr)
    _refuse(frame)


def _refuse(frame: pl.DataFrame) -> None:
    """Leave with 1 where no point makes sense."""
    statuses = set(frame["status"].unique().to_list())
    if "ok" in statuses:
        return
    hints = {
        "top_k": "--top-k is at most --experts",
        "experts": "--experts + --redundant is a multiple of --ranks",
        "nodes": "--nodes divides --ranks",
        "capacity": "Switch's rule is for --top-k 1",
    }
    raise Infeasible(
        "no point of the sweep makes sense",
        hint="; ".join(text for status, text in hints.items() if status in statuses),
    )
