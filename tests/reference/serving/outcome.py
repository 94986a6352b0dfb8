"""What a replay says: quantiles over requests, rates, how full it was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .replay import Engine, Request

BLOCKED = 0.05
"""Share of time without room above which a closed loop is saturated."""
GROWTH = 0.05
"""Growth of the open requests, over arrivals, above which an open loop is."""
BURST = 0.1
"""Share that the requests of the start stand for."""


@dataclass
class Share:
    """Requests of an engine, its clients, and how many engines do the same."""

    requests: list[Request]
    clients: int
    engines: int

    def weights(self) -> list[float]:
        """Requests that each stands for."""
        everybody = float(self.engines * self.clients)
        n, first = len(self.requests), min(self.clients, len(self.requests))
        if n == first:
            return [everybody / n] * n
        early, late = BURST * everybody / first, (1 - BURST) * everybody / (n - first)
        return [early] * first + [late] * (n - first)


def quantiles(values: list[float]) -> dict[str, float]:
    """With straight lines between ranks."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 0.0)
    ranked = sorted(values)

    def at(q: float) -> float:
        place = q * (len(ranked) - 1)
        low, high = ranked[math.floor(place)], ranked[math.ceil(place)]
        return low + (high - low) * (place - math.floor(place))

    found = {"mean": sum(values) / len(values), "max": ranked[-1]}
    return found | {f"p{int(100 * q)}": at(q) for q in (0.5, 0.9, 0.99)}


def weighted(values: list[tuple[float, float]]) -> dict[str, float]:
    """The value at which so much of the weight is reached."""
    whole = sum(w for _, w in values)
    if not whole:
        return quantiles([])
    ranked = sorted(values)

    def at(q: float) -> float:
        below = 0.0
        for value, weight in ranked:
            below += weight
            if below >= q * whole * (1 - 1e-12):
                return value
        return math.nan

    found = {"mean": sum(v * w for v, w in values) / whole, "max": ranked[-1][0]}
    return found | {f"p{int(100 * q)}": at(q) for q in (0.5, 0.9, 0.99)}


def ttft_s(r: Request) -> float:
    return r.first_s - r.send_s


def tpot_s(r: Request) -> float:
    return (r.finish_s - r.first_s) / max(r.output - 1, 1)


def common(pairs: list[tuple[Request, float]], rate: float, plain: bool) -> dict[str, Any]:
    """Of requests that were answered, each with what it stands for."""
    weight = sum(w for _, w in pairs) or 1.0
    several = [(r, w) for r, w in pairs if r.output > 1]
    first = [(ttft_s(r), w) for r, w in pairs]
    further = [(tpot_s(r), w) for r, w in several]
    shape = (lambda v: quantiles([x for x, _ in v])) if plain else weighted
    return {
        "ttft_s": shape(first),
        "tpot_s": shape(further),
        "queue_s": sum(w * (r.start_s - r.send_s) for r, w in pairs) / weight,
        "makespan_s": max((r.finish_s for r, _ in pairs), default=0.0),
        "requests_per_s": rate,
        "output_tokens_per_s": rate * sum(w * r.output for r, w in pairs) / weight,
    }


def closed_outcome(shares: list[Share], engines: list[Engine]) -> dict[str, Any]:
    """Little's law gives the rate: clients over the mean time of a request."""
    pairs = [
        (r, w)
        for share in shares
        for r, w in zip(share.requests, share.weights(), strict=True)
        if not math.isnan(r.finish_s)
    ]
    latency = sum(w * (r.finish_s - r.send_s) for r, w in pairs)
    clients = sum(s.clients * s.engines for s in shares)
    rate = clients * sum(w for _, w in pairs) / latency if latency else 0.0
    each = shares[0].weights()
    plain = len(shares) == 1 and math.isclose(min(each), max(each), rel_tol=1e-9)
    out = common(pairs, rate, plain)
    out["requests"] = sum(len(s.requests) * s.engines for s in shares)
    out["rejected"] = sum(s.engines for s in shares for r in s.requests if math.isnan(r.finish_s))
    out |= booked(engines, out["makespan_s"])
    return out | {"saturated": out["blocked_ratio"] > BLOCKED}


def open_outcome(requests: list[Request], engines: list[Engine]) -> dict[str, Any]:
    """Requests over makespan, from the first send to the last token."""
    done = [(r, 1.0) for r in requests if not math.isnan(r.finish_s)]
    last = max((r.finish_s for r, _ in done), default=0.0)
    span = last - requests[0].send_s
    out = common(done, len(done) / span if span > 0 else 0.0, True)
    out["makespan_s"] = span
    out |= {"requests": len(requests), "rejected": len(requests) - len(done)}
    return out | booked(engines, span) | {"saturated": grows(requests)}


def booked(engines: Iterable[Engine], makespan_s: float) -> dict[str, Any]:
    """What the engines saw."""
    engines = list(engines)
    time = (makespan_s or math.inf) * len(engines)
    kv = max(engines[0].policy.kv_tokens, 1)
    return {
        "mean_running": sum(e.area_s for e in engines) / time,
        "peak_running": max(e.peak_running for e in engines),
        "peak_kv_ratio": min(max(e.peak_held for e in engines) / kv, 1.0),
        "preemptions": sum(e.preempted for e in engines),
        "blocked_ratio": sum(e.blocked_s for e in engines) / time,
    }


def grows(requests: list[Request]) -> bool:
    """More is open at the last arrival than half way, beyond chance."""
    half, end = (requests[0].send_s + requests[-1].send_s) / 2, requests[-1].send_s

    def open_at(t: float) -> int:
        return sum(r.send_s <= t < r.finish_s for r in requests)

    came = sum(r.send_s > half for r in requests)
    return open_at(end) - open_at(half) > GROWTH * came + 3 * math.sqrt(came)
