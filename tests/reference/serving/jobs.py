"""Random deployments and loads, as canonical JSON; models and clusters are those of training."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .. import random_jobs as rj
from ..random_jobs import Json, flag, one_of, share

WEIGHTS = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4", "int8")


def hardware(names: Json) -> st.SearchStrategy[Json]:
    """Numbers of a GPU; `names` gives every field."""
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for name in names:
        if name == "operators":
            drawn[name] = st.fixed_dictionaries({n: share(0, 80) for n in names[name]})
        elif name.endswith("_s"):
            drawn[name] = share(1e-6, 2e-5)
        elif name in ("elementwise_passes", "expert_row_passes"):
            drawn[name] = share(0, 20)
        else:
            drawn[name] = share(0.1, 1.5)
    return st.fixed_dictionaries(drawn)


def software(names: Json) -> st.SearchStrategy[Json]:
    """Numbers of a backend; `names` gives every field."""
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for name in names:
        if name in ("operator_s", "launch_s", "sequence_s"):
            drawn[name] = share(0, 5e-5)
        elif name == "ttft_per_token_s":
            drawn[name] = share(0, 5e-6)
        elif name == "transfer_bytes_per_s":
            drawn[name] = share(1e9, 1e11)
        elif name.endswith("_s"):
            drawn[name] = share(0, 0.1)
        elif name == "acceptance":
            drawn[name] = share(0, 1)
        elif name == "all_to_all_ratio":
            drawn[name] = share(1, 5)
        else:
            drawn[name] = share(0.1, 2)
    return st.fixed_dictionaries(drawn)


precisions = st.fixed_dictionaries(
    {
        **{name: one_of(*WEIGHTS) for name in ("attention", "dense", "experts")},
        "kv": one_of("bf16", "fp8", "nvfp4"),
    }
)


@st.composite
def engines(draw: st.DrawFn, layers: int) -> Json:
    tp = draw(one_of(1, 2, 4, 8, 16))
    moe_tp = draw(one_of(*[d for d in (1, 2, 4, 8, 16) if d <= tp]))
    dp = draw(one_of(*[d for d in (1, 1, 2, 8, tp) if d <= tp]))
    pcp = draw(one_of(*[c for c in (1, 1, 2, 4) if c * dp <= tp]))
    return {
        "tp": tp,
        "pp": draw(one_of(*[d for d in (1, 1, 1, 2, 4) if d <= layers])),
        "attention_dp": dp,
        "pcp": pcp,
        "ep": tp // moe_tp,
        "moe_tp": moe_tp,
        "dcp": draw(one_of(1, 1, 1, min(2, tp))),
        "max_batch": draw(one_of(1, 8, 64, 512)),
        "max_batched_tokens": draw(one_of(512, 2048, 8192, 32768)),
        "block_tokens": draw(one_of(1, 16, 64)),
        "recv_interval": draw(one_of(1, 10, 30)),
        "memory_share": draw(share(0.3, 0.98)),
        "spec_tokens": draw(one_of(0, 0, 1, 3)),
        "redundant_experts": draw(one_of(0, 0, tp, 32)),
    }


def lengths(most: int) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"tokens": st.integers(2, most), "low": one_of(1.0, 0.8, 0.5)})


arrivals = st.one_of(
    st.fixed_dictionaries({"kind": st.just("closed"), "concurrency": one_of(1, 2, 7, 32, 300)}),
    st.fixed_dictionaries(
        {"kind": st.just("open"), "rate_per_s": share(0.01, 50), "cv": one_of(0.0, 1.0, 2.0)}
    ),
)


@st.composite
def loads(draw: st.DrawFn) -> Json:
    return {
        "arrivals": draw(arrivals),
        "input": draw(lengths(20_000)),
        "output": draw(lengths(2_000)),
        "requests": draw(one_of(None, 40)),
        "prefix_hit_ratio": draw(one_of(0.0, 0.0, 0.5, 1.0)),
        "acceptance": draw(one_of(None, 0.8)),
        "seed": draw(st.integers(0, 1000)),
    }


@st.composite
def jobs(
    draw: st.DrawFn, *, curve: Json, fabric: Json, hardware_names: Json, software_names: Json
) -> Json:
    """A whole job; memory is drawn large enough that most deployments fit."""
    model = draw(rj.models())
    cluster = draw(rj.clusters(curve, fabric))
    cluster["device"]["memory_bytes"] = draw(share(2e10, 3e12))
    pool = st.fixed_dictionaries(
        {"workers": one_of(1, 1, 2, 3), "engine": engines(len(model["layers"]))}
    )
    prefill = draw(st.none() | pool) if draw(flag) else None
    return {
        "model": model,
        "cluster": cluster,
        "hardware": draw(hardware(hardware_names)),
        "software": draw(software(software_names)),
        "deployment": {
            "backend": draw(one_of("vllm", "sglang", "trtllm")),
            "precision": draw(precisions),
            "prefill": prefill,
            "decode": draw(pool),
        },
        "load": draw(loads()),
        "limits": None,
        "mode": draw(one_of("replay", "mean")),
        "routing": {
            "popularity_spread": draw(one_of(0.0, 0.3, 2.0)),
            "imbalance": draw(one_of(1.0, 1.3)),
        },
    }


# Small jobs for the replay


def with_pool(job: Json, tokens: int) -> Json:
    """The same on GPUs whose memory leaves a pool of so many tokens."""
    from .estimate import pools

    room = pools(job)
    one = room.memory
    wanted = (tokens + 0.5) / one["kv_tokens"] * one["available_bytes"]
    share = room.decode.engine["memory_share"]
    more = (wanted - one["available_bytes"]) / share
    device = job["cluster"]["device"]
    device = device | {"memory_bytes": device["memory_bytes"] + more}
    return job | {"cluster": job["cluster"] | {"device": device}}


@st.composite
def small_jobs(draw: st.DrawFn, base: st.SearchStrategy[Json]) -> Json:
    """A few layers without windows, short answers, one stage, memory in plenty."""
    job = draw(base)
    model = job["model"]
    model["layers"] = model["layers"][: draw(st.integers(1, 3))]
    for kind in model["kinds"]:
        if "span" in (kind["mixer"] or {}):
            kind["mixer"]["span"] = {"kind": "full"}
        if "compress" in (kind["mixer"] or {}):
            kind["mixer"]["compress"] = None
    job["cluster"]["device"]["memory_bytes"] = 1e14
    sides = [job["deployment"]["decode"], job["deployment"]["prefill"]]
    for side in (s for s in sides if s):
        side["engine"] |= {
            "pp": 1,
            "max_batch": draw(one_of(2, 8, 64)),
            "max_batched_tokens": draw(one_of(64, 512, 4096)),
        }
    clients = draw(one_of(1, 3, 8, 20))
    low = one_of(1.0, 0.3)
    job["load"] |= {
        "arrivals": {"kind": "closed", "concurrency": clients},
        "input": {"tokens": draw(st.integers(1, 600)), "low": draw(low)},
        "output": {"tokens": draw(st.integers(1, 60)), "low": draw(low)},
        "requests": draw(one_of(None, None, 3 * clients + 1)),
    }
    job["mode"] = "replay"
    return job


def without_latency(job: Json) -> Json:
    """What is sent is seen at once."""
    names = (*("ttft_s", "ttft_per_token_s"), *("disaggregated_ttft_s", "speculative_ttft_s"))
    return job | {"software": job["software"] | dict.fromkeys(names, 0.0)}


def without_context(job: Json) -> Json:
    """Keys and values are read and multiplied in no time, so steps of a batch take the same."""
    fast = {"kv_read": 1e16, "gemm_rate": 1e10, "latent_rate": 1e10}
    return job | {"hardware": job["hardware"] | fast}
