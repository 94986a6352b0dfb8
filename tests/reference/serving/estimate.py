"""The whole estimate: lengths, memory, terms, the closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import closed, decode, memory, policy, prefill
from .side import Json, Side


@dataclass
class Pools:
    """The two sides of a deployment (one where it is aggregated) with their memory and policy."""

    decode: Side
    workers: int
    memory: dict[str, float]
    policy: policy.Policy
    prefill: Pools | None = None


def mean_lengths(load: Json) -> closed.Mean:
    """Mean prompt, cached part and answer."""
    if load["arrivals"]["kind"] == "trace":
        requests = load["arrivals"]["requests"]
        mean = {k: sum(r[k] for r in requests) / len(requests) for k in ("input", "hit", "output")}
        return closed.Mean(**mean)
    tokens, output = (
        load[side]["tokens"] * (1 + load[side]["low"]) / 2 for side in ("input", "output")
    )
    # At least one token is computed.
    hit = max(min(load["prefix_hit_ratio"] * tokens, tokens - 1), 0.0)
    return closed.Mean(tokens, hit, output)


def pools(job: Json) -> Pools:
    deployment, load = job["deployment"], job["load"]
    mean = mean_lengths(load)

    def side(pool: Json, role: str) -> Pools:
        one = Side(job, pool["engine"], role)
        room = memory.terms(one, mean.input + mean.output)
        rules = policy.of(one, room["kv_tokens"], load["acceptance"])
        return Pools(one, pool["workers"], room, rules)

    apart = deployment["prefill"]
    found = side(deployment["decode"], "decode" if apart else "both")
    found.prefill = side(apart, "prefill") if apart else None
    return found


def fits(p: Pools, mean: closed.Mean) -> bool:
    """Weights fit, and the pool holds a mean request; on both sides."""
    room = p.memory["available_bytes"] > 0
    room &= p.memory["kv_tokens"] >= mean.input + mean.output
    return room and (p.prefill is None or fits(p.prefill, mean))


def gpus(job: Json) -> int:
    sides = [job["deployment"]["decode"], job["deployment"]["prefill"]]
    return sum(s["workers"] * s["engine"]["tp"] * s["engine"]["pp"] for s in sides if s)


@dataclass
class Link:
    """Between a prefill and a decode worker."""

    fixed_s: float
    token_bytes: float
    state_bytes: float
    bytes_per_s: float
    sources: int
    sinks: int

    def seconds(self, tokens: float) -> float:
        """Time of the bytes of one request."""
        return (self.token_bytes * tokens + self.state_bytes) / self.bytes_per_s


def link(job: Json, p: Pools) -> Link:
    """Bytes of a mean prompt's cache, and the rate of the GPUs that each hold a part of it."""
    assert p.prefill
    model, software = job["model"], job["software"]
    tokens = mean_lengths(job["load"]).input
    whole, states = 0.0, 0.0
    for number in model["layers"]:
        dtype = job["deployment"]["precision"]["kv"]
        grows, state = memory.cache(model["kinds"][number], 1, dtype, 0, int(tokens))
        whole, states = whole + grows, states + state
    mixers = [kind["mixer"] for kind in model["kinds"]]
    heads = [m["kv_heads"] for m in mixers if m and m["kind"] == "attention"]
    slices = min(max(heads, default=1), p.decode.t, p.prefill.decode.t)
    bandwidth, extra_s = p.decode.link(gpus(job))
    return Link(
        fixed_s=software["transfer_s"] + extra_s,
        token_bytes=whole / tokens,
        state_bytes=states,
        bytes_per_s=min(slices * bandwidth, software["transfer_bytes_per_s"]),
        sources=p.prefill.decode.replicas,
        sinks=p.decode.replicas,
    )


def named(terms: dict[str, float]) -> dict[str, float]:
    return {f"{name}_s": value for name, value in terms.items()}


def terms(job: Json, running: float) -> dict[str, Any]:
    """Every term of the estimate; those of the decode step at so many running requests."""
    p, mean = pools(job), mean_lengths(job["load"])
    first = p.prefill or p
    return {
        "fits": fits(p, mean),
        "decode": named(decode.terms(p.decode, max(running, 1.0), mean.context)),
        "prefill": named(prefill.terms(first.decode, mean.input - mean.hit, 1.0, mean.hit)),
        "imbalance": [
            decode.step_imbalance(p.decode, max(running, 1.0)),
            prefill.pass_imbalance(first.decode, mean.input - mean.hit),
        ],
        "memory": p.memory,
        "prefill_memory": p.prefill and p.prefill.memory,
    }


def means(job: Json) -> dict[str, Any]:
    """The closed form as an outcome: rates are those of the deployment."""
    p, mean = pools(job), mean_lengths(job["load"])
    sends, share = job["load"]["arrivals"], 1 if p.prefill else p.workers
    if sends["kind"] == "closed":
        mean.clients = max(sends["concurrency"] / share, 1.0)
    elif sends["kind"] == "open":
        mean.rate, mean.cv = sends["rate_per_s"] / share, sends["cv"]
    else:
        span = sends["requests"][-1]["arrival_s"] - sends["requests"][0]["arrival_s"]
        mean.rate = len(sends["requests"]) / max(span, 1e-3) / share
    busy = None
    if p.prefill:
        sides = [(q.decode, q.policy, q.workers) for q in (p.prefill, p)]
        wire = link(job, p)
        moved = wire.fixed_s + wire.seconds(mean.input)
        found, busy = closed.split(closed.Split(*sides, moved), mean)
        running = found["running"] / p.workers
    else:
        found = closed.steady(p.decode, p.policy, mean)
        running = found["running"]
    rate = found["requests_per_s"] * share
    return {
        "ttft_s": found["ttft_s"],
        "tpot_s": found["tpot_s"],
        "queue_s": found["queue_s"],
        "requests_per_s": rate,
        "output_tokens_per_s": rate * mean.output,
        "mean_running": running,
        "peak_kv_ratio": found["kv_ratio"],
        "saturated": found["saturated"],
        "prefill_busy_ratio": busy,
    }
