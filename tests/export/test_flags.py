"""Every flag that an export may write is one of its framework's, with a legal value."""

from __future__ import annotations

import pytest
import yaml

from export_engines import START, exported, text_of
from export_legal import TABLE, faults_of_flags, faults_of_options, pairs, words
from meshplan.export.serving import TESTED_WITH


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
