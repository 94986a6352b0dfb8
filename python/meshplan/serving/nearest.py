"""Where nothing keeps the limits: which comes nearest, and what would meet them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan.report.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshplan.specs.serving_plan import ServingPlan


def nearest(plan: ServingPlan, account: Mapping[str, Any]) -> str:
    """Say what comes nearest to the limits and what would meet them."""
    said = f"none of {account['total']:,} deployments keeps every limit"
    found = account["nearest"]
    if found["rate"] is not None:
        return f"{said}; {_behind(plan, found['rate'])}"
    if found["both"] is None:
        return f"{said}; {_capacity(plan, account)}"
    parts = [f"{said}; nearest: {_miss(found['both'])}"]
    work = plan.workload
    would = []
    if found["tpot"] is not None and work.tpot is not None:
        limit = _enough(found["tpot"]["tpot_s"], plan)
        would.append(f"--tpot {limit}" + (" at this TTFT" if work.ttft else ""))
    if found["ttft"] is not None and work.ttft is not None:
        limit = _enough(found["ttft"]["ttft_s"], plan)
        would.append(f"--ttft {limit}" + (" at this TPOT" if work.tpot else ""))
    if not would and work.ttft is not None and work.tpot is not None:
        ttft, tpot = (_enough(found["both"][name], plan) for name in ("ttft_s", "tpot_s"))
        would.append(f"--ttft {ttft} --tpot {tpot}")
    if would:
        parts.append("what would meet it: " + ", or ".join(would))
    return "; ".join(parts)


def _enough(time_s: float, plan: ServingPlan) -> str:
    """A limit, rounded up to two figures, that a time keeps with the margin."""
    from math import ceil, floor, log10

    least = time_s / (1 - plan.workload.margin) * 1.02
    scale = 10.0 ** (floor(log10(least)) - 1)
    return value("limit_s", ceil(least / scale) * scale).replace(" ", "")


def _behind(plan: ServingPlan, found: Mapping[str, Any]) -> str:
    """What the replays serve of the requests that come."""
    served = found["requests_per_s"]
    text = f"most is served by {words(found['deployment'])}: {served:.3g}"
    if plan.workload.rate:
        text += f" of {plan.workload.rate:g}"
    text += (
        " requests/s in a replay whose queue still grows at its end: use more GPUs, a lower --rate"
    )
    return text + (", or a longer trace" if plan.workload.trace else "")


def _capacity(plan: ServingPlan, account: Mapping[str, Any]) -> str:
    """Why nothing was even estimated."""
    rejected = account["rejected"]
    if rejected.get("rate"):
        rate = plan.workload.rate
        asked = f"{rate:g} requests/s" if rate else "the rate of the trace"
        return f"{asked} is above the capacity of every one: use more GPUs, or a lower --rate"
    reason = max(rejected, key=lambda name: int(rejected[name])) if rejected else "nothing"
    rules = [rule for rule in account["rules"] if rule["status"] == reason]
    if rules:
        rule = max(rules, key=lambda rule: int(rule["deployments"]))
        return f"most frequent reason: {reason} ({rule['rule']}): {rule['text']}"
    why = {
        "memory": "weights and buffers leave no memory: use more GPUs an engine, or narrower weights",
        "context": "the cache does not hold one request: use more GPUs an engine, shorter requests, "
        "or a narrower cache (--kv-dtype fp8)",
    }
    return f"most frequent reason: {reason}: {why.get(reason, 'see --json')}"


def _miss(found: Mapping[str, Any]) -> str:
    ttft, tpot = value("ttft_s", found["ttft_s"]), value("tpot_s", found["tpot_s"])
    return f"{words(found['deployment'])} with TTFT {ttft} and TPOT {tpot}"


def words(deployment: Mapping[str, Any]) -> str:
    """Deployment of the core in a few words."""
    backend, decode, prefill = (deployment[key] for key in ("backend", "decode", "prefill"))
    said = f"{backend} {decode['workers']} × {engine(decode['engine'])}"
    if prefill is not None:
        said += f" behind {prefill['workers']} × {engine(prefill['engine'])} for prefill"
    return said


def engine(own: Mapping[str, Any], prefix: str = "") -> str:
    """Layout of an engine in a few words: what is 1 or off is left out.

    Examples
    --------
    >>> engine({"tp": 8, "pp": 1, "attention_dp": 8, "ep": 8, "dcp": 1, "spec_tokens": 2})
    'tp8 dp8 ep8 mtp2'
    """
    parts = [f"tp{own[prefix + 'tp']}"]
    short = {"pp": "pp", "attention_dp": "dp", "pcp": "pcp", "ep": "ep", "dcp": "dcp"}
    parts += [f"{word}{own[prefix + n]}" for n, word in short.items() if own.get(prefix + n, 1) > 1]
    if own.get(prefix + "redundant_experts"):
        parts.append(f"+{own[prefix + 'redundant_experts']}e")
    if own.get(prefix + "spec_tokens"):
        parts.append(f"mtp{own[prefix + 'spec_tokens']}")
    return " ".join(parts)
