"""Explain the numbers of a start-up log: what each is, and whether the arithmetic gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshplan.kv.gpus import GIB

if TYPE_CHECKING:
    from meshplan.kv.log import EngineLog
    from meshplan.kv.size import Size

ROUNDING_GIB = 0.005
"""Logs print memory with two decimals."""

WEIGHTS_TOLERANCE = 0.03
"""Relative difference of weights that counts as the same: buffers and padded vocabularies."""


@dataclass(frozen=True, slots=True)
class Line:
    """One number of a log.

    Attributes
    ----------
    what
        Name of the number.
    logged, computed
        What the log says and what the arithmetic gives, as text.
    agrees
        Whether they agree within the rounding of the log; `None` where nothing can be said.
    why
        How the number comes about.
    """

    what: str
    logged: str
    computed: str
    agrees: bool | None
    why: str


def explain(log: EngineLog, answer: Size) -> list[Line]:
    """Compare a log with the answer computed from the memory that it reports."""
    parts = [_weights, _memory, _block_size, _padding, _blocks, _tokens, _concurrency, _needed]
    return [line for part in [*parts, _longest] if (line := part(log, answer)) is not None]


def implied_blocks(log: EngineLog, answer: Size) -> int | None:
    """Blocks of a log that states no memory: as logged, or those that make its tokens."""
    blocks, tokens = log.number("blocks"), log.number("tokens")
    if blocks is not None or tokens is None:
        return None if blocks is None else int(blocks)
    slots, block = int(tokens), int(answer.block_tokens)
    if answer.log_lines is None:
        return slots // block
    # The newer line, ⌊blocks · longest request / its blocks⌋, unless only the older one gives this.
    need, length = int(answer.blocks_per_request), answer.max_model_len
    newer = -(-slots * need // length)
    older = slots // block * len(answer.groups)
    old_version = re.match(r"0\.(\d|1\d)(\D|$)", log.text("version") or "") is not None
    reproduced = newer * length // need == slots
    return older if slots % block == 0 and (old_version or not reproduced) else newer


def _weights(log: EngineLog, answer: Size) -> Line | None:
    logged = log.number("weights_gib")
    if logged is None:
        return None
    terms = answer.stages[answer.limiting_stage]["memory"]
    computed = terms["weights_bytes"] / GIB if terms else None
    why = "of one GPU; what they take is not left for the cache"
    if computed is None:
        return Line("weights, GiB", f"{logged:.2f}", "", None, why)
    agrees = abs(computed - logged) <= WEIGHTS_TOLERANCE * logged
    return Line("weights, GiB", f"{logged:.2f}", f"{computed:.2f}", agrees, why)


def _block_size(log: EngineLog, answer: Size) -> Line | None:
    block = log.number("block_size")
    if block is None:
        return None
    why = "smallest multiple of the alignment whose page holds a recurrent state"
    if answer.engine != "vllm":
        why = "as configured"
    computed = answer.block_tokens
    return Line("block size", f"{block:.0f}", str(computed), block == computed, why)


def _padding(log: EngineLog, answer: Size) -> Line | None:
    logged = log.number("state_padding_percent")
    if logged is None:
        return None
    computed = 100 * answer.state_padding_ratio
    why = "page of a block over the state that it holds, less one"
    agrees = abs(computed - logged) <= 0.006
    return Line("padding of states, %", f"{logged:.2f}", f"{computed:.2f}", agrees, why)


def _needed(log: EngineLog, answer: Size) -> Line | None:
    logged = log.number("needed_gib")
    if logged is None:
        return None
    computed = answer.request_bytes / GIB
    why = f"one request of {answer.max_model_len:,} tokens, which start-up asks for"
    agrees = abs(computed - logged) <= ROUNDING_GIB + 1e-9
    return Line("needed, GiB", f"{logged:.2f}", f"{computed:.2f}", agrees, why)


def _longest(log: EngineLog, answer: Size) -> Line | None:
    logged = log.number("estimated_max_len")
    if logged is None:
        return None
    computed = answer.max_len_that_fits
    slack = (_slack(answer) + 1) * answer.block_tokens
    why = "longest request whose blocks the memory holds"
    agrees = abs(computed - logged) <= slack
    return Line("estimated longest request", f"{logged:,.0f}", f"{computed:,}", agrees, why)


def _memory(log: EngineLog, answer: Size) -> Line | None:
    memories = log.available_bytes
    if memories is None:
        return None
    shown = ", ".join(f"{m / GIB:.2f}" for m in memories)
    why = "one value per worker; the pool is the smallest worker's"
    if answer.engine == "vllm":
        why = "total × gpu_memory_utilization less weights, activations, context; " + why
    return Line("available memory, GiB", shown, "", None, why)


def _slack(answer: Size) -> int:
    """Blocks within the rounding of the logged memory."""
    return int(ROUNDING_GIB * GIB // max(answer.bytes_per_block, 1)) + 1


def _blocks(log: EngineLog, answer: Size) -> Line | None:
    blocks = log.number("blocks")
    if blocks is None:
        return None
    agrees = abs(blocks - answer.num_blocks) <= _slack(answer)
    why = f"⌊available / {answer.bytes_per_block:,} bytes of a block⌋"
    return Line("blocks", f"{blocks:,.0f}", f"{answer.num_blocks:,}", agrees, why)


def _tokens(log: EngineLog, answer: Size) -> Line | None:
    tokens = log.number("tokens")
    if tokens is None:
        return None
    slack = _slack(answer)
    candidates = {"this version's line": answer.tokens}
    if answer.log_lines is not None:
        old, new = (
            answer.log_lines["blocks_over_groups"],
            answer.log_lines["concurrency_times_length"],
        )
        candidates = {
            "⌊blocks / groups⌋ × shortest block (up to 0.19; no capacity for hybrids)": old,
            "concurrency × longest request (later; changes with it)": new,
        }
    per_block = max(answer.tokens / max(answer.num_blocks, 1), answer.block_tokens)
    nearest = min(candidates, key=lambda why: abs(candidates[why] - tokens))
    agrees = abs(candidates[nearest] - tokens) <= (slack + 1) * per_block
    return Line("tokens", f"{tokens:,.0f}", f"{candidates[nearest]:,}", agrees, nearest)


def _concurrency(log: EngineLog, answer: Size) -> Line | None:
    logged = log.number("concurrency")
    if logged is None:
        return None
    slack = 0.005 + _slack(answer) / answer.blocks_per_request
    agrees = abs(logged - answer.max_concurrency) <= slack
    why = f"blocks / {answer.blocks_per_request:,} blocks of a request of {answer.max_model_len:,}"
    return Line("concurrency", f"{logged:.2f}", f"{answer.max_concurrency:.2f}", agrees, why)
