"""Engines to export: layouts, roles and formats, as the search proposes them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from meshplan.export import NotExpressible
from meshplan.export.serving import Engine, export

if TYPE_CHECKING:
    from collections.abc import Iterator

START = {"vllm": "vllm serve m", "sglang": "python -m sglang.launch_server"}


def layouts() -> Iterator[dict[str, Any]]:
    """Aggregated and split engines, experts and none, all axes of the search."""
    splits = [(1, 1), (2, 1), (8, 8), (8, 2), (16, 16), (32, 1), (32, 4)]
    for (tp, dp), ep, pp in itertools.product(splits, (1, 2, 8, 16, 32), (1, 2, 4)):
        if ep > tp:
            continue
        axes = itertools.product((0, 32), (0, 1, 3), (1, 2), (1, 2))
        for copies, drafts, dcp, pcp in axes:
            if (copies and ep == 1) or dcp * pcp > tp // dp:
                continue
            yield {"tp": tp, "attention_dp": dp, "ep": ep, "moe_tp": tp // ep, "pp": pp,
                   "redundant_experts": copies, "spec_tokens": drafts, "dcp": dcp, "pcp": pcp,
                   "experts": 256 if ep > 1 or dp > 1 else 0}  # fmt: skip


def engines() -> Iterator[Engine]:
    """Sample of layouts with what else may vary, each value many times."""
    roles = itertools.cycle(("serve", "prefill", "decode"))
    caches = itertools.cycle(("bf16", "fp8"))
    blocks = itertools.cycle((1, 16, 32, 64, 128))
    polls = itertools.cycle((1, 10, 30, 1))
    shares = itertools.cycle((0.8, 0.9, 0.925, 0.88, 0.9, 0.95, 0.85))
    for layout in layouts():
        yield Engine(
            role=next(roles), workers=1, max_batch=256, max_batched_tokens=8192,
            block_tokens=next(blocks), recv_interval=next(polls), memory_share=next(shares),
            kv_dtype=next(caches), max_len=5120, model="m", gpus_per_node=8, **layout,
        )  # fmt: skip


def exported(backend: str) -> Iterator[dict[str, str]]:
    for engine in engines():
        try:
            yield dict(export(backend, [engine]).files)
        except NotExpressible:
            continue


def text_of(files: dict[str, str], ending: str) -> str:
    return next(text for name, text in files.items() if name.endswith(ending))
