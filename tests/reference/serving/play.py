"""The whole replay: who sends, to which engine, and what all of it means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import decode, prefill
from .estimate import Pools, link, pools
from .outcome import Share, closed_outcome, open_outcome
from .policy import Policy
from .replay import Engine, Request, closed, opened
from .side import Json, Side
from .split import Split

PER_CLIENT = 10
Lengths = list[dict[str, Any]]
"""Requests in order of sending: `send_s`, `input_tokens`, `hit_tokens`, `output_tokens`."""


@dataclass
class Played:
    """Requests, and the outcome."""

    requests: list[Request]
    outcome: dict[str, Any]
    close_call: bool
    """Something hung on the last digit of a time, which the order of sums decides."""


def close(engines: list[Engine]) -> bool:
    return any(e.close_call for e in engines)


def engine_of(side: Side, rules: Policy) -> Engine:
    """An engine that asks the reference for every step."""

    @cache
    def decode_s(n: int, context: float) -> float:
        return sum(decode.terms(side, n, context).values()) + rules.host_s

    @cache
    def prefill_s(tokens: int, prompts: int, past: float) -> float:
        return prefill.time_s(side, tokens, prompts, past) + rules.host_s

    return Engine(rules, decode_s, prefill_s, decode_only=side.role == "decode")


def play(job: Json, lengths: Lengths) -> Played:
    """Plays requests of known lengths; those of a closed loop find their own times."""
    p, arrivals = pools(job), job["load"]["arrivals"]
    requests = [
        Request(i, r["input_tokens"], r["hit_tokens"], r["output_tokens"], send_s=r["send_s"])
        for i, r in enumerate(lengths)
    ]
    clients = arrivals["concurrency"] if arrivals["kind"] == "closed" else None
    if p.prefill:
        return played_apart(job, p, requests, clients)
    if clients is None:
        engines = [engine_of(p.decode, p.policy) for _ in range(p.workers)]
        opened(engines, requests)
        return Played(requests, open_outcome(requests, engines), close(engines))
    return played_together(job, p, requests, clients)


def played_apart(job: Json, p: Pools, requests: list[Request], clients: int | None) -> Played:
    assert p.prefill
    engines = [engine_of(p.decode, p.policy) for _ in range(p.workers)]
    prefills = engine_of(p.prefill.decode, p.prefill.policy)
    split = Split(p.prefill.policy, prefills.prefill_s, p.prefill.workers, engines, link(job, p))
    busy = split.play(requests, clients)
    if clients is None:
        out = open_outcome(requests, engines)
    else:
        out = closed_outcome([Share(requests, clients, 1)], engines)
        out["saturated"] |= busy > 0.9
    return Played(requests, out | {"prefill_busy_ratio": busy}, close(engines) or split.close_call)


def played_together(job: Json, p: Pools, requests: list[Request], clients: int) -> Played:
    """Clients are dealt out evenly, so engines are of two kinds at most: one of each is played."""
    few, more = divmod(clients, p.workers)
    kinds = [(few + 1, more), (few, p.workers - more)]
    asked = job["load"]["requests"]
    each = PER_CLIENT if asked is None else asked / clients
    shares, engines, start = [], [], 0
    for own, count in kinds:
        if not own or not count:
            continue
        n = max(math.floor(own * each + 0.5), own)
        engine = engine_of(p.decode, p.policy)
        mine = requests[start : start + n]
        start += n
        closed(engine, mine, own)
        shares.append(Share(mine, own, count))
        engines.append(engine)
    assert start == len(requests)
    return Played(requests, closed_outcome(shares, engines), close(engines))
