"""What one GPU of an engine holds, multiplies and launches for one layer, matrix by matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..hardware import ELEMENT_BYTES
from .side import Json, Side, stored_bytes

Matrix = tuple[str, float, str]
"""Group (`projections`, `unquantised`, `dense`, `shared`), elements, format."""

TILE_HEADS = 64
"""Query heads of latent attention that a tile holds, those of draft tokens included."""


@dataclass
class Core:
    """Attention beside its matrices; each field is 0 where a mixer has no such part."""

    key_bytes: float = 0.0
    key_flops: float = 0.0
    span: float = math.inf
    """Keys that a token sees at most."""
    index_bytes: float = 0.0
    index_flops: float = 0.0
    """Of an indexer and of pooled keys that all see, for every key."""
    state_bytes: float = 0.0
    """Recurrent state, read and written."""
    head_elements: float = 0.0
    """Queries and attended values of a token, of all heads of the GPU."""
    gathered_bytes: float = 0.0
    """Prefill: keys and values of a token in 16 bits, those of an indexer too."""
    pair_flops: float = 0.0
    """Prefill, for a query and a key."""
    token_flops: float = 0.0
    """Prefill, whatever the length."""
    latent: bool = False


@dataclass
class Experts:
    """Routed experts of one GPU."""

    elements: float
    dtype: str
    local: float
    all: int
    top_k: int
    width: int


def cut(heads: int, ranks: int) -> int:
    """Heads of a rank; beyond their number they are repeated."""
    return -(-heads // ranks)


def matrices(kind: Json, side: Side) -> Iterator[Matrix]:
    """Every matrix that each token of the GPU passes."""
    hidden, t = side.job["model"]["hidden"], side.t
    formats = side.precision
    mixer, feed = kind["mixer"], kind["feed_forward"]
    if mixer:
        made = {"attention": attention, "mla": latent, "linear": linear, "mamba2": mamba2}
        for elements in made[mixer["kind"]](mixer, hidden, t):
            yield "projections", elements, formats["attention"]
        if mixer.get("indexer"):
            yield "unquantised", mixer["indexer"]["params"], "bf16"
        if mixer.get("compress"):
            yield "unquantised", mixer["compress"]["params"], "bf16"
    if feed and feed["kind"] == "dense":
        for _ in range(3 if feed["gated"] else 2):
            yield "dense", hidden * feed["intermediate"] / t, formats["dense"]
    if feed and feed["kind"] == "moe":
        for _ in range(3 if feed["gated"] else 2):
            yield "shared", hidden * feed["shared_intermediate"] / t, formats["dense"]
        yield "unquantised", feed["router_params"], "bf16"
        yield "unquantised", feed["latent_params"], "bf16"


def attention(a: Json, hidden: int, t: int) -> Iterator[float]:
    heads, d_k, d_v = cut(a["heads"], t), a["head_dim"], a["v_head_dim"]
    if a["q_lora_rank"]:
        yield hidden * a["q_lora_rank"]
        yield a["q_lora_rank"] * heads * d_k
    else:
        yield hidden * heads * d_k
    if not a["shares_kv"]:
        yield hidden * cut(a["kv_heads"], t) * d_k
        if not a["shares_k_and_v"]:
            yield hidden * cut(a["kv_heads"], t) * d_v
    if a["output_gate"]:
        yield hidden * heads * d_v
    if a["o_lora_rank"]:
        yield heads * d_v * a["o_lora_rank"]
        yield max(max(a["o_groups"], 1) / t, 1) * a["o_lora_rank"] * hidden
    else:
        yield heads * d_v * hidden


def latent(m: Json, hidden: int, t: int) -> Iterator[float]:
    heads, rank, rope = cut(m["heads"], t), m["kv_lora_rank"], m["qk_rope_head_dim"]
    query = heads * (m["qk_nope_head_dim"] + rope)
    if m["q_lora_rank"]:
        yield hidden * m["q_lora_rank"]
        yield m["q_lora_rank"] * query
    else:
        yield hidden * query
    yield hidden * (rank + rope)
    yield rank * heads * (m["qk_nope_head_dim"] + m["v_head_dim"])
    if m["output_gate"]:
        yield hidden * heads * m["v_head_dim"]
    yield heads * m["v_head_dim"] * hidden


def linear(m: Json, hidden: int, t: int) -> Iterator[float]:
    yield m["in_params"] / t
    yield m["out_params"] / t


def mamba2(m: Json, hidden: int, t: int) -> Iterator[float]:
    inner = m["heads"] * m["head_dim"] / t
    groups = max(m["groups"] / t, 1)
    yield hidden * inner  # x
    yield hidden * inner  # z
    yield hidden * 2 * groups * m["state"]  # B, C
    yield hidden * m["heads"] / t  # dt
    yield inner * hidden


def core(kind: Json, side: Side) -> Core:
    """What attention does for each key of a sequence."""
    m, t, dcp = kind["mixer"], side.t, side.engine["dcp"]
    kv = stored_bytes(side.precision["kv"])
    kept = Core()
    if m["kind"] == "attention":
        both = m["head_dim"] + m["v_head_dim"]
        vector = m["head_dim"] if m["shares_k_and_v"] else both
        kept.key_bytes = cut(m["kv_heads"], t) * vector * kv / dcp
        kept.key_flops = kept.pair_flops = 2 * cut(m["heads"], t) * both
        kept.head_elements = cut(m["heads"], t) * both
        kept.gathered_bytes = 0.0 if m["shares_kv"] else 2 * cut(m["kv_heads"], t) * vector
        kept.span = span(m)
    elif m["kind"] == "mla":
        heads, rank, rope = cut(m["heads"], t), m["kv_lora_rank"], m["qk_rope_head_dim"]
        kept.head_elements = heads * (rank + rope) + heads * rank
        kept.gathered_bytes = 2 * (rank + rope)
        tile = TILE_HEADS / (1 + side.engine["spec_tokens"])
        padded = max(heads * dcp, tile) / dcp  # all ranks' heads on a share of the keys
        kept.key_bytes = (rank + rope) * kv / dcp
        kept.key_flops = padded * (2 * (rank + rope) + 2 * rank)  # scores, values
        kept.pair_flops = 2 * heads * (m["qk_nope_head_dim"] + rope + m["v_head_dim"])
        if m["indexer"]:  # keys that each token chooses for itself are read as latents
            kept.pair_flops = max(heads, TILE_HEADS) * (2 * (rank + rope) + 2 * rank)
        kept.span, kept.latent = span(m), True
    elif m["kind"] == "linear":
        values = m["v_heads"] * m["v_head_dim"] / t
        kept.state_bytes = 2 * values * m["k_head_dim"] * m["state_bytes"]
        # Update, decay and read of the state; three products within chunks of 128.
        kept.token_flops = values * (6 * m["k_head_dim"] + 3 * 128)
    else:
        inner, groups = m["heads"] * m["head_dim"] / t, max(m["groups"] / t, 1)
        kept.state_bytes = 2 * inner * m["state"] * m["state_bytes"]
        kept.token_flops = 4 * inner * m["state"] + 2 * 128 * (groups * m["state"] + inner)
    if m.get("indexer"):
        heads, dim = m["indexer"]["heads"], m["indexer"]["head_dim"]
        kept.index_bytes = dim * (1 + 4 / 128)  # fp8, a scale of four bytes for 128
        kept.index_flops = 2 * heads * dim
        kept.gathered_bytes += kept.index_bytes
    if m.get("compress"):
        # One pooled key for `ratio` tokens: scored, or all of them attended.
        pooled = m["compress"]
        chosen = pooled["top_k"] > 0
        every_bytes = kept.index_bytes + (0 if chosen else kept.key_bytes)
        every_flops = kept.index_flops + (0 if chosen else kept.key_flops)
        kept.index_bytes = every_bytes / pooled["ratio"]
        kept.index_flops = every_flops / pooled["ratio"]
    return kept


def span(m: Json) -> float:
    """Keys that a token sees at most; pooled ones beside its window."""
    tokens = math.inf if m["span"]["kind"] == "full" else m["span"]["tokens"]
    pooled = (m.get("compress") or {}).get("top_k", 0)
    return tokens + pooled


def experts(kind: Json, side: Side) -> Experts | None:
    """Routed experts of one GPU, redundant copies among them."""
    m, e = kind["feed_forward"], side.engine
    if not m or m["kind"] != "moe":
        return None
    fan = 3 if m["gated"] else 2
    return Experts(
        elements=fan * m["expert_hidden"] * m["intermediate"] / e["moe_tp"],
        dtype=side.precision["experts"],
        local=(m["experts"] + e["redundant_experts"]) / e["ep"],
        all=m["experts"],
        top_k=m["top_k"],
        width=m["expert_hidden"],
    )


def operators(kind: Json, side: Side) -> float:
    """Operators that a decode step runs for the layer."""
    count, formats = side.hardware["operators"], side.precision
    mixer, feed = kind["mixer"], kind["feed_forward"]
    n = 0.0
    if mixer:
        name = {"attention": "attention", "mla": "latent"}.get(mixer["kind"], "linear")
        groups = 4 if mixer["kind"] == "mla" else 2
        n += count[name] + groups * side.casts(formats["attention"])
        n += count["indexer"] if mixer.get("indexer") else 0
    if feed and feed["kind"] == "dense":
        n += count["dense"] + 2 * side.casts(formats["dense"])
    if feed and feed["kind"] == "moe":
        n += count["moe"] + count["choice"] * feed["top_k"] + side.casts(formats["experts"])
        n += count["shared"] if feed["shared_intermediate"] else 0
        stored = ELEMENT_BYTES[formats["experts"]] < 1 and not side.native(formats["experts"])
        n += count["weight_only"] if stored else 0
    return n
