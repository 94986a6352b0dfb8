"""Read what an engine's start-up log says about its KV cache."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

from meshplan.errors import InputError
from meshplan.kv.gpus import GIB

MAX_BYTES: Final = 64 << 20
"""Largest log that is read."""

_NUMBER = r"([\d][\d,]*(?:\.\d+)?)"
_GIB = _NUMBER + r"\s*Gi?B"

FACTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("vllm", "weights_gib", r"[Mm]odel (?:weights|loading) took " + _GIB),
    ("vllm", "available_gib", r"Available KV cache memory: (-?[\d.]+)\s*Gi?B"),
    ("vllm", "available_gib", r"memory reserved for KV Cache is (-?[\d.]+)\s*Gi?B"),
    ("vllm", "available_gib", r"available KV cache memory \((-?[\d.]+)\s*Gi?B\)"),
    ("vllm", "needed_gib", r"\(?" + _GIB + r"\)? KV cache is needed"),
    ("vllm", "estimated_max_len", r"estimated maximum model length is " + _NUMBER),
    ("vllm", "tokens", r"GPU KV cache size: " + _NUMBER + r" tokens"),
    ("vllm", "blocks", r"# (?:GPU|CUDA|cuda|gpu|hpu|HPU) blocks: " + _NUMBER),
    ("vllm", "concurrency", r"Maximum concurrency for [\d,]+ tokens per request: " + _NUMBER),
    ("vllm", "max_len", r"Maximum concurrency for " + _NUMBER + r" tokens per request"),
    ("vllm", "max_len", r"max_seq_len[=:] ?" + _NUMBER),
    ("vllm", "block_size", r"[Ss]etting attention block size to " + _NUMBER + r" tokens"),
    ("vllm", "state_padding_percent", r"[Pp]adding mamba page size by " + _NUMBER + "%"),
    ("vllm", "tp", r"tensor_parallel_size[=:] ?(\d+)"),
    ("vllm", "pp", r"pipeline_parallel_size[=:] ?(\d+)"),
    ("vllm", "version", r"\(v?(\d+\.\d+[\w.]*)\) with config"),
    ("vllm", "version", r"vLLM API server version v?(\d+\.\d+[\w.]*)"),
    ("vllm", "kv_dtype", r"kv_cache_dtype[=:] ?'?(\w+)"),
    ("vllm", "model", r"with config: model='([^']+)'"),
    ("sglang", "tokens", r"KV Cache is allocated\.[^#]*#tokens: " + _NUMBER),
    ("sglang", "tokens", r"max_total_num_tokens=" + _NUMBER),
    ("sglang", "available_gib", r"KV [Ss]ize: " + _GIB),
    ("sglang", "keys_gib", r"\bK size: " + _GIB),
    ("sglang", "values_gib", r"\bV size: " + _GIB),
    ("sglang", "weights_gib", r"Load weight end\.[^\n]*mem usage=" + _GIB),
    ("sglang", "max_len", r"context_len=" + _NUMBER),
    ("sglang", "tp", r"tp_size=(\d+)"),
    ("sglang", "model", r"model_path='([^']+)'"),
    ("trtllm", "available_gib", r"paged kv cache: total: [\d.]+ GiB, available: " + _GIB),
    ("trtllm", "blocks", r"[Nn]umber of blocks in KV cache primary pool: " + _NUMBER),
    ("trtllm", "tokens", r"for max tokens in paged KV cache \(" + _NUMBER + r"\)"),
    ("trtllm", "block_size", r"[Tt]okens per block:? " + _NUMBER),
)
"""Engine, fact, pattern. The first group of a pattern is the value."""

_TEXTS = frozenset({"version", "model", "kv_dtype"})


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What a log says.

    Attributes
    ----------
    engine
        Engine that wrote it.
    facts
        Values by fact, one per worker that printed it, in the order of the log.
    """

    engine: str
    facts: dict[str, list[float | str]] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Smallest number that any worker printed: the pool is the smallest worker's."""
        return min(self._numbers(name), default=None)

    def text(self, name: str) -> str | None:
        """First text of a fact."""
        return next((v for v in self.facts.get(name, []) if isinstance(v, str)), None)

    @property
    def available_bytes(self) -> list[float] | None:
        """Memory for the cache, one value per worker that reported it, bytes.

        SGLang states keys and values apart; a latent cache has no values.
        """
        found = self._numbers("available_gib")
        if not found:
            keys, values = self._numbers("keys_gib"), self._numbers("values_gib")
            found = [k + v for k, v in zip_longest(keys, values, fillvalue=0.0)]
        return [v * GIB for v in found] or None

    def _numbers(self, name: str) -> list[float]:
        return [value for value in self.facts.get(name, []) if isinstance(value, float)]


def read_log(path: Path) -> EngineLog:
    """Read a start-up log of vLLM, SGLang or TensorRT-LLM.

    Parameters
    ----------
    path
        Log file.

    Raises
    ------
    InputError
        If the file cannot be read or says nothing about a KV cache.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path)) from None
    found = parse_log(text)
    if not found.facts:
        raise InputError(
            "says nothing about a KV cache: expected lines of vLLM, SGLang or TensorRT-LLM",
            where=str(path),
            hint="for vLLM look for 'GPU KV cache size' or '# GPU blocks'",
        )
    return found


def parse_log(text: str) -> EngineLog:
    """Read the facts out of a log's text.

    >>> log = parse_log("INFO 05-01 Available KV cache memory: 8.11 GiB, and more")
    >>> log.engine, log.number("available_gib")
    ('vllm', 8.11)
    """
    by_engine: dict[str, dict[str, list[float | str]]] = {}
    for engine, fact, pattern in FACTS:
        for value in re.findall(pattern, text):
            facts = by_engine.setdefault(engine, {})
            read = value if fact in _TEXTS else float(value.replace(",", ""))
            facts.setdefault(fact, []).append(read)
    if not by_engine:
        return EngineLog("vllm")
    engine = max(by_engine, key=lambda name: len(by_engine[name]))
    return EngineLog(engine, by_engine[engine])
