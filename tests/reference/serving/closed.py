"""Means of a steady engine: rounds of substitution between time, rate and running requests.

decode       T_d = S·D + prompts that come meanwhile · what a pass adds to a step
first token  F   = outside + look + wait + pass + the decode step beside it
running      n   = clients · T_d / (F + T_d)            Little's law
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import decode, prefill
from .policy import Policy
from .side import Side

BURST = 0.1
"""Share of a closed loop's requests that start together."""
ROUNDS = 3


@dataclass
class Mean:
    """Mean lengths, and who sends: so many clients, or a rate with a variation of its gaps."""

    input: float
    hit: float
    output: float
    clients: float | None = None
    rate: float = 0.0
    cv: float = 1.0

    @property
    def new(self) -> float:
        return max(self.input - self.hit, 1.0)

    @property
    def context(self) -> float:
        return self.input + self.output / 2


Answer = dict[str, float | bool]


def decode_s(side: Side, policy: Policy, running: float, mean: Mean) -> float:
    step = decode.terms(side, max(running, 1.0), mean.context)
    return sum(step.values()) + policy.host_s


def prompt_s(side: Side, policy: Policy, mean: Mean) -> float:
    """All passes of one mean prompt; equal chunks where it is longer than the budget."""
    chunks = max(math.ceil(mean.new / policy.max_batched_tokens), 1)
    if policy.backend == "trtllm":
        chunks = 1
    chunk = mean.new / chunks
    before = mean.hit + (mean.new - chunk) / 2
    return chunks * (prefill.time_s(side, chunk, 1, before) + policy.host_s)


def held_tokens(policy: Policy, mean: Mean) -> float:
    """Tokens of the pool that a running request holds."""
    answer = mean.output if policy.reserve == "whole" else mean.output / 2
    return policy.waste + mean.input + answer


def most_running(policy: Policy, mean: Mean) -> float:
    return min(max(policy.kv_tokens / held_tokens(policy, mean), 1.0), policy.max_batch)


def steady(side: Side, policy: Policy, mean: Mean) -> Answer:
    """Means of one engine that prefills and decodes."""
    found = closed(side, policy, mean) if mean.clients else opened(side, policy, mean)
    held = found["running"] * held_tokens(policy, mean)
    return found | {"kv_ratio": min(held / policy.kv_tokens, 1.0)}


def steps_of(policy: Policy, mean: Mean) -> float:
    return max(mean.output - 1, 0.0) / policy.tokens_per_step


def outside_s(policy: Policy, mean: Mean) -> float:
    return policy.latency_s + policy.token_latency_s * mean.input


def look_s(policy: Policy, step_s: float) -> float:
    """Until the engine looks at new requests: half of the time between two looks."""
    return step_s * (policy.recv_interval if policy.backend == "sglang" else 1) / 2


def beside(policy: Policy, pass_s: float, step_s: float) -> tuple[float, float]:
    """What decoding adds to a pass, and a pass to the steps of those that decode."""
    if policy.backend == "sglang":
        return 0.0, pass_s
    share = policy.decode_share * step_s
    return share, max(pass_s + share - step_s, 0.0)


def queue_wait(load: float, pass_s: float, cv: float = 1.0) -> float:
    """Wait for the passes of others, M/D/1 (Kingman for other variations)."""
    return load * pass_s * cv**2 / (2 * (1 - load))


def closed(side: Side, policy: Policy, mean: Mean) -> Answer:
    assert mean.clients
    pass_s, steps, most = (
        prompt_s(side, policy, mean),
        steps_of(policy, mean),
        most_running(policy, mean),
    )
    running, first = min(mean.clients, most), 0.0
    decoding = 0.0
    for _ in range(ROUNDS):
        step = decode_s(side, policy, running, mean)
        others = (running - 1) / running
        share, stall = beside(policy, pass_s, step if running > 1 else 0.0)
        alone = steps * step
        stalls = (running - 1) * stall
        whole = first + alone + stalls
        decoding = alone + stalls * (1 - first / whole)
        load = min(running * pass_s / whole, 0.95)
        outside = outside_s(policy, mean)
        if outside and running > 1:
            outside += look_s(policy, step)
        first = outside + others * queue_wait(load, pass_s) + pass_s + others * share
        running = min(max(mean.clients * decoding / (first + decoding), 1.0), most)
    admitted = min(mean.clients, most)
    rate = admitted / (first + decoding)
    queue = mean.clients / rate - first - decoding
    burst = burst_s(side, policy, mean, admitted, pass_s)
    return {
        "ttft_s": queue + BURST * burst + (1 - BURST) * first,
        "tpot_s": decoding / (mean.output - 1) if steps else 0.0,
        "requests_per_s": rate,
        "running": running,
        "queue_s": max(queue, 0.0),
        "saturated": mean.clients > most,
    }


def burst_s(side: Side, policy: Policy, mean: Mean, clients: float, pass_s: float) -> float:
    """First tokens of prompts that arrive together, in full passes one after the other."""
    each = min(max(policy.max_batched_tokens / mean.new, 1.0), clients)
    if policy.backend == "trtllm":
        each = math.floor(each)
    if each > 1:
        pass_s = prefill.time_s(side, mean.new * each, each, mean.hit) + policy.host_s
    return outside_s(policy, mean) + pass_s * (clients / each + 1) / 2


def opened(side: Side, policy: Policy, mean: Mean) -> Answer:
    pass_s, steps, most = (
        prompt_s(side, policy, mean),
        steps_of(policy, mean),
        most_running(policy, mean),
    )
    load, running = mean.rate * pass_s, 1.0
    decoding = step = 0.0
    stable = True
    for _ in range(4 * ROUNDS):
        step = decode_s(side, policy, running, mean)
        stalled = mean.rate * beside(policy, pass_s, step)[1]
        decoding = steps * step / (1 - min(stalled, 0.98))
        wanted = mean.rate * decoding
        stable = stalled < 0.98 and load < 0.98 and wanted <= most
        running = min(wanted, most)
    busy = min(mean.rate * (decoding + pass_s), 1.0)
    share = beside(policy, pass_s, step)[0] * busy
    before = outside_s(policy, mean) + busy * look_s(policy, step)
    before += queue_wait(min(load, 0.98), pass_s, mean.cv)
    return {
        "ttft_s": before + pass_s + share,
        "tpot_s": decoding / (mean.output - 1) if steps else 0.0,
        "requests_per_s": mean.rate,
        "running": running,
        "queue_s": before,
        "saturated": not stable,
    }


@dataclass
class Split:
    """Prefill and decode on engines of their own."""

    prefill: tuple[Side, Policy, int]
    decode: tuple[Side, Policy, int]
    transfer_s: float
    """Until a mean request's cache has moved."""


def split(s: Split, mean: Mean) -> tuple[Answer, float]:
    """Means of the whole deployment, and the share of time that prefill workers compute."""
    (sender, sending, senders), (taker, taking, takers) = s.prefill, s.decode

    def pass_s(prompts: float) -> float:
        time = prefill.time_s(sender, mean.new * prompts, prompts, mean.hit)
        return time + sending.host_s

    together = max(math.floor(sending.max_batched_tokens / mean.new), 1)
    alone = pass_s(1)
    best = min(pass_s(together) / together, alone)
    outside = outside_s(taking, mean) + s.transfer_s
    slots = most_running(taking, mean) * takers
    clients = mean.clients
    rate = clients / (outside + alone) if clients else mean.rate
    running = step = 0.0
    found: Answer = {}
    for round_ in range(4 * ROUNDS):
        load = min(rate * alone / senders, 0.95)
        first = outside + queue_wait(load, alone) + alone + step / 2
        step = decode_s(taker, taking, min(max(running, 1.0), slots) / takers, mean)
        decoding = steps_of(taking, mean) * step
        most = min(senders / best, slots / decoding if decoding else math.inf)
        asked = clients / (first + decoding) if clients else mean.rate
        rate = min(asked, most) if round_ == 0 else (rate + min(asked, most)) / 2
        saturated = asked > 0.95 * most if clients else asked > most
        if clients:
            first = max(first, clients / rate - decoding)
            burst = outside + clients / senders * best / 2
            first = BURST * max(burst, first) + (1 - BURST) * first
        running = rate * decoding
        found = {
            "ttft_s": first,
            "tpot_s": decoding / max(mean.output - 1, 1.0),
            "requests_per_s": rate,
            "running": running,
            "queue_s": max(first - alone - s.transfer_s, 0.0),
            "saturated": saturated,
        }
    return found | {"kv_ratio": 0.0}, min(rate * best / senders, 1.0)
