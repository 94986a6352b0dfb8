"""Explain the numbers of a start-up log: what each is, and whether the arithmetic gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshplan.kv.gpus import GIB

if TYPE_CHECKING:
    from meshplan.kv.log import EngineLog
    from meshplan.kv.size import Size

ROUNDING_GIB = 0.005
"""Logs print memory with two decimals."""


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
    lines = [line for line in (_memory(log, answer), _blocks(log, answer)) if line]
    block = log.number("block_size")
    if block is not None:
        why = "smallest multiple of the alignment whose page holds a recurrent state"
        computed = answer.block_tokens
        lines.append(Line("block size", f"{block:.0f}", str(computed), block == computed, why))
    lines += [line for line in (_tokens(log, answer), _concurrency(log, answer)) if line]
    return lines


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
