"""GEMM, attention and copy times of one device."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from meshplan.measure.clock import median_s

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]

GEMM_SIDES = {"cuda": (128, 512, 1024, 4096, 8192, 16384), "cpu": (64, 128, 256)}
"""m, n and k of square and oblong GEMMs."""

SEQUENCES = {"cuda": (512, 2048, 8192), "cpu": (64, 128)}
"""Tokens of a prefill, and keys of a decode step."""

HEADS = ((32, 8, 128), (8, 1, 128), (16, 16, 64))
"""Query heads, KV heads, width."""

BATCHES = {"cuda": (1, 8, 64), "cpu": (1, 2)}
"""Sequences."""

COPY_BYTES = {"cuda": (1 << 20, 1 << 26, 1 << 30), "cpu": (1 << 16, 1 << 20)}
"""Sizes of copies."""


def gemms(device: str, formats: tuple[str, ...], each_s: float) -> Iterator[Row]:
    """Rows ``dtype,m,n,k,latency_us`` of plain multiplications."""
    import torch

    sides = GEMM_SIDES[device]
    for name in formats:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
        for m, n, k in itertools.product(sides, sides[1:], sides[1:]):
            a = torch.randn(m, k, device=device, dtype=dtype)
            b = torch.randn(n, k, device=device, dtype=dtype)
            time = median_s(partial(torch.matmul, a, b.t()), device, each_s)
            yield {"dtype": name, "m": m, "n": n, "k": k, "latency_us": time * 1e6}


def attentions(device: str, each_s: float) -> Iterator[Row]:
    """Rows of causal prefill and of decode through ``scaled_dot_product_attention``."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    common = {
        "fw": f"torch/{torch.__version__.split('+')[0]}",
        "kernel": "flash_attention",
        "attn_dtype": "bfloat16",
        "kv_dtype": "bfloat16",
    }
    cases = itertools.product(HEADS, BATCHES[device], SEQUENCES[device], (False, True))
    for (heads, kv_heads, dim), batch, tokens, decode in cases:
        queries = 1 if decode else tokens
        q, k, v = (
            torch.randn(batch, h, s, dim, device=device, dtype=torch.bfloat16)
            for h, s in ((heads, queries), (kv_heads, tokens), (kv_heads, tokens))
        )
        group = heads // kv_heads
        if group > 1:  # a view where the kernel can, a copy where it cannot: not part of the time
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        time = median_s(partial(attend, q, k, v, is_causal=not decode), device, each_s)
        yield common | {
            "phase": "generation" if decode else "context",
            "batch": batch,
            "isl": queries,
            "step": tokens - 1 if decode else 0,
            "num_heads": heads,
            "num_kv_heads": heads if group > 1 else kv_heads,
            "head_dim": dim,
            "latency_us": time * 1e6,
        }


def copies(device: str, each_s: float) -> Iterator[Row]:
    """Rows ``bytes,latency_us,bytes_per_s`` of device-to-device copies (read and written once)."""
    import torch

    for size in COPY_BYTES[device]:
        a = torch.empty(size, device=device, dtype=torch.uint8)
        b = torch.empty_like(a)
        time = median_s(partial(b.copy_, a), device, each_s)
        yield {"bytes": size, "latency_us": time * 1e6, "bytes_per_s": 2 * size / time}
