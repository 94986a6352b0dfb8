"""Continuous batching on a trace: who runs when, how full the pool is, who is preempted."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meshplan._core import kv_schedule
from meshplan.errors import InputError, require_finite
from meshplan.kv.traces import Format, readable, trace_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshplan._core import Frame

_TOO_LARGE = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of an engine step: ``base + prefill·p + decode·d + context·c``, s.

    Attributes
    ----------
    base_s
        Of any step.
    prefill_token_s
        Of a prompt token.
    decode_s
        Of a decoding request.
    context_token_s
        Of a token in the context of a decoding request.
    """

    base_s: float = 0.02
    prefill_token_s: float = 2e-5
    decode_s: float = 2e-5
    context_token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Limits and rules of the engine.

    Attributes
    ----------
    policy
        `vllm` or `sglang`.
    blocks
        Blocks of the pool as the engine logs them; vLLM keeps one for itself.
    block_size
        Tokens in a block.
    max_num_seqs, max_num_batched_tokens
        Requests and tokens of a step (SGLang: of a prefill chunk).
    long_prefill_token_threshold
        Most tokens of one prompt in a step; 0: no such limit.
    prefix_caching
        Blocks of equal prefixes are shared and kept.
    reserve_prompt
        A request is admitted only if its whole prompt fits.
    watermark
        Share of the pool that admission leaves free.
    unhashed_first
        Blocks that hold no whole block of tokens are reused first (vLLM 0.33).
    conservativeness
        SGLang's `schedule_conservativeness`.
    step
        Time of a step.
    """

    policy: Literal["vllm", "sglang"] = "vllm"
    blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    prefix_caching: bool = True
    reserve_prompt: bool = True
    watermark: float = 0.0
    unhashed_first: bool = False
    conservativeness: float = 1.0
    step: StepTime = StepTime()

    def canonical(self) -> dict[str, Any]:
        """Options of the core."""
        least = {"blocks": 0, "long_prefill_token_threshold": 0}
        for item in fields(self):
            value = getattr(self, item.name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if whole and not least.get(item.name, 1) <= value < _TOO_LARGE:
                rule = f"must be at least {least.get(item.name, 1)} and below 2^31"
                raise InputError(rule, field=item.name, value=str(value))
        require_finite(watermark=self.watermark, conservativeness=self.conservativeness)
        require_finite(**asdict(self.step))
        null = 1 if self.policy == "vllm" else 0
        return {
            "policy": self.policy,
            "blocks": max(self.blocks - null, 0),
            "block_tokens": self.block_size,
            "max_seqs": self.max_num_seqs,
            "max_batched_tokens": self.max_num_batched_tokens,
            "long_prefill_tokens": self.long_prefill_token_threshold,
            "prefix_caching": self.prefix_caching,
            "reserve_prompt": self.reserve_prompt,
            "watermark": self.watermark,
            "unhashed_first": self.unhashed_first,
            "conservativeness": self.conservativeness,
            "step": asdict(self.step),
        }


@dataclass(frozen=True, slots=True)
class Schedule:
    """Result of `schedule`.

    Attributes
    ----------
    summary
        Counts, peaks, means and quantiles, as `planner kv schedule --json` prints them.
    requests, timeline
        Frames; read them with `polars.DataFrame`.
    """

    summary: Mapping[str, Any]
    requests: Frame
    timeline: Frame

    def __getattr__(self, name: str) -> Any:
        """Fields of the summary."""
        if name.startswith("_") or name not in self.summary:
            raise AttributeError(name)
        return self.summary[name]


def schedule(
    trace: str | Path,
    engine: Engine,
    *,
    format: Format | None = None,  # noqa: A002 - the name that the command has
    trace_block_size: int | None = None,
    skip_bad: int = 0,
    unordered: Literal["reject", "keep"] = "reject",
) -> Schedule:
    """Play continuous batching on a trace.

    Parameters
    ----------
    trace
        File; gzip and Parquet are recognised.
    engine
        Limits and rules of the engine, and the time of its steps.
    format, trace_block_size, skip_bad, unordered
        As for `meshplan.kv.replay`.

    Returns
    -------
    Schedule
        Per request, over time, and in sum.

    Raises
    ------
    InputError
        If a line, an option or the file makes no sense.
    """
    options = engine.canonical()
    with readable(Path(trace), format) as (path, found):
        block = engine.block_size
        ids = trace_block_size
        if found == "mooncake" and ids is None and block < MOONCAKE_BLOCK:
            ids = MOONCAKE_BLOCK
        if ids is not None and block < ids:
            # Ids are coarser than blocks: prefixes cannot be told apart block by block.
            block, options["prefix_caching"] = ids, False
        reader = trace_options(
            found, block, trace_block_size=ids, skip_bad=skip_bad, unordered=unordered
        )
        summary, requests, timeline = kv_schedule(str(path), reader, json.dumps(options))
    found_summary = {**json.loads(summary), "prefix_caching": options["prefix_caching"]}
    return Schedule(found_summary, requests, timeline)


MOONCAKE_BLOCK = 512
"""Tokens that an id of the published Mooncake traces stands for."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of `fit_step_time`.

    Attributes
    ----------
    step
        The fitted terms.
    error
        Mean of |ln(simulated / measured)| over time to first token and latency of all requests.
    """

    step: StepTime
    error: float


def fit_step_time(
    trace: str | Path,
    measured: Sequence[tuple[float, float]],
    engine: Engine,
    *,
    format: Format | None = None,  # noqa: A002
    rounds: int = 12,
) -> Fit:
    """Fit the time of a step to a measured run, by playing it.

    Coordinate descent on the logarithms of the four terms, from the best of a coarse grid;
    deterministic.

    Parameters
    ----------
    trace
        The requests of the run, in order.
    measured
        Time to first token and latency of each, s.
    engine
        Limits of the run, and the terms to start from (none of them 0).
    format
        Layout of the trace.
    rounds
        Passes over the terms; the step halves after each.

    Returns
    -------
    Fit
        Terms and remaining error.
    """

    def error(step: StepTime) -> float:
        out = schedule(trace, replace(engine, step=step), format=format)
        return _distance(out, measured)

    starts = [
        replace(engine.step, base_s=base, prefill_token_s=prefill)
        for base in (0.005, 0.01, 0.02, 0.03, 0.045)
        for prefill in (1e-5, 3e-5, 1e-4)
    ]
    best = min([engine.step, *starts], key=error)
    least = error(best)
    width = math.log(2.0)
    for _ in range(rounds):
        improved = False
        for item in fields(StepTime):
            for sign in (width, -width):
                changes = {item.name: getattr(best, item.name) * math.exp(sign)}
                trial = replace(best, **changes)
                found = error(trial)
                if found < least:
                    best, least, improved = trial, found, True
        if not improved:
            width /= 2
    return Fit(best, least)


def _distance(out: Schedule, measured: Sequence[tuple[float, float]]) -> float:
    import polars as pl

    frame = pl.DataFrame(out.requests)
    if len(frame) != len(measured):
        rule = f"{len(measured)} measured requests for {len(frame)} in the trace"
        hint = "the run that was measured must be of this trace, a line for each request"
        raise InputError(rule, field="measured", hint=hint)
    ttft = frame["ttft_s"].to_list()
    latency = (frame["finish_s"] - frame["arrival_s"]).to_list()
    total = sum(
        abs(math.log(t / m)) + abs(math.log(e / n))
        for t, e, (m, n) in zip(ttft, latency, measured, strict=True)
    )
    return total / (2 * len(measured))


def read_measured(path: Path) -> list[tuple[float, float]]:
    """Read time to first token and latency from a run's log of requests.

    Parameters
    ----------
    path
        JSON lines with `queued_ts`, `first_token_ts` and `last_token_ts`, s.

    Raises
    ------
    InputError
        If a line lacks one of them.
    """
    found = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}:{number}"
                try:
                    row = json.loads(line)
                    start, first, last = (
                        float(row[k]) for k in ("queued_ts", "first_token_ts", "last_token_ts")
                    )
                except (ValueError, KeyError, TypeError):
                    rule = "expected numbers queued_ts, first_token_ts and last_token_ts"
                    raise InputError(rule, where=where) from None
                if not start < first <= last:
                    raise InputError("times do not rise", where=where)
                found.append((first - start, last - start))
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path)) from None
    return found
