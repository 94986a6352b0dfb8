"""Command lines and block pools, held to the engines themselves where their sources import.

The wheels need no GPU for this, only to be importable: unpack ``vllm-0.33.0``, ``sglang-0.5.23`` and
``megatron_core-0.19.2`` and put them on ``PYTHONPATH`` (see conformance/README.md).
"""

from __future__ import annotations

import argparse
import importlib
import random
import shlex
import typing
from typing import Any

import pytest

from export_engines import START, exported, text_of
from export_legal import words
from export_training import written
from reference.hybrid_pool import Pool

pytestmark = [pytest.mark.conformance, pytest.mark.filterwarnings("ignore")]

LAUNCHER = {"$NODE_RANK": "0", "$MASTER_ADDR": "node", "$MASTER_ADDR:20000": "node:20000"}
BLOCK = 16


def engine(name: str) -> Any:
    """Module of an engine, or skip with the reason."""
    reason = f"{name} is not importable: see conformance/README.md"
    return pytest.importorskip(name, reason=reason, exc_type=ImportError)


class Refused(Exception):
    """A parser refused its arguments."""


def parser_of(backend: str) -> argparse.ArgumentParser:
    if backend == "sglang":
        made = argparse.ArgumentParser(allow_abbrev=False)
        engine("sglang.srt.server_args").ServerArgs.add_cli_args(made)
    else:
        cpu_only()
        made = engine("vllm.utils.argparse_utils").FlexibleArgumentParser(allow_abbrev=False)
        engine("vllm.engine.arg_utils").AsyncEngineArgs.add_cli_args(made)
    return strict(made)


def cpu_only() -> None:
    """Let vLLM run without a device."""
    platforms, cpu = engine("vllm.platforms"), engine("vllm.platforms.cpu")
    platforms._current_platform = cpu.CpuPlatform()


def strict(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    def error(message: str) -> typing.NoReturn:
        raise Refused(message)

    made.error = error  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_an_engine_parses_every_export(backend: str) -> None:
    made, count = parser_of(backend), 0
    for files in exported(backend):
        arguments = words(text_of(files, ".sh"), START[backend])
        made.parse_args([LAUNCHER.get(word, word) for word in arguments])
        count += 1
    assert count > 200


def test_megatron_parses_every_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "override", lambda method: method, raising=False)  # Python 3.12
    made = strict(argparse.ArgumentParser(allow_abbrev=False))
    engine("megatron.training.arguments").add_megatron_arguments(made)
    for _, files in written("megatron"):
        block = files["launch.sh"].split("LAYOUT=(\n")[1].split("\n)\n")[0]
        made.parse_args(shlex.split(block))


def prompts(seed: int, count: int) -> list[list[int]]:
    """Prompts that go on from shared prefixes; each ends inside a block."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for _ in range(count):
        base = rng.choice(made[-12:]) if made and rng.random() < 0.7 else []
        kept = base[: rng.randrange(1, len(base) // BLOCK + 1) * BLOCK] if base else []
        new = [rng.randrange(1000) for _ in range(rng.randrange(1, 12) * BLOCK)]
        whole = (kept + new)[: 20 * BLOCK]
        made.append([*whole[: len(whole) // BLOCK * BLOCK], *[1001 + rng.randrange(9)] * 5])
    return made


class Manager:
    """vLLM's own manager of blocks; every block is retained."""

    def __init__(self, groups: list[dict[str, Any]], capacity: int, chunk: int) -> None:
        cpu_only()
        self.utils = engine("vllm.v1.core.kv_cache_utils")
        self.hash = engine("vllm.utils.hashing").sha256
        self.utils.init_none_hash(self.hash)
        kinds = engine("vllm.v1.kv_cache_interface")
        self.states = any(group["kind"] == "state" for group in groups)
        specs = [
            kinds.KVCacheGroupSpec([f"layer {i}"], spec(kinds, group))
            for i, group in enumerate(groups)
        ]
        config = kinds.KVCacheConfig(
            num_blocks=capacity + 1,  # one stands for none
            kv_cache_tensors=[],
            kv_cache_groups=specs,
            prefix_cache_retention_interval=None,
            hash_block_size=BLOCK,
        )
        manager = engine("vllm.v1.core.kv_cache_manager").KVCacheManager
        self.manager = manager(
            config, max_model_len=100_000, scheduler_block_size=BLOCK, hash_block_size=BLOCK,
            max_in_flight_tokens=chunk,
        )  # fmt: skip
        self.chunk, self.count = chunk, 0

    def request(self, tokens: list[int]) -> int:
        """Run a request of one answer token; tokens found."""
        self.count += 1
        limits = engine("vllm.sampling_params").SamplingParams(max_tokens=4)
        hasher = self.utils.get_request_block_hasher(BLOCK, self.hash)
        made = engine("vllm.v1.request").Request(
            str(self.count), list(tokens), limits, None, block_hasher=hasher
        )
        blocks, hit, made.shared_prefix_boundary = self.manager.get_computed_blocks(made)
        computed, found = hit, (hit, blocks)
        last = len(tokens) // BLOCK * BLOCK
        while computed < len(tokens):
            new = min(self.chunk, len(tokens) - computed)
            if self.states and computed < last < computed + new:
                new = last - computed  # as the scheduler cuts where states are kept
            assert self.manager.allocate_slots(made, new, *found) is not None
            self.manager.new_step_starts()
            found = (0, None)
            computed += new
            made.num_computed_tokens = computed
        made.append_output_token_ids([7])
        assert self.manager.allocate_slots(made, 1) is not None
        self.manager.free(made)
        return hit


def spec(kinds: Any, group: dict[str, Any]) -> Any:
    torch = importlib.import_module("torch")
    if group["kind"] == "state":
        return kinds.MambaSpec(
            block_size=BLOCK, shapes=((2, 512), (3, 32)), dtypes=(torch.float32, torch.float32),
            mamba_cache_mode="align",
        )  # fmt: skip
    shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    if group["kind"] == "window":
        return kinds.SlidingWindowSpec(**shape, sliding_window=group["window"])
    return kinds.FullAttentionSpec(**shape)


FULL = {"kind": "full", "block_tokens": BLOCK}
STATE = {"kind": "state", "block_tokens": BLOCK}


def window(keys: int) -> dict[str, Any]:
    return {"kind": "window", "block_tokens": BLOCK, "window": keys}


@pytest.mark.parametrize("chunk", [64, 320])
@pytest.mark.parametrize(
    ("groups", "least"),
    [
        ([FULL, window(33)], 0.98),
        ([window(33), FULL], 0.98),
        ([FULL, window(65), window(65)], 0.98),
        ([FULL, STATE], 0.97),
        ([STATE, FULL], 0.97),
    ],
)
def test_vllm_finds_what_the_pool_finds(
    groups: list[dict[str, Any]], least: float, chunk: int
) -> None:
    """Equal hits in nearly all requests: a partly filled block a group is held by vLLM alone."""
    capacity = 90 if chunk == 64 else 150
    equal = total = 0
    for seed in range(4):
        theirs = Manager(groups, capacity + len(groups), chunk)
        ours = Pool(capacity, groups, chunk)
        for prompt in prompts(seed, 200):
            equal += theirs.request(prompt) == ours.request(prompt)
            total += 1
    assert total == 800
    assert equal >= least * total
