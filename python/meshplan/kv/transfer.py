"""Moving a request's cache from a prefill to a decode instance."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan._core import kv_transfer
from meshplan.errors import InputError, require_finite
from meshplan.kv.size import KV_FORMATS

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from meshplan.hf import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The two sides and what joins them.

    Attributes
    ----------
    prefill_tp, decode_tp
        Tensor-parallel ranks of the two sides.
    prefill_links, decode_links
        NICs that the ranks of each side use.
    link_bytes_per_s, latency_s
        One link, and the time until the first byte moves.
    prefill_s, layer_groups
        Prefill time of the request, and groups of layers that are moved as they are done (1: the
        whole cache at the end).
    pulls
        Requests pulled at once over the same links.
    duplicate
        Each decode rank pulls its own copy, also of heads that other ranks pull.
    """

    prefill_tp: int = 1
    decode_tp: int = 1
    prefill_links: int = 1
    decode_links: int = 1
    link_bytes_per_s: float = 50e9
    latency_s: float = 0.0
    prefill_s: float = 0.0
    layer_groups: int = 1
    pulls: int = 1
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """Answer of `transfer`.

    Attributes
    ----------
    bytes, state_bytes
        What the decode side lacks, and the recurrent states in it.
    wire_bytes, unique_slices
        Bytes that cross the links, and different parts that decode ranks need.
    busiest_link_bytes
        Bytes over the busiest link.
    whole_s, exposed_s
        Time of the whole cache, and what is left of it behind the prefill.
    max_requests_per_s
        Largest rate of such requests that the links carry.
    """

    bytes: float
    state_bytes: float
    wire_bytes: float
    unique_slices: int
    busiest_link_bytes: float
    whole_s: float
    exposed_s: float
    max_requests_per_s: float


def transfer(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec,
    prompt: int,
    route: Route,
    *,
    cached: int = 0,
    kv_dtype: str = "auto",
) -> Transfer:
    """Bytes and time of moving one request's cache.

    Parameters
    ----------
    model
        Preset, ``config.json``, folder, parsed config or model.
    prompt, cached
        Tokens of the prompt, and of it those that the decode side has.
    route
        The two sides and what joins them.
    kv_dtype
        Format of the cache.

    Raises
    ------
    InputError
        If a value makes no sense.
    """
    from meshplan.hf import load_model

    kv_format = KV_FORMATS.get(kv_dtype.strip().lower())
    if kv_format is None:
        hint = "one of " + ", ".join(KV_FORMATS)
        raise InputError("is not a cache format", field="kv_dtype", value=kv_dtype, hint=hint)
    if not (route.link_bytes_per_s > 0 and math.isfinite(route.link_bytes_per_s)):
        given = f"{route.link_bytes_per_s:g}"
        raise InputError("must be above 0", field="link", value=given, hint="400 Gb/s, or 50 GB/s")
    require_finite(latency=route.latency_s, prefill_time=route.prefill_s)
    query = {
        "kv_format": kv_format,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "prefill_tp": route.prefill_tp,
        "decode_tp": route.decode_tp,
        "prefill_links": route.prefill_links,
        "decode_links": route.decode_links,
        "link_bytes_per_s": route.link_bytes_per_s,
        "latency_s": route.latency_s,
        "prefill_s": route.prefill_s,
        "layer_groups": route.layer_groups,
        "pulls": route.pulls,
        "duplicate": route.duplicate,
    }
    for name, value in query.items():
        if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < 1 << 40:
            raise InputError("must be at least 0 and below 2^40", field=name, value=str(value))
    text = json.dumps(query)[:-1] + ', "model": ' + load_model(model).canonical_json() + "}"
    return Transfer(**json.loads(kv_transfer(text)))
