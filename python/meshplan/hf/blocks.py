"""The parts of a decoder layer, as the canonical model states them.

Each function returns the JSON object of one type of the core's ``model`` room. The parameter
arithmetic of whole layers is there; only what a config states indirectly (biases, norms,
convolutions, indexers) is counted here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Part: TypeAlias = dict[str, Any]
"""A JSON object of the canonical model."""

FULL: Part = {"kind": "full"}


def window(tokens: int) -> Part:
    """Span of the last ``tokens`` keys."""
    return {"kind": "window", "tokens": tokens}


def chunk(tokens: int) -> Part:
    """Span of the keys in a query's own chunk."""
    return {"kind": "chunk", "tokens": tokens}


def top_k(tokens: int) -> Part:
    """Span of the keys that an indexer selects."""
    return {"kind": "top_k", "tokens": tokens}


def indexer(heads: int, head_dim: int, params: int) -> Part:
    """Sparse-attention indexer."""
    return {"heads": heads, "head_dim": head_dim, "params": params}


def attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    v_head_dim: int = 0,
    span: Part = FULL,
    bias: int = 0,
    head_params: int = 0,
    **more: Any,
) -> Part:
    """Softmax attention; ``more`` takes the rarer fields of ``Attention`` by name."""
    part = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim or head_dim,
        "span": span,
        "bias_params": bias,
        "head_params": head_params,
        "output_gate": False,
        "shares_kv": False,
        "shares_k_and_v": False,
        "indexer": None,
        "q_lora_rank": 0,
        "o_lora_rank": 0,
        "o_groups": 0,
        "compress": None,
    }
    part.update(more)
    return part


def dense(intermediate: int, *, gated: bool = True, bias: int = 0) -> Part:
    """Dense MLP."""
    return {"kind": "dense", "intermediate": intermediate, "gated": gated, "bias_params": bias}


def moe(experts: int, k: int, intermediate: int, hidden: int, *, router: int, **more: Any) -> Part:
    """Mixture of experts; ``more`` takes the rarer fields of ``Moe`` by name."""
    part = {
        "kind": "moe",
        "experts": experts,
        "top_k": k,
        "intermediate": intermediate,
        "expert_hidden": hidden,
        "gated": True,
        "expert_bias_params": 0,
        "shared_intermediate": 0,
        "latent_params": 0,
        "router_params": router,
        "groups": 1,
        "top_groups": 1,
    }
    part.update(more)
    return part


def gated_delta_net(
    hidden: int, k_heads: int, v_heads: int, k_dim: int, v_dim: int, kernel: int, state: float
) -> Part:
    """Gated DeltaNet of Qwen3-Next: q, k, v and gate z projections, a and b per value head."""
    keys, values = k_heads * k_dim, v_heads * v_dim
    return {
        "kind": "linear",
        "k_heads": k_heads,
        "v_heads": v_heads,
        "k_head_dim": k_dim,
        "v_head_dim": v_dim,
        "conv_kernel": kernel,
        "in_params": hidden * (2 * keys + 2 * values + 2 * v_heads),
        "out_params": values * hidden,
        "other_params": kernel * (2 * keys + values) + 2 * v_heads + v_dim,
        "state_bytes": state,
    }


def layer(
    mixer: Part | None,
    feed_forward: Part | None,
    *,
    norms: int,
    norm_params: int,
    extra: int = 0,
) -> Part:
    """One decoder layer."""
    return {
        "name": layer_name(mixer, feed_forward),
        "mixer": mixer,
        "feed_forward": feed_forward,
        "norms": norms,
        "norm_params": norm_params,
        "extra_params": extra,
    }


def layer_name(mixer: Part | None, feed_forward: Part | None) -> str:
    """Name a layer by its parts, such as ``gqa-w1024+moe``."""
    parts = []
    if mixer is not None:
        parts.append(_mixer_name(mixer))
    if feed_forward is not None:
        parts.append("moe" if feed_forward["kind"] == "moe" else "dense")
    return "+".join(parts) or "identity"


def _mixer_name(mixer: Part) -> str:
    kind = str(mixer["kind"])
    if kind == "attention":
        heads, kv_heads = mixer["heads"], mixer["kv_heads"]
        kind = "mha" if heads == kv_heads else "mqa" if kv_heads == 1 else "gqa"
        if mixer["compress"]:
            kind += f"-c{mixer['compress']['ratio']}"
        if mixer["shares_kv"]:
            kind += "-shared"
    span = mixer.get("span", FULL)
    letter = {"window": "w", "chunk": "chunk", "top_k": "top"}.get(span["kind"])
    return f"{kind}-{letter}{span['tokens']}" if letter else kind
