"""Every flag that an export may write is one of its framework's, with a legal value."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from export_legal import TABLE, faults_of_flags, faults_of_options, pairs, words
from meshplan.export import NotExpressible
from meshplan.export.serving import TESTED_WITH, Engine, export

if TYPE_CHECKING:
    from collections.abc import Iterator

START = {"vllm": "vllm serve m", "sglang": "python -m sglang.launch_server"}


def layouts() -> Iterator[dict[str, Any]]:
    """Aggregated and split engines, experts and none, all axes of the search."""
    splits = [(1, 1), (2, 1), (8, 8), (8, 2), (16, 16), (32, 1), (32, 4)]
    for (tp, dp), ep, pp in itertools.product(splits, (1, 2, 8, 16, 32), (1, 2, 4)):
        if ep > tp:
            continue
        for copies, drafts, dcp in itertools.product((0, 32), (0, 1, 3), (1, 2)):
            if (copies and ep == 1) or dcp > tp // dp:
                continue
            yield {"tp": tp, "attention_dp": dp, "ep": ep, "moe_tp": tp // ep, "pp": pp,
                   "redundant_experts": copies, "spec_tokens": drafts, "dcp": dcp,
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


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_every_flag_of_an_engine_is_its_own(backend: str) -> None:
    seen: set[str] = set()
    count = 0
    for files in exported(backend):
        arguments = words(text_of(files, ".sh"), START[backend])
        assert list(faults_of_flags(backend, arguments)) == []
        seen |= {flag for flag, _ in pairs(arguments)}
        count += 1
    assert count > 200
    assert seen == set(TABLE[backend]["flags"])


def test_every_option_of_tensorrt_llm_is_its_own() -> None:
    seen: set[str] = set()
    count = 0
    for files in exported("trtllm"):
        arguments = words(text_of(files, ".sh"), "trtllm-serve m")
        assert list(faults_of_flags("trtllm", arguments)) == []
        tree = yaml.safe_load(text_of(files, ".yaml"))
        assert faults_of_options("trtllm", tree) == []
        seen |= set(tree)
        count += 1
    assert count > 100
    assert seen == set(TABLE["trtllm"]["options"])


@pytest.mark.parametrize("backend", sorted(TESTED_WITH))
def test_the_table_is_of_the_release_that_is_written(backend: str) -> None:
    assert TABLE[backend]["release"] == TESTED_WITH[backend]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--tensor-parallel", "2"], "is unknown"),
        (["--tensor-parallel-size", "two"], "must be of type int"),
        (["--tensor-parallel-size", "0"], "out of range"),
        (["--tensor-parallel-size"], "takes one value"),
        (["--enable-eplb", "1"], "takes no value"),
        (["--enable-eplb", "--enable-eplb"], "said twice"),
        (["--kv-cache-dtype", "bf16"], "must be one of"),
        (["--node-rank", "0"], "a variable"),
        (["--speculative-config", '{"method": "mpt"}'], "must be one of"),
        (["--kv-transfer-config", '{"role": "kv_both"}'], "is unknown"),
    ],
)
def test_a_wrong_flag_is_found(arguments: list[str], fault: str) -> None:
    found = list(faults_of_flags("vllm", arguments))
    assert len(found) == 1 and fault in found[0]


def test_a_phrase_is_no_number_of_slots() -> None:
    tree = {"moe_config": {"load_balancer": {"num_slots": "experts + 32"}}}
    assert len(faults_of_options("trtllm", tree)) == 1
