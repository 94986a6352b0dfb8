"""Parameters of a layer on one rank, tensor by tensor, with what divides each.

`shared` names the degree that splits a tensor: `tp`, `kv` (tp, but no further than the KV heads),
`expert` (ep · etp) or `none`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tensor = tuple[float, str]


def attention(a: dict[str, Any], h: int) -> Iterator[Tensor]:
    q_width = a["heads"] * a["head_dim"]
    o_width = a["heads"] * a["v_head_dim"]
    if a["q_lora_rank"]:
        yield h * a["q_lora_rank"], "none"
        yield a["q_lora_rank"] * q_width, "tp"
    else:
        yield h * q_width, "tp"
    if not a["shares_kv"]:
        yield h * a["kv_heads"] * a["head_dim"], "kv"
        if not a["shares_k_and_v"]:
            yield h * a["kv_heads"] * a["v_head_dim"], "kv"
    if a["o_lora_rank"]:
        yield o_width * a["o_lora_rank"], "tp"
        yield max(a["o_groups"], 1) * a["o_lora_rank"] * h, "tp"
    else:
        yield o_width * h, "tp"
    if a["output_gate"]:
        yield h * o_width, "tp"
    yield a["bias_params"], "tp"
    yield a["head_params"], "none"
    for extra in ("indexer", "compress"):
        if a[extra]:
            yield a[extra]["params"], "none"


def mla(a: dict[str, Any], h: int) -> Iterator[Tensor]:
    heads, rank = a["heads"], a["kv_lora_rank"]
    nope, rope, v = a["qk_nope_head_dim"], a["qk_rope_head_dim"], a["v_head_dim"]
    if a["q_lora_rank"]:
        yield h * a["q_lora_rank"], "none"
        yield a["q_lora_rank"] * heads * (nope + rope), "tp"
    else:
        yield h * heads * (nope + rope), "tp"
    yield h * (rank + rope), "none"
    yield rank * heads * (nope + v), "tp"
    yield heads * v * h, "tp"
    if a["output_gate"]:
        yield h * heads * v, "tp"
    yield a["bias_params"], "none"
    yield a["head_params"], "none"
    if a["indexer"]:
        yield a["indexer"]["params"], "none"


def linear(a: dict[str, Any], h: int) -> Iterator[Tensor]:
    for part in ("in_params", "out_params", "other_params"):
        yield a[part], "tp"


def mamba2(a: dict[str, Any], h: int) -> Iterator[Tensor]:
    inner = a["heads"] * a["head_dim"]
    yield h * (2 * inner + 2 * a["groups"] * a["state"] + a["heads"]), "tp"
    yield inner * h, "tp"
    yield a["other_params"], "tp"


def dense(f: dict[str, Any], h: int) -> Iterator[Tensor]:
    for _ in range(3 if f["gated"] else 2):
        yield h * f["intermediate"], "tp"
    yield f["bias_params"], "tp"


def moe(f: dict[str, Any], h: int) -> Iterator[Tensor]:
    matrices = 3 if f["gated"] else 2
    for _ in range(f["experts"]):
        yield matrices * f["expert_hidden"] * f["intermediate"], "expert"
        yield f["expert_bias_params"], "expert"
    for _ in range(matrices):
        yield h * f["shared_intermediate"], "tp"
    yield f["latent_params"], "none"
    yield f["router_params"], "none"


MIXERS = {"attention": attention, "mla": mla, "linear": linear, "mamba2": mamba2}
FEED_FORWARDS = {"dense": dense, "moe": moe}


def layer(kind: dict[str, Any], h: int) -> Iterator[Tensor]:
    """Every tensor of one decoder layer."""
    yield kind["norm_params"], "none"
    yield kind["extra_params"], "none"
    if kind["mixer"]:
        yield from MIXERS[kind["mixer"]["kind"]](kind["mixer"], h)
    if kind["feed_forward"]:
        yield from FEED_FORWARDS[kind["feed_forward"]["kind"]](kind["feed_forward"], h)


def on_rank(kind: dict[str, Any], h: int, lay: dict[str, Any]) -> tuple[float, float]:
    """Parameters of a layer on one rank: outside routed experts, and in them."""
    mixer = kind["mixer"] or {}
    kv_ways = min(lay["tp"], mixer.get("kv_heads") or 1)
    ways = {"tp": lay["tp"], "kv": kv_ways, "none": 1, "expert": lay["ep"] * lay["etp"]}
    outside = experts = 0.0
    for count, shared in layer(kind, h):
        if shared == "expert":
            experts += count / ways[shared]
        else:
            outside += count / ways[shared]
    return outside, experts
