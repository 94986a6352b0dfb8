"""Block sizes, formats and layouts at once, for requests of given lengths."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meshplan._core import KvSweep, kv_lengths, kv_waste
from meshplan.errors import InputError, require_finite
from meshplan.kv.size import KV_FORMATS, Flags, Hardware, canonical_query
from meshplan.kv.traces import Format, readable, trace_options

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import polars as pl

    from meshplan.hf import ModelSpec

BINS: Final = 1000
"""Quantiles by which a lognormal distribution is drawn."""

MAX_ROWS: Final = 20_000_000
"""Rows of a sweep that are held in memory: 3 GB."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of requests.

    Attributes
    ----------
    rows
        Prompt tokens, answer tokens, occurrences.
    """

    rows: tuple[tuple[int, int, int], ...]

    def canonical_json(self) -> str:
        """Text for the core."""
        return json.dumps({"rows": self.rows})

    @property
    def requests(self) -> int:
        """Number of requests."""
        return sum(row[2] for row in self.rows)

    def waste(self, block_size: int) -> dict[str, Any]:
        """Waste of a block size: slots, share, mean, quantiles.

        Examples
        --------
        >>> Lengths(((10, 7, 1),)).waste(16)["wasted_tokens"]
        15
        """
        if not 1 <= block_size < 1 << 31:
            rule = "must be between 1 and 2^31"
            raise InputError(rule, field="block_size", value=str(block_size))
        found: dict[str, Any] = json.loads(kv_waste(self.canonical_json(), block_size))
        return found


def fixed(prompt: int, answer: int) -> Lengths:
    """All requests alike.

    >>> fixed(1000, 200).requests
    1000
    """
    _check(prompt, answer)
    return Lengths(((prompt, answer, BINS),))


def lognormal(mean: float, sigma: float, answer: int) -> Lengths:
    """Prompts whose logarithm is normal, by equally likely quantiles; answers alike.

    Parameters
    ----------
    mean
        Mean prompt, tokens.
    sigma
        Standard deviation of the logarithm.
    answer
        Tokens of each answer.
    """
    from statistics import NormalDist

    if not (mean >= 1 and 0 < sigma <= 5 and math.isfinite(mean)):
        rule = "needs a mean of at least 1 token and a sigma above 0 and up to 5"
        raise InputError(rule, field="lengths", value=f"lognormal:{mean},{sigma}")
    normal = NormalDist(math.log(mean) - sigma * sigma / 2, sigma)
    prompts = [max(1, round(math.exp(normal.inv_cdf((i + 0.5) / BINS)))) for i in range(BINS)]
    _check(max(prompts), answer)
    return Lengths(tuple((prompt, answer, 1) for prompt in prompts))


def _check(prompt: int, answer: int) -> None:
    if not (1 <= prompt < 1 << 31 and 0 <= answer < 1 << 31):
        rule = "needs a prompt of at least 1 token and an answer of at least 0, below 2^31"
        raise InputError(rule, field="lengths", value=f"{prompt},{answer}")


def lengths_of(trace: str | Path, form: Format | None = None, *, skip_bad: int = 0) -> Lengths:
    """Lengths of a trace's requests."""
    with readable(Path(trace), form) as (path, found):
        block = 512 if found == "mooncake" else 16
        text = kv_lengths(str(path), trace_options(found, block, skip_bad=skip_bad))
    return Lengths(tuple((p, o, n) for p, o, n in json.loads(text)["rows"]))


def parse_lengths(text: str) -> Lengths:
    """Lengths from ``fixed:1000,200``, ``lognormal:2000,0.9,200`` or ``hist:512x100,2048x20``.

    A histogram states prompt and occurrences; its answers have no tokens.

    >>> parse_lengths("hist:512x3,2048x1").rows
    ((512, 0, 3), (2048, 0, 1))
    """
    kind, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    try:
        if kind == "fixed" and len(parts) == 2:
            return fixed(int(parts[0]), int(parts[1]))
        if kind == "lognormal" and len(parts) == 3:
            return lognormal(float(parts[0]), float(parts[1]), int(parts[2]))
        if kind == "hist" and parts:
            rows = [(int(p), 0, int(n)) for p, n in (part.split("x") for part in parts)]
            for prompt, _answer, count in rows:
                _check(prompt, count)
            return Lengths(tuple(rows))
    except ValueError:
        pass
    raise InputError(
        "is no distribution of lengths",
        field="--lengths",
        value=text,
        hint="fixed:PROMPT,ANSWER, lognormal:MEAN,SIGMA,ANSWER or hist:PROMPTxCOUNT,…",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Values of each axis; every combination is a row.

    Attributes
    ----------
    block_sizes, kv_dtypes
        Tokens in a block, formats of the cache.
    tensor_parallel, pipeline_parallel, decode_context_parallel
        Ranks.
    shares
        Shares of the device's memory.
    max_model_lens
        Longest requests.
    chunks
        Tokens of a batch.
    prefixes
        Tokens that all requests share at their start.
    """

    block_sizes: Sequence[int] = (16, 32, 64, 128, 256, 512)
    kv_dtypes: Sequence[str] = ("bf16",)
    tensor_parallel: Sequence[int] = (1,)
    pipeline_parallel: Sequence[int] = (1,)
    decode_context_parallel: Sequence[int] = (1,)
    shares: Sequence[float] = (0.9,)
    max_model_lens: Sequence[int] = (8192,)
    chunks: Sequence[int] = (8192,)
    prefixes: Sequence[int] = (0,)

    def canonical(self) -> dict[str, Any]:
        """Axes of the core."""
        unknown = [name for name in self.kv_dtypes if name.lower() not in KV_FORMATS]
        if unknown:
            hint = "one of " + ", ".join(KV_FORMATS)
            raise InputError("is not a cache format", field="kv_dtype", value=unknown[0], hint=hint)
        axes = {
            "block_tokens": self.block_sizes,
            "tp": self.tensor_parallel,
            "pp": self.pipeline_parallel,
            "dcp": self.decode_context_parallel,
            "max_len": self.max_model_lens,
            "chunk_tokens": self.chunks,
            "prefix_tokens": self.prefixes,
        }
        for name, values in axes.items():
            least = 0 if name == "prefix_tokens" else 1
            bad = [v for v in values if not least <= v < 1 << 31]
            if bad:
                rule = f"must be at least {least} and below 2^31"
                raise InputError(rule, field=name, value=str(bad[0]))
        require_finite(share=self.shares)
        formats = [KV_FORMATS[name.lower()] for name in self.kv_dtypes]
        return {**{k: list(v) for k, v in axes.items()}, "kv_format": formats,
                "share": list(self.shares)}  # fmt: skip


def sweep_frames(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec,
    axes: Axes,
    lengths: Lengths,
    *,
    flags: Flags | None = None,
    hardware: Hardware | None = None,
) -> KvSweep:
    """Sweep every combination of the axes, some ten thousand rows at a time.

    As `sweep`, in bounded memory: an iterator of frames in the order of the axes, with `rows`, their
    total.
    """
    flags = replace(flags or Flags(), max_model_len=max(axes.max_model_lens, default=1))
    if flags.engine not in ("vllm", "aphrodite"):
        raise InputError("sweeps know vLLM's block pool only", field="engine", value=flags.engine)
    query = canonical_query(model, flags, hardware or Hardware())
    return KvSweep(query, json.dumps(axes.canonical()), lengths.canonical_json())


def sweep(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec,
    axes: Axes,
    lengths: Lengths,
    *,
    flags: Flags | None = None,
    hardware: Hardware | None = None,
) -> pl.DataFrame:
    """Sweep every combination of the axes under vLLM's block pool.

    Parameters
    ----------
    model
        Preset, ``config.json``, folder, parsed config or model.
    axes
        Values of each axis.
    lengths
        Requests that share the pool.
    flags, hardware
        What the axes do not vary.

    Returns
    -------
    polars.DataFrame
        A row per combination. What does not fit is a row with a status.

    Raises
    ------
    InputError
        If a value makes no sense, or the rows would not fit memory.
    """
    import polars as pl

    frames = sweep_frames(model, axes, lengths, flags=flags, hardware=hardware)
    if frames.rows > MAX_ROWS:
        raise InputError(
            f"at most {MAX_ROWS:,} are held in memory",
            field="rows",
            value=f"{frames.rows:,}",
            hint="sweep_frames gives them some at a time; planner kv sweep --output writes them",
        )
    return pl.concat([pl.DataFrame(frame) for frame in frames], rechunk=False)
