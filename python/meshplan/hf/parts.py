"""Rules that many families share: widths, heads, which layers are sparse, which keys are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from meshplan.hf import blocks
from meshplan.hf.fields import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    Fields,
)

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part

Norm: TypeAlias = Literal["rms", "layer", "none"]
"""RMS norm (one weight), layer norm (weight and bias), or a norm without parameters."""

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_topk",
    "moe_k",
)
LAYER_TYPES = (
    "full_attention",
    "attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)


def norm_params(norm: Norm, width: int) -> int:
    """Parameters of one norm."""
    return {"rms": width, "layer": 2 * width, "none": 0}[norm]


def hidden(f: Fields) -> int:
    """Hidden size H."""
    return f.whole("hidden_size", "n_embd", "n_embed", "d_model")


def vocab(f: Fields) -> int:
    """Vocabulary V."""
    return f.whole("vocab_size", high=MAX_VOCAB)


def layer_count(f: Fields) -> int:
    """Decoder layers L."""
    return f.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers", high=MAX_LAYERS)


def max_positions(f: Fields) -> int | None:
    """Longest context that the config states."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    if not f.has(*names):
        f.ignore(*names)
        return None
    return f.whole(f.first(*names), high=MAX_POSITIONS)


@dataclass(frozen=True)
class Heads:
    """Query heads, key/value heads and their width."""

    q: int
    kv: int
    dim: int


def heads(f: Fields, width: int) -> Heads:
    """Read attention heads and check that they divide."""
    names = ("num_attention_heads", "n_head", "n_heads")
    q = f.whole(*names, high=MAX_HEADS)
    name = f.first(*names)
    kv_names = ("num_key_value_heads", "num_kv_heads", "num_attention_groups")
    kv = f.whole(*kv_names, high=MAX_HEADS, default=q)
    f.rule(
        q % kv == 0,
        f.first(*kv_names),
        f"must divide {name} = {q}",
        hint="each key/value head serves the same number of query heads",
        of=name,
    )
    if f.has("head_dim", "attention_head_dim"):
        return Heads(q, kv, f.whole("head_dim", "attention_head_dim"))
    f.ignore("head_dim", "attention_head_dim")
    f.rule(
        width % q == 0,
        name,
        f"must divide the hidden size {width} where head_dim is not given",
        hint="give head_dim, or a number of heads that divides the hidden size",
        of="hidden_size",
    )
    return Heads(q, kv, max(1, width // q))


def sparse_layers(f: Fields, count: int) -> list[bool]:
    """Say for each layer whether its feed-forward is a mixture of experts."""
    kinds = f.names("mlp_layer_types", count=count, known=("sparse", "dense"))
    first = f.whole("first_k_dense_replace", low=0, high=MAX_LAYERS, default=0)
    step = f.whole("decoder_sparse_step", "interleave_moe_layer_step", low=0, default=1)
    only = f.wholes("mlp_only_layers") or []
    listed = f.wholes("moe_layers")
    text = f.text("moe_layers_enum")
    _, freq = f.get("moe_layer_freq")
    if kinds is not None:
        f.ignore("moe_layer_freq")
        return [kind == "sparse" for kind in kinds]
    if isinstance(freq, list):
        flags = f.wholes("moe_layer_freq", count=count, high=1) or [1] * count
        return [bool(flag) for flag in flags]
    every = f.whole("moe_layer_freq", low=1, default=1)
    if text:
        listed = _numbers(f, "moe_layers_enum", text)
    if listed is not None:
        return [index in listed for index in range(count)]
    return [
        index >= first
        and index % every == 0
        and index not in only
        and step > 0
        and (index + 1) % step == 0
        for index in range(count)
    ]


def _numbers(f: Fields, name: str, text: str) -> list[int]:
    entries = [entry.strip() for entry in text.split(",")]
    if len(text) > 20_000 or not all(entry.isascii() and entry.isdigit() for entry in entries):
        f.problem(name, "must be layer numbers with commas between")
        return []
    return [int(entry[:9]) for entry in entries]


def layer_types(f: Fields, count: int) -> list[str] | None:
    """Read ``layer_types``."""
    return f.names("layer_types", count=count, known=LAYER_TYPES)


def windows(f: Fields, count: int, *, pattern: int = 0, always: bool = False) -> list[Part]:
    """Span of each layer from ``layer_types``, ``sliding_window`` and a family's pattern.

    Parameters
    ----------
    pattern
        Every how many layers one sees all keys, where the config does not say (0: no pattern).
    always
        A ``sliding_window`` counts for every layer.
    """
    kinds = layer_types(f, count)
    tokens = f.whole("sliding_window", "sliding_window_size", high=MAX_POSITIONS, default=0, low=0)
    use = f.flag("use_sliding_window", default=always or pattern > 0 or kinds is not None)
    f.ignore("max_window_layers")
    named = f.first("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
    if isinstance(f.data.get(named), int):
        pattern = f.whole(named, high=MAX_LAYERS, default=pattern)
    elif f.has(named):
        f.rule(kinds is not None, named, "must be a whole number, or layer_types be given")
    chunk = f.whole("attention_chunk_size", high=MAX_POSITIONS, low=0, default=0)
    longest = max_positions(f)
    if kinds is not None:
        return [_span(f, kind, tokens, chunk) for kind in kinds]
    if not use or tokens == 0 or (longest is not None and tokens >= longest):
        return [blocks.FULL] * count
    if pattern:
        return [
            blocks.FULL if (index + 1) % pattern == 0 else blocks.window(tokens)
            for index in range(count)
        ]
    first = 0
    if not always:
        first = f.whole("max_window_layers", low=0, high=MAX_LAYERS, default=0)
    return [blocks.FULL if index < first else blocks.window(tokens) for index in range(count)]


def _span(f: Fields, kind: str, tokens: int, chunk: int) -> Part:
    if kind == "sliding_attention":
        f.rule(tokens > 0, "sliding_window", "must be given where layer_types names sliding layers")
        return blocks.window(max(1, tokens))
    if kind == "chunked_attention":
        f.rule(chunk > 0, "attention_chunk_size", "must be given where layers are chunked")
        return blocks.chunk(max(1, chunk))
    return blocks.FULL


@dataclass(frozen=True)
class MoeTraits:
    """How a family states its experts."""

    intermediate: str = "moe_intermediate_size"
    """Field with the width of a routed expert."""
    gated: bool = True
    router_bias: bool = False
    """The router has a bias or a score-correction bias of one entry per expert."""
    expert_bias: bool = False
    """Experts have biases."""
    shared_gate: bool = False
    """The shared expert is scaled by a learned gate of width H."""
    shared_default: int = 0
    """Shared experts where the config does not say."""


SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
    "share_expert_dims",
)


def shared_width(f: Fields, width: int, default: int = 0) -> int:
    """Width of all shared experts together."""
    number = f.whole(
        "n_shared_experts", "num_shared_experts", low=0, high=MAX_EXPERTS, default=default
    )
    if f.has(*SHARED_WIDTHS):
        f.ignore("shared_intermediate_size")
        return f.whole(*SHARED_WIDTHS, low=0)
    f.ignore(*SHARED_WIDTHS)
    if f.has("shared_intermediate_size"):
        return f.whole("shared_intermediate_size", low=0)
    f.ignore("shared_intermediate_size")
    return number * width


def moe(f: Fields, width: int, traits: MoeTraits, **more: Any) -> Part:
    """Read a mixture of experts."""
    experts = f.whole(*EXPERTS, high=MAX_EXPERTS)
    k = f.whole(*TOP_K, high=MAX_EXPERTS)
    f.rule(k <= experts, f.first(*TOP_K), f"must not exceed the {experts} experts", of=EXPERTS[0])
    inner = f.whole(f.first(traits.intermediate, "moe_intermediate_size", "intermediate_size"))
    shared = shared_width(f, inner, traits.shared_default)
    groups = f.whole("n_group", "num_expert_group", high=MAX_EXPERTS, default=1)
    chosen = f.whole("topk_group", high=MAX_EXPERTS, default=1)
    f.rule(experts % groups == 0, "n_group", f"must divide the {experts} experts")
    f.rule(chosen <= groups, "topk_group", f"must not exceed n_group = {groups}", of="n_group")
    router = experts * width + (experts if traits.router_bias else 0)
    router += width if traits.shared_gate and shared else 0
    matrices = 2 if traits.gated else 1
    expert_bias = matrices * inner + more.get("expert_hidden", width) if traits.expert_bias else 0
    part = blocks.moe(
        experts,
        k,
        inner,
        width,
        router=router,
        gated=traits.gated,
        expert_bias_params=expert_bias,
        shared_intermediate=shared,
        groups=groups,
        top_groups=chosen,
    )
    part.update(more)
    return part
