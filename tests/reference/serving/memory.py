"""Where the memory of a GPU goes, stage by stage, and the tokens that an engine keeps."""

from __future__ import annotations

from typing import Any

from .operators import experts, matrices
from .side import Json, Side, stored_bytes

GIB = 2.0**30
CONTEXT_BYTES = 0.48 * GIB
COLLECTIVE_BYTES = 0.19 * GIB
GRAPH_BYTES_PER_LAYER = 9e6
FORWARD_RATIO = 1.07
LOGIT_BYTES = 39.0
MOST_TOKENS = 1e15
"""What an engine keeps if a sequence takes no memory."""


def terms(side: Side, tokens: float) -> dict[str, float]:
    """Terms of the stage that keeps least, for sequences of so many tokens."""
    layers, pp = side.job["model"]["layers"], side.engine["pp"]
    each, rest = divmod(len(layers), pp)
    start, least = 0, None
    for i in range(pp):
        count = each + (i < rest)
        found = stage(side, layers[start : start + count], i == 0, i == pp - 1, tokens)
        start += count
        if least is None or found["kv_tokens"] < least["kv_tokens"]:
            least = found
    assert least is not None
    return least


def weights(kind: Json, side: Side) -> float:
    """Stored bytes of one layer on one GPU."""
    size = sum(elements * stored_bytes(dtype) for _, elements, dtype in matrices(kind, side))
    found = experts(kind, side)
    return size + (found.local * found.elements * stored_bytes(found.dtype) if found else 0.0)


def stage(
    side: Side, layers: list[int], first: bool, last: bool, tokens: float
) -> dict[str, float]:
    """Terms of one pipeline stage."""
    model, engine, backend = side.job["model"], side.engine, side.backend
    kinds = [model["kinds"][k] for k in layers]
    table = model["hidden"] * model["vocab"] * 2 / side.t
    tables = first + last - (first and last and model["tied_embeddings"])
    size = sum(weights(kind, side) for kind in kinds) + tables * table
    if last and engine["spec_tokens"] and model["mtp"]:
        draft = model["mtp"][0]
        size += weights(model["kinds"][draft["kind"]], side) + 2 * draft["projection_params"]
    graphs = 0.0
    if backend == "vllm" and side.role != "prefill":
        graphs = GRAPH_BYTES_PER_LAYER * len(layers)
    context = CONTEXT_BYTES + (COLLECTIVE_BYTES if side.gpus > 1 else 0.0)
    peak = activations(side, kinds, last)
    total, share = side.job["cluster"]["device"]["memory_bytes"], engine["memory_share"]
    left = {
        "vllm": total * share - size - context - peak - graphs,
        "sglang": total * share - size - context,
        "trtllm": (total - size - context - peak) * share,
    }[backend]
    one = sum(kept_bytes(kind, side, tokens) for kind in kinds)
    kept = max(left, 0.0) / one * tokens * side.replicas if one else MOST_TOKENS
    return {
        "total_bytes": total,
        "usable_bytes": total * share,
        "weights_bytes": size,
        "activation_bytes": peak,
        "graph_bytes": graphs,
        "context_bytes": context,
        "available_bytes": left,
        "sequence_bytes": one,
        "kv_tokens": min(kept, MOST_TOKENS),
    }


def activations(side: Side, kinds: list[Json], last: bool) -> float:
    """Peak of the widest layer over a full batch of one replica, or of sampling every slot."""
    engine, model = side.engine, side.job["model"]
    if side.role == "decode":
        batch = engine["max_batch"] * (1 + engine["spec_tokens"])
    else:
        batch = engine["max_batched_tokens"] / side.parts
    widest = max((width(kind, side) for kind in kinds), default=0.0)
    logits = engine["max_batch"] / side.replicas * model["vocab"] * LOGIT_BYTES if last else 0.0
    return max(FORWARD_RATIO * batch / side.replicas * widest, logits)


def width(kind: Json, side: Side) -> float:
    """Bytes that a token holds at once: two hidden vectors and the wider block, 16 bits."""
    m, f, t = kind["mixer"], kind["feed_forward"], side.t
    mixer = feed = 0.0
    if m and m["kind"] == "attention":
        mixer = (2 * m["heads"] + 2 * m["kv_heads"]) * m["head_dim"] / t
    elif m and m["kind"] == "mla":
        mixer = m["heads"] * (3 * m["qk_nope_head_dim"] + m["v_head_dim"]) / t
    elif m and m["kind"] == "linear":
        mixer = (2 * m["k_heads"] * m["k_head_dim"] + 3 * m["v_heads"] * m["v_head_dim"]) / t
    elif m:
        mixer = 3 * m["heads"] * m["head_dim"] / t
    if f and f["kind"] == "dense":
        feed = 3 * f["intermediate"] / t
    elif f:
        inner = f["intermediate"] / side.engine["moe_tp"]
        feed = f["top_k"] * (max(2 * inner, f["expert_hidden"]) + inner)
        feed += 3 * f["shared_intermediate"] / t
    return 2 * (2 * side.job["model"]["hidden"] + max(mixer, feed))


def vector_bytes(elements: int, dtype: str) -> int:
    """A cached vector, scales included."""
    if dtype in ("nvfp4", "mxfp4", "int4"):
        return -(-elements // 2) + -(-elements // 16)
    return {"bf16": 2, "fp16": 2, "fp32": 4}.get(dtype, 1) * elements


def kept_bytes(kind: Json, side: Side, tokens: float) -> float:
    """Cache of one sequence in one layer on one GPU."""
    grows, fixed = cache(kind, side.t, side.precision["kv"], side.engine["spec_tokens"], tokens)
    return grows / side.engine["dcp"] + fixed


def cache(kind: Json, t: int, dtype: str, drafts: int, tokens: float) -> tuple[float, float]:
    """Bytes of keys, values and indexer keys of a sequence, and of its state."""
    m: dict[str, Any] | None = kind["mixer"]
    if not m:
        return 0.0, 0.0
    if m["kind"] in ("linear", "mamba2"):
        return 0.0, state_bytes(m, t, drafts)
    index = m["indexer"]["head_dim"] if m["indexer"] else 0
    index_bytes = index + index // 128 * 4
    if m["kind"] == "mla":
        latent = vector_bytes(m["kv_lora_rank"] + m["qk_rope_head_dim"], dtype)
        return tokens * (latent + index_bytes), 0.0
    if m["shares_kv"]:
        return 0.0, 0.0
    vectors = [m["head_dim"]] if m["shares_k_and_v"] else [m["head_dim"], m["v_head_dim"]]
    entry = max(m["kv_heads"] // t, 1) * sum(vector_bytes(n, dtype) for n in vectors)
    windowed = m["span"]["kind"] in ("window", "chunk")
    seen = min(tokens, m["span"]["tokens"]) if windowed else tokens
    ratio = m["compress"]["ratio"] if m["compress"] else 1
    pooled = entry if m["compress"] else 0
    return entry * seen + (pooled + index_bytes) / ratio * tokens, 0.0


def state_bytes(m: Json, t: int, drafts: int) -> float:
    """Recurrent state and the history of a convolution, with a step for each draft token."""
    if m["kind"] == "linear":
        state = m["v_heads"] * m["k_head_dim"] * m["v_head_dim"] // t
        channels = (2 * m["k_heads"] * m["k_head_dim"] + m["v_heads"] * m["v_head_dim"]) // t
    else:
        state = m["heads"] * m["head_dim"] * m["state"] // t
        groups = -(-m["groups"] // t) * t
        channels = (m["heads"] * m["head_dim"] + 2 * groups * m["state"]) // t
    steps = m["conv_kernel"] - 1 + drafts if m["conv_kernel"] else 0
    return float(int(state * m["state_bytes"]) + 2 * channels * steps)
