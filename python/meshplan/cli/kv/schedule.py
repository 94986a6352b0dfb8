"""``planner kv schedule``: continuous batching on a trace."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan.cli.kv.replay import (
    FormatOption,
    Json,
    Plot,
    SkipBad,
    Trace,
    TraceBlock,
    Unordered,
    UnorderedName,
)
from meshplan.cli.kv.show import note, print_columns, print_json
from meshplan.errors import Infeasible, InputError
from meshplan.units import UnitError, format_seconds, parse_seconds

if TYPE_CHECKING:
    from meshplan.kv.schedule import Engine, Schedule, StepTime


class SchedulerName(StrEnum):
    """Whose scheduler."""

    vllm = "vllm"
    sglang = "sglang"


def _seconds(text: str, field: str) -> float:
    try:
        return parse_seconds(text)
    except UnitError as error:
        raise InputError(error.rule, field=field, value=text, hint=error.hint) from None


def schedule(
    trace: Trace,
    blocks: Annotated[int, typer.Option(help="Blocks of the pool, as the engine logs them.")],
    format: FormatOption = None,  # noqa: A002 - the option's name
    policy: Annotated[SchedulerName, typer.Option(help="Whose scheduler.")] = SchedulerName.vllm,
    block_size: Annotated[int, typer.Option(help="Tokens in a KV block.")] = 16,
    max_num_seqs: Annotated[int, typer.Option(help="Requests of a step.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 2048,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(help="Most tokens of one prompt in a step (0: no limit).")
    ] = 0,
    no_prefix_caching: Annotated[
        bool, typer.Option("--no-prefix-caching", help="Share no blocks.")
    ] = False,
    no_reserve_prompt: Annotated[
        bool, typer.Option("--no-reserve-prompt", help="Admit prompts that do not fit whole.")
    ] = False,
    watermark: Annotated[float, typer.Option(help="Share that admission leaves free.")] = 0.0,
    unhashed_first: Annotated[
        bool, typer.Option("--unhashed-first", help="Reuse unhashed blocks first (vLLM 0.33).")
    ] = False,
    conservativeness: Annotated[float, typer.Option(help="SGLang's admission.")] = 1.0,
    step_base: Annotated[str, typer.Option(help="Time of any step.")] = "20 ms",
    step_prefill_token: Annotated[str, typer.Option(help="Of a prompt token.")] = "20 us",
    step_decode: Annotated[str, typer.Option(help="Of a decoding request.")] = "20 us",
    step_context_token: Annotated[str, typer.Option(help="Of a token of context.")] = "0 s",
    fit: Annotated[
        Path | None, typer.Option(help="Requests of this run as measured: fit the step to them.")
    ] = None,
    trace_block_size: TraceBlock = None,
    skip_bad: SkipBad = 0,
    unordered: Unordered = UnorderedName.reject,
    output: Annotated[Path | None, typer.Option(help="Requests: .parquet, .csv or .arrow.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="State over time: .parquet, .csv or .arrow.")
    ] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Play continuous batching on a trace: queues, latencies, preemptions, occupancy over time.

    The time of a step is linear in its prompt tokens, decoding requests and tokens of context;
    `--fit` finds the terms from a measured run of the same trace.
    """
    from meshplan import output as files
    from meshplan.kv.schedule import Engine, StepTime
    from meshplan.kv.schedule import schedule as run

    step = StepTime(
        base_s=_seconds(step_base, "--step-base"),
        prefill_token_s=_seconds(step_prefill_token, "--step-prefill-token"),
        decode_s=_seconds(step_decode, "--step-decode"),
        context_token_s=_seconds(step_context_token, "--step-context-token"),
    )
    engine = Engine(
        policy=policy.value,
        blocks=blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=long_prefill_token_threshold,
        prefix_caching=not no_prefix_caching,
        reserve_prompt=not no_reserve_prompt,
        watermark=watermark,
        unhashed_first=unhashed_first,
        conservativeness=conservativeness,
        step=step,
    )
    for path in (output, timeline):
        if path is not None:
            files.check(path)
    if plot is not None:
        from meshplan.kv.plot import check

        check(plot)
    if fit is not None:
        engine = _fitted(trace, engine, fit, format)
    result = run(
        trace,
        engine,
        format=format.value if format else None,
        trace_block_size=trace_block_size,
        skip_bad=skip_bad,
        unordered=unordered.value,
    )
    if output is not None:
        files.write([result.requests], output)
    if timeline is not None:
        files.write([result.timeline], timeline, field="--timeline")
    if plot is not None:
        from meshplan.kv.plot import plot_occupancy, save

        save(plot_occupancy(result), plot)
    if engine.prefix_caching and not result.prefix_caching:
        note("ids of the trace stand for more tokens than a block: no prefixes are shared")
    _answer(result, engine.step, json=json)
    if not result.finished:
        most = result.first_rejected["blocks"]
        raise Infeasible(
            f"no request fits {engine.blocks:,} blocks of {engine.block_size}",
            hint=f"the first takes {most:,}; --blocks is what the engine logs, planner kv size says",
        )


def _fitted(trace: Path, engine: Engine, fit: Path, form: FormatOption) -> Engine:
    from dataclasses import fields, replace

    from meshplan.kv.schedule import fit_step_time, read_measured

    positive = {f.name: max(getattr(engine.step, f.name), 1e-8) for f in fields(engine.step)}
    start = replace(engine, step=replace(engine.step, **positive))
    found = fit_step_time(
        trace, read_measured(fit), start, format=form.value if form else None, rounds=40
    )
    note(f"fitted step time, mean log error {found.error:.3f}")
    return replace(engine, step=found.step)


def _answer(result: Schedule, step: StepTime, *, json: bool) -> None:
    s = result.summary
    if s["rejected"]:
        first = s["first_rejected"]
        note(
            f"{s['rejected']:,} of {s['requests']:,} requests can never fit and were rejected; the "
            f"first, request {first['request']}, needs {first['blocks']} blocks, "
            f"{first['shortfall_blocks']} more than there are"
        )
    if json:
        from dataclasses import asdict

        print_json({**s, "step": asdict(step)})
        return
    print(
        f"{s['requests']:,} requests in {format_seconds(s['makespan_s'])}, {s['steps']:,} steps, "
        f"{s['output_tokens_per_s']:.1f} answer tokens/s"
    )
    print(
        f"running at most {s['peak_running']:,}, waiting at most {s['peak_waiting']:,}, "
        f"pool {s['peak_occupancy_ratio']:.1%} at most and {s['mean_occupancy_ratio']:.1%} in mean"
    )
    when = s["first_preemption_s"]
    begins = "" if when is None else f", from {format_seconds(when)} on"
    print(f"{s['preemptions']:,} preemptions{begins}; prefix hits {s['hit_ratio']:.1%}")
    rows = [
        [name, *(format_seconds(s[key][q]) for q in ("mean", "p50", "p90", "p99", "max"))]
        for name, key in (("queue", "queue_s"), ("TTFT", "ttft_s"), ("TPOT", "tpot_s"))
    ]
    print_columns(["", "mean", "p50", "p90", "p99", "max"], rows)
