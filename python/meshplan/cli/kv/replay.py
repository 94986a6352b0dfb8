"""``planner kv replay``: a trace through prefix caches."""

from __future__ import annotations

import sys
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan.cli.kv.show import note, print_columns, print_json
from meshplan.errors import InputError

if TYPE_CHECKING:
    from meshplan.kv.replay import Replay


class FormatName(StrEnum):
    """Layouts of a trace."""

    mooncake = "mooncake"
    azure = "azure"
    tokens = "tokens"
    csv = "csv"


class PolicyName(StrEnum):
    """Eviction policies."""

    lru = "lru"
    fifo = "fifo"
    naive = "naive"


class IdsName(StrEnum):
    """Blocks that take part."""

    all = "all"
    full = "full"


class UnorderedName(StrEnum):
    """What to do with arrivals out of order."""

    reject = "reject"
    keep = "keep"


Trace = Annotated[Path, typer.Argument(help="Trace file; gzip and Parquet are recognised.")]
FormatOption = Annotated[
    FormatName | None, typer.Option("--format", help="Layout of the trace (default: told from it).")
]
SkipBad = Annotated[int, typer.Option(help="Bad lines to skip before giving up.")]
Unordered = Annotated[UnorderedName, typer.Option(help="Arrivals out of order.")]
TraceBlock = Annotated[
    int | None,
    typer.Option(help="Tokens that one id of the trace stands for (default: --block-size)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plot = Annotated[Path | None, typer.Option(help="Chart to write: .png, .svg or .html.")]


POINTS_AT_ONCE = 10_000
"""Points of a curve that are written together."""


def parse_capacities(texts: list[str]) -> list[int | None]:
    """Capacities from ``1000,3000,inf``."""
    found: list[int | None] = []
    for part in ",".join(texts).split(","):
        text = part.strip().replace("_", "")
        if not text:
            continue
        if text in ("inf", "none", "unbounded"):
            found.append(None)
            continue
        try:
            found.append(int(text))
        except ValueError:
            raise InputError(
                "must be a whole number of blocks, or inf",
                field="--capacity",
                value=part,
                hint="write --capacity 1000,3000,inf",
            ) from None
    return found


def replay(
    trace: Trace,
    format: FormatOption = None,  # noqa: A002 - the option's name
    block_size: Annotated[
        int | None, typer.Option(help="Tokens in a KV block (512, or the engine's for a model).")
    ] = None,
    capacity: Annotated[
        list[str] | None, typer.Option(help="Pools, blocks: 1000,3000,inf (default: inf).")
    ] = None,
    policy: Annotated[PolicyName, typer.Option(help="Eviction.")] = PolicyName.lru,
    ids: Annotated[IdsName, typer.Option(help="Whole blocks, or all ids.")] = IdsName.full,
    curve: Annotated[bool, typer.Option("--curve", help="Hits at every capacity.")] = False,
    sample: Annotated[float, typer.Option(help="Share of blocks to look at (SHARDS).")] = 1.0,
    trace_block_size: TraceBlock = None,
    skip_bad: SkipBad = 0,
    unordered: Unordered = UnorderedName.reject,
    model: Annotated[
        str | None, typer.Option(help="Preset, config.json or folder: its layers share the pool.")
    ] = None,
    engine_version: Annotated[str | None, typer.Option(help="vLLM version.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks of the model.")] = 1,
    kv_dtype: Annotated[str, typer.Option(help="Cache format of the model.")] = "auto",
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a prompt computed at once (8192).")
    ] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Replay a trace through prefix caches: hits at given capacities, or at all of them.

    The order of the file is kept; blocks of answers are not cached. `lru` frees a request's tail
    before its head, as vLLM does. With `--model` each group of its layers (full, windowed, states)
    has blocks of its own in the pool, and a hit is a prefix that all of them accept.
    """
    from meshplan.kv.replay import replay as run
    from meshplan.kv.size import Flags

    if plot is not None:
        from meshplan.kv.plot import check

        check(plot)
    capacities = parse_capacities(capacity or [])
    result = run(
        trace,
        format=format.value if format else None,
        block_size=block_size,
        capacities=capacities or [None],
        policy=policy.value,
        ids=ids.value,
        curve=curve or (plot is not None and model is None and policy is PolicyName.lru),
        sample=sample,
        trace_block_size=trace_block_size,
        skip_bad=skip_bad,
        unordered=unordered.value,
        model=model,
        flags=Flags(
            engine_version=engine_version,
            tensor_parallel=tp,
            kv_dtype=kv_dtype,
            max_num_batched_tokens=max_num_batched_tokens,
        ),
    )
    _talk(result)
    if plot is not None:
        from meshplan.kv.plot import plot_hit_curve, save

        if result.curve is None and not any(p.capacity_blocks for p in result.points):
            hint = "--capacity 1000,3000,10000: without a curve the chart shows these"
            raise InputError("nothing to draw", field="--plot", value=str(plot), hint=hint)
        save(plot_hit_curve(result), plot)
    if json:
        _print_json(result, curve=curve, points_given=bool(capacities))
    else:
        _print(result, curve=curve)


def _talk(result: Replay) -> None:
    if result.skipped_lines:
        note(f"{result.skipped_lines} bad lines skipped; the first: {result.first_skipped}")
    if result.odd_ids:
        note(f"{result.odd_ids} requests do not have one id per block; ids were taken as they are")
    for point in result.points:
        if point.oversized_requests and point.capacity_blocks is not None:
            short = result.max_request_blocks - point.capacity_blocks
            note(
                f"{point.oversized_requests} requests do not fit {point.capacity_blocks} blocks "
                f"(the largest by {short}); an engine would reject them"
            )


def _print_json(result: Replay, *, curve: bool, points_given: bool) -> None:
    from dataclasses import replace

    hits = result.curve if curve else None
    data = replace(result, curve=None).to_dict()
    if hits is None:
        print_json(data)
        return
    # A curve has millions of points: they are written as they are made.
    if not points_given:
        del data["points"]
    names = ["curve"] if points_given else ["points", "curve"]
    total = max(result.total_blocks, 1)
    sys.stdout.write(dumps(data, allow_nan=False)[:-1])
    for name in names:
        sys.stdout.write(f', "{name}": [')
        for start in range(0, len(hits), POINTS_AT_ONCE):
            points = (
                f'{{"capacity_blocks": {c}, "hit_blocks": {n}, "hit_ratio": {n / total!r}}}'
                for c, n in enumerate(hits[start : start + POINTS_AT_ONCE], start + 1)
            )
            sys.stdout.write((", " if start else "") + ", ".join(points))
        sys.stdout.write("]")
    sys.stdout.write("}\n")


def _print(result: Replay, *, curve: bool) -> None:
    print(
        f"{result.requests:,} requests, {result.prompt_tokens:,} prompt tokens, "
        f"{result.total_blocks:,} blocks, {result.unique_blocks:,} distinct"
    )
    for group in result.groups:
        more = ", ".join(f"{name} {group[name]:,}" for name in ("window", "chunk") if name in group)
        print(f"group {group['kind']}: blocks of {group['block_tokens']}{more and ', ' + more}")
    rows = [
        [
            "unbounded" if p.capacity_blocks is None else f"{p.capacity_blocks:,}",
            f"{p.hit_blocks:,}",
            f"{p.hit_ratio:.4f}",
            f"{p.token_hit_ratio:.4f}",
            f"{p.evictions:,}",
        ]
        for p in result.points
    ]
    print_columns(["capacity", "hit blocks", "hit ratio", "token hit ratio", "evictions"], rows)
    if curve and result.curve is not None:
        total = max(result.total_blocks, 1)
        print()
        rows = [[f"{c:,}", f"{h:,}", f"{h / total:.6f}"] for c, h in enumerate(result.curve, 1)]
        print_columns(["capacity", "hit blocks", "hit ratio"], rows)
