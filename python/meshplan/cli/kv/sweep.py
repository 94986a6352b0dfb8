"""``planner kv sweep``: block sizes, formats and layouts at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from meshplan.cli.kv.replay import FormatOption, Json, Plot, SkipBad
from meshplan.cli.kv.show import print_columns, print_json
from meshplan.cli.kv.size import parse_memories
from meshplan.errors import Infeasible, InputError
from meshplan.units import UnitError, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from meshplan.kv.sweep import Lengths

T = TypeVar("T")


def _list(text: str, read: Callable[[str], T], field: str) -> list[T]:
    try:
        return [read(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        rule = "must be values with commas between them, such as 16,32,64"
        raise InputError(rule, field=field, value=text) from None


def sweep(
    model: Annotated[str, typer.Option(help="Preset, config.json or folder.")],
    block_size: Annotated[str, typer.Option(help="Tokens in a block.")] = "16,32,64,128,256,512",
    kv_dtype: Annotated[str, typer.Option(help="Cache formats.")] = "bf16",
    tp: Annotated[str, typer.Option(help="Tensor-parallel ranks.")] = "1",
    pp: Annotated[str, typer.Option(help="Pipeline stages.")] = "1",
    dcp: Annotated[str, typer.Option(help="Decode context ranks.")] = "1",
    gpu_memory_utilization: Annotated[str, typer.Option(help="Shares of the memory.")] = "0.9",
    max_model_len: Annotated[str, typer.Option(help="Longest requests, tokens.")] = "8192",
    chunk: Annotated[str, typer.Option(help="Tokens of a batch.")] = "8192",
    shared_prefix: Annotated[str, typer.Option(help="Tokens that all requests share.")] = "0",
    lengths: Annotated[
        str | None, typer.Option(help="fixed:P,A, lognormal:MEAN,SIGMA,A or hist:PxN,…")
    ] = None,
    lengths_from: Annotated[Path | None, typer.Option(help="Trace that gives lengths.")] = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    skip_bad: SkipBad = 0,
    gpu: Annotated[str | None, typer.Option(help="GPU, to predict its memory.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory that the GPU shows.")] = None,
    available_memory: Annotated[
        str | None, typer.Option(help="Memory for the cache, as the engine reported it.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests of a batch (the engine's for the GPU).")
    ] = None,
    engine_version: Annotated[str | None, typer.Option(help="vLLM version.")] = None,
    output: Annotated[Path | None, typer.Option(help="All rows: .parquet, .csv or .arrow.")] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Sweep block sizes, formats and layouts: what each wastes, holds and costs.

    One row per combination; what does not fit is a row with a status.
    """
    import polars as pl

    from meshplan import output as files
    from meshplan.kv.size import Flags, Hardware
    from meshplan.kv.sweep import MAX_ROWS, Axes, sweep_frames

    if output is not None:
        files.check(output)
    if plot is not None:
        from meshplan.kv.plot import check

        check(plot)
    axes = Axes(
        block_sizes=_list(block_size, int, "--block-size"),
        kv_dtypes=_list(kv_dtype, str, "--kv-dtype"),
        tensor_parallel=_list(tp, int, "--tp"),
        pipeline_parallel=_list(pp, int, "--pp"),
        decode_context_parallel=_list(dcp, int, "--dcp"),
        shares=_list(gpu_memory_utilization, float, "--gpu-memory-utilization"),
        max_model_lens=_list(max_model_len, int, "--max-model-len"),
        chunks=_list(chunk, int, "--chunk"),
        prefixes=_list(shared_prefix, int, "--shared-prefix"),
    )
    try:
        total = parse_bytes(gpu_memory) if gpu_memory is not None else None
    except UnitError as error:
        rule, hint = error.rule, error.hint
        raise InputError(rule, field="--gpu-memory", value=gpu_memory or "", hint=hint) from None
    hardware = Hardware(
        available_memory=parse_memories(available_memory) if available_memory else None,
        gpu=gpu,
        gpu_memory=total,
    )
    flags = Flags(max_num_seqs=max_num_seqs, engine_version=engine_version)
    requests = _lengths(lengths, lengths_from, format, skip_bad)
    frames = sweep_frames(model, axes, requests, flags=flags, hardware=hardware)
    if json and frames.rows > MAX_ROWS // 100:
        rule = f"--json prints at most {MAX_ROWS // 100:,} rows"
        hint = "--output rows.parquet keeps all"
        raise InputError(rule, field="rows", value=f"{frames.rows:,}", hint=hint)
    head: list[pl.DataFrame] = []
    fitting = 0
    firsts: list[pl.DataFrame] = []

    def watched() -> Iterator[pl.DataFrame]:
        """Frames on their way, of which what is shown is kept."""
        nonlocal fitting
        for frame in frames:
            rows = pl.DataFrame(frame)
            fitting += int((rows["status"] == "ok").sum())
            if json or not head:
                head.append(rows)
            if plot is not None:
                firsts.append(rows.group_by("block_tokens", maintain_order=True).first())
            yield rows

    if output is not None:
        files.write(watched(), output)
    else:
        for _ in watched():
            if not json and plot is None and fitting:
                break
    if plot is not None:
        from meshplan.kv.plot import plot_waste, save

        save(plot_waste(pl.concat(firsts)), plot)
    if json:
        print_json({"rows": frames.rows, "points": pl.concat(head).to_dicts()})
    else:
        _print(head[0], frames.rows)
    if not fitting:
        hint = (
            "less of --max-model-len, more of --tp or --pp, --kv-dtype fp8; see the column status"
        )
        raise Infeasible("no combination holds one request of full length", hint=hint)


def _lengths(text: str | None, trace: Path | None, form: FormatOption, skip_bad: int) -> Lengths:
    from meshplan.kv.sweep import lengths_of, parse_lengths

    if (text is None) == (trace is None):
        hint = "--lengths lognormal:2000,0.9,200 or --lengths-from trace.jsonl"
        raise InputError("state one of --lengths and --lengths-from", field="lengths", hint=hint)
    if text is not None:
        return parse_lengths(text)
    if trace is None:
        raise InputError("is missing", field="--lengths-from")
    return lengths_of(trace, form.value if form else None, skip_bad=skip_bad)


SHOWN = {
    "block_tokens": "block",
    "kv_format": "format",
    "tp": "tp",
    "pp": "pp",
    "max_len_tokens": "max len",
    "status": "status",
    "num_blocks": "blocks",
    "mean_concurrency": "at once",
    "waste_ratio": "waste",
    "saved_prefill_ratio": "saved",
    "prefill_chunks": "chunks",
    "lookups_per_step": "lookups",
}
MOST_ROWS = 60


def _print(rows: pl.DataFrame, total: int) -> None:
    print(f"{total:,} combination{'s' if total != 1 else ''}")
    shown = rows.head(MOST_ROWS).select(list(SHOWN)).iter_rows()
    table = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in shown]
    print_columns(list(SHOWN.values()), table)
    if total > MOST_ROWS:
        print(f"… {total - MOST_ROWS:,} more; --output rows.parquet keeps all")
