"""Scheduling of an engine: the rules of its backend with the numbers of its flags."""

from __future__ import annotations

from dataclasses import dataclass

from .side import Side

DP_WAIT_STEPS = 60
"""Decode steps for which attention replicas of TensorRT-LLM wait for each other."""


@dataclass
class Policy:
    """What a scheduler goes by."""

    backend: str
    reserve: str
    """What must be free to admit: `prompt`, `whole` request or what is `expected`."""
    max_batched_tokens: int
    max_batch: int
    kv_tokens: int
    block_tokens: int
    recv_interval: int
    decode_share: float
    latency_s: float
    token_latency_s: float
    tokens_per_step: float
    step_tokens: int
    attention_dp: int
    """Waiting requests with which replicas that wait for each other begin."""
    dp_wait_steps: int
    host_s: float = 0.0

    @property
    def waste(self) -> float:
        """Tokens lost to the last, partly filled block."""
        return (self.block_tokens - 1) / 2


def of(side: Side, kv_tokens: float, acceptance: float | None) -> Policy:
    """Policy of an engine; `acceptance` as the load states it."""
    engine, software = side.engine, side.software
    p = software["acceptance"] if acceptance is None else acceptance
    drafts = engine["spec_tokens"]
    latency_s = software["disaggregated_ttft_s" if side.role != "both" else "ttft_s"]
    latency_s += software["speculative_ttft_s"] if drafts else 0.0
    reserve = {"vllm": "prompt", "trtllm": "whole", "sglang": "expected"}[side.backend]
    return Policy(
        backend=side.backend,
        reserve=reserve,
        max_batched_tokens=engine["max_batched_tokens"],
        max_batch=engine["max_batch"],
        kv_tokens=int(max(kv_tokens, 0)),
        block_tokens=engine["block_tokens"],
        recv_interval=engine["recv_interval"],
        decode_share=software["mixed_decode_share"],
        latency_s=latency_s,
        token_latency_s=software["ttft_per_token_s"],
        # The first i drafts are all accepted with probability pⁱ.
        tokens_per_step=sum(p**i for i in range(drafts + 1)),
        step_tokens=1 + drafts,
        attention_dp=arrivals_for_each(engine["attention_dp"]),
        dp_wait_steps=DP_WAIT_STEPS if side.backend == "trtllm" else 0,
    )


def arrivals_for_each(ranks: int) -> int:
    """Arrivals until each rank has one: n·(1 + 1/2 + … + 1/n), as cards of an album."""
    return round(sum(ranks / i for i in range(1, ranks + 1)))
