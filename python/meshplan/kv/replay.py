"""Replay of a trace through prefix caches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from meshplan._core import kv_groups, kv_replay
from meshplan.errors import InputError, require_finite
from meshplan.kv.traces import Format, readable, trace_options

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import polars as pl

    from meshplan.hf import ModelSpec
    from meshplan.kv.size import Flags

MOONCAKE_TOKENS: Final = 512
"""Tokens that an id of the published Mooncake traces stands for."""

Policy = Literal["lru", "fifo", "naive"]
Ids = Literal["all", "full"]


@dataclass(frozen=True, slots=True)
class Point:
    """Hits of a pool of one capacity.

    Attributes
    ----------
    capacity_blocks
        Blocks of the pool; `None` is a pool without bound.
    hit_blocks, hit_ratio
        Prompt blocks found, and their share of all.
    hit_tokens, token_hit_ratio
        Prompt tokens found, and their share of all.
    requests_with_hit
        Requests that found at least one block.
    evictions
        Blocks evicted.
    oversized_requests
        Requests with more blocks than the pool, which an engine would reject.
    """

    capacity_blocks: int | None
    hit_blocks: int
    hit_ratio: float
    hit_tokens: int
    token_hit_ratio: float
    requests_with_hit: int
    evictions: int
    oversized_requests: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of `replay`.

    Attributes
    ----------
    requests, prompt_tokens, total_blocks, unique_blocks
        Size of the trace.
    max_request_blocks
        Blocks of the largest prompt.
    span_s
        Arrival of the last request after the first, s.
    prompt_waste_ratio
        Share of the prompts' slots that hold no token (all ids only).
    skipped_lines, first_skipped
        Bad lines that were skipped, and what the first of them was.
    odd_ids
        Requests whose ids are not one per block.
    points
        One per capacity.
    curve
        Hit blocks at capacity 1, 2, …, `unique_blocks`; `None` unless asked for.
    block_size
        Tokens in a block.
    groups
        Groups of layers that shared the pool; empty: one that keeps every token.
    """

    requests: int
    prompt_tokens: int
    total_blocks: int
    unique_blocks: int
    max_request_blocks: int
    span_s: float
    prompt_waste_ratio: float
    skipped_lines: int
    first_skipped: str | None
    odd_ids: int
    points: tuple[Point, ...]
    curve: list[int] | None
    block_size: int = 0
    groups: tuple[Mapping[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the curve becomes points as well."""
        data = asdict(self)
        data["points"] = [asdict(point) for point in self.points]
        data["groups"] = [dict(group) for group in self.groups]
        if self.curve is None:
            del data["curve"]
        else:
            total = max(self.total_blocks, 1)
            data["curve"] = [
                {"capacity_blocks": c, "hit_blocks": hits, "hit_ratio": hits / total}
                for c, hits in enumerate(self.curve, start=1)
            ]
        return data

    def curve_frame(self) -> pl.DataFrame:
        """Hit curve as a frame of `capacity_blocks`, `hit_blocks`, `hit_ratio`."""
        import polars as pl

        hits = pl.Series("hit_blocks", self.curve or [], dtype=pl.UInt64)
        return pl.DataFrame(
            {
                "capacity_blocks": pl.int_range(1, len(hits) + 1, dtype=pl.UInt64, eager=True),
                "hit_blocks": hits,
                "hit_ratio": hits / max(self.total_blocks, 1),
            }
        )


def replay(
    trace: str | Path,
    *,
    format: Format | None = None,  # noqa: A002 - the name that the command has
    block_size: int | None = None,
    capacities: Sequence[int | None] = (None,),
    policy: Policy = "lru",
    ids: Ids = "full",
    curve: bool = False,
    sample: float = 1.0,
    trace_block_size: int | None = None,
    skip_bad: int = 0,
    unordered: Literal["reject", "keep"] = "reject",
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec | None = None,
    flags: Flags | None = None,
) -> Replay:
    """Replay a trace through prefix caches, in file order, prompts only.

    Parameters
    ----------
    trace
        File; gzip and Parquet are recognised.
    format
        Layout of the file (default: told from its first line).
    block_size
        Tokens in a KV block (default: 512, or the engine's for a model).
    capacities
        Pools to replay, blocks; `None` is a pool without bound.
    policy
        `lru` evicts as vLLM does (a request frees its tail first), `naive` is LRU with the head
        freed first, `fifo` does not refresh a block on a hit.
    ids
        `full`: whole blocks, and a hit leaves one token to compute, as vLLM does; `all`: every id
        of the trace, the partial last block included.
    curve
        Also give the hits at every capacity (`lru` only), in the same pass.
    sample
        Share of blocks that is looked at (SHARDS); 1 is exact.
    trace_block_size
        Tokens that one id of the trace stands for (default: `block_size`).
    skip_bad
        Bad lines to skip before giving up.
    unordered
        What to do with an arrival before the one above it.
    model, flags
        Model whose groups of layers (full, windowed, chunked, states) share the pool under vLLM, and
        the engine's flags; without a model one group keeps every token. Capacities are then blocks
        of all groups, hits are in blocks of the shortest group. Where ids stand for more or other
        tokens than a block, a block is known by the id that its last token is in, so that a prefix
        shared up to the middle of an id counts up to its start only.

    Returns
    -------
    Replay
        Counts, exact unless sampled.

    Raises
    ------
    InputError
        If a line, an option or the file makes no sense.
    """
    for capacity in capacities:
        if capacity is not None and not 0 <= capacity < 1 << 63:
            rule = "must be at least 0 blocks and below 2^63"
            raise InputError(rule, field="capacity", value=str(capacity))
    require_finite(sample=sample)
    layers, block_size = _layers(model, flags, block_size)
    options = {
        "block_tokens": block_size,
        "capacities": list(capacities),
        "policy": policy,
        "ids": ids,
        "curve": curve,
        "sample": sample,
        "layers": layers,
    }
    with readable(Path(trace), format) as (path, found):
        if trace_block_size is None and model is not None and found == "mooncake":
            trace_block_size = MOONCAKE_TOKENS
        reader = trace_options(
            found,
            block_size,
            trace_block_size=trace_block_size,
            skip_bad=skip_bad,
            unordered=unordered,
            regrid=model is not None,
        )
        data = json.loads(kv_replay(str(path), reader, json.dumps(options)))
    data["points"] = tuple(Point(**point) for point in data["points"])
    groups = tuple(layers["groups"]) if layers else ()
    return Replay(**data, block_size=block_size, groups=groups)


def _layers(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec | None,
    flags: Flags | None,
    block_size: int | None,
) -> tuple[dict[str, Any] | None, int]:
    """Groups of a model under vLLM, if it has several kinds of them, and the shortest block."""
    if model is None:
        return None, 512 if block_size is None else block_size
    from dataclasses import replace

    from meshplan.kv.size import Flags, Hardware, canonical_query

    flags = flags or Flags()
    if flags.engine not in ("vllm", "aphrodite"):
        rule = "only vLLM's prefix cache is known for a model's groups of layers"
        raise InputError(rule, field="engine", value=flags.engine)
    if block_size is not None:
        flags = replace(flags, block_size=block_size)
    query = canonical_query(model, flags, Hardware(available_memory=[0.0]))
    groups: list[dict[str, Any]] = json.loads(kv_groups(query))
    base = min(int(group["block_tokens"]) for group in groups)
    if len(groups) == 1 and groups[0]["kind"] == "full":
        return None, base
    return {"groups": groups, "chunk_tokens": json.loads(query)["max_batched_tokens"]}, base
