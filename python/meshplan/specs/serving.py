"""What is served: prompts, answers, arrivals, and the limits on latency."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from meshplan.specs.base import Spec
from meshplan.specs.fields import Count, PerSecond, Ratio, Seconds, Share, Whole, refuse

BACKENDS = ("vllm", "sglang", "trtllm")
MODES = ("agg", "disagg")
WEIGHTS = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
CACHES = ("bf16", "fp8", "nvfp4")

Statistic = Literal["mean", "p50", "p90", "p99"]
Objective = Literal["throughput", "cost", "gpus"]

NARROW_EXPERTS_ONLY = ("int4", "mxfp4")
"""Formats of checkpoints that quantise experts and leave all else in 16 bits."""

LONGEST = 2**27
"""Most tokens of a prompt or an answer."""


def _short_enough(value: int) -> int:
    if value > LONGEST:
        rule = f"must be at most {LONGEST} tokens"
        raise refuse(rule, "lengths are of one prompt and one answer, not of all requests")
    return value


Length = Annotated[Count, AfterValidator(_short_enough)]
Limit = Annotated[Seconds, Field(gt=0, le=1e6)]

DEFINITION = (
    "TTFT: first token - arrival. "
    "TPOT: (last token - first token) / (output tokens - 1), stalls included."
)
"""What the two latencies mean, wherever they are printed."""


class Serving(Spec):
    """Requests that are served, and how fast.

    Without `concurrency`, `rate` and `trace`, the concurrency is part of the search: the largest
    that keeps the limits.

    Examples
    --------
    >>> Serving(isl=4096, osl=1024, ttft="2s", tpot="50ms").tpot
    0.05
    """

    kind: Literal["serving"] = "serving"
    """Tells a serving workload from training."""
    isl: Length | None = None
    """Tokens of the longest prompt."""
    osl: Length | None = None
    """Tokens of the longest answer."""
    low: Annotated[Ratio, Field(gt=0, le=1)] = 0.8
    """Shortest over longest: lengths are uniform between, as public benchmarks draw them."""
    concurrency: Annotated[Count, Field(le=2**24)] | None = None
    """Clients that send the next request when the last is answered."""
    rate: Annotated[PerSecond, Field(le=1e9)] | None = None
    """Requests a second that arrive on their own."""
    cv: Annotated[Ratio, Field(le=100)] = 1.0
    """Standard deviation of the gaps between arrivals over their mean (1: Poisson)."""
    trace: str | None = None
    """File of recorded requests."""
    prefix_hit: Share = 0.0
    """Share of prompt tokens that the prefix cache holds."""
    acceptance: Share | None = None
    """Probability that a draft token is accepted; otherwise as measured of the backend."""
    routing: str = ""
    """How tokens choose experts, where it is known: ``uniform``, ``dirichlet:1.3``, ``zipf:0.6``,
    ``lognormal:1``, or a file of loads."""
    ttft: Limit | None = None
    """Longest time to first token."""
    tpot: Limit | None = None
    """Longest time per output token."""
    percentile: Statistic = "mean"
    """Which value of the requests the limits are on."""
    margin: Annotated[Share, Field(lt=1)] = 0.0
    """Share of a limit that is kept free: 0.07 plans for 0.93 of it."""
    requests: Annotated[Count, Field(le=10_000_000)] | None = None
    """Requests to play."""
    seed: Whole = 0
    """Seed of lengths and arrivals."""

    @property
    def open_concurrency(self) -> bool:
        """Whether the search chooses the number of clients."""
        return self.concurrency is None and self.rate is None and self.trace is None

    def load(self) -> dict[str, Any]:
        """Load of the core; the core reads the requests of a trace itself."""
        arrivals: dict[str, Any]
        if self.trace is not None:
            arrivals = {"kind": "trace", "requests": []}
        elif self.rate is not None:
            arrivals = {"kind": "open", "rate_per_s": self.rate, "cv": self.cv}
        else:
            arrivals = {"kind": "closed", "concurrency": self.concurrency or 1}
        return {
            "arrivals": arrivals,
            "input": {"tokens": self.isl or 1, "low": self.low},
            "output": {"tokens": self.osl or 1, "low": self.low},
            "requests": self.requests,
            "prefix_hit_ratio": self.prefix_hit,
            "acceptance": self.acceptance,
            "seed": self.seed,
        }

    def goal(self) -> dict[str, Any]:
        """Limits of the core."""
        return {
            "ttft_s": self.ttft,
            "tpot_s": self.tpot,
            "at": self.percentile,
            "margin": self.margin,
        }


def formats(weights: str, cache: str, *, moe: bool) -> dict[str, str]:
    """Formats of the parts of a model under one label.

    Four-bit checkpoints of models with experts keep attention in 16 bits, those of int4 and MXFP4
    also dense MLPs.

    Examples
    --------
    >>> formats("nvfp4", "fp8", moe=True)
    {'attention': 'bf16', 'dense': 'nvfp4', 'experts': 'nvfp4', 'kv': 'fp8'}
    >>> formats("fp8", "bf16", moe=False)["attention"]
    'fp8'
    """
    narrow = moe and weights in ("int4", "mxfp4", "nvfp4")
    dense = "bf16" if moe and weights in NARROW_EXPERTS_ONLY else weights
    return {
        "attention": "bf16" if narrow else weights,
        "dense": dense,
        "experts": weights,
        "kv": cache,
    }
