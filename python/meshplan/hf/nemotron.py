"""Nemotron-H and Nemotron 3 (one part per block), and the searched Llama-Nemotron models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.decoder import mtp_projection
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS
from meshplan.hf.hybrids import state_bytes
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letter of ``hybrid_override_pattern`` → block."""


def hybrid(f: Fields, family: str) -> Draft:
    """Nemotron-H: every block is one part under one norm."""
    del family
    width, vocab = parts.hidden(f), parts.vocab(f)
    kinds = _pattern(f, "layers_block_type", "hybrid_override_pattern")
    if kinds is None:
        f.problem("hybrid_override_pattern", "must be given, or layers_block_type")
        kinds = ["attention"]
    if f.has("num_hidden_layers"):
        count = parts.layer_count(f)
        f.rule(
            count == len(kinds),
            "num_hidden_layers",
            f"must equal the {len(kinds)} blocks of the pattern",
        )
    f.ignore("num_hidden_layers", "n_layers", "n_layer", "num_layers")
    mtp = _pattern(f, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or []
    made = {kind: _block(f, kind, width) for kind in dict.fromkeys([*kinds, *mtp])}
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    _ignore_unused(f)
    return Draft(
        width,
        vocab,
        [made[kind] for kind in kinds],
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        mtp=_mtp(mtp, made, width) * heads,
    )


def _pattern(f: Fields, listed: str, lettered: str) -> list[str] | None:
    kinds = f.names(listed, known=tuple(LETTERS.values()))
    text = f.text(lettered)
    if kinds is not None:
        f.rule(len(kinds) <= MAX_LAYERS, listed, f"must have at most {MAX_LAYERS} blocks")
        return kinds[:MAX_LAYERS]
    if not text:
        return None
    wrong = sorted(set(text) - set(LETTERS))
    if wrong or len(text) > MAX_LAYERS:
        f.problem(
            lettered,
            f"must be at most {MAX_LAYERS} of the letters {' '.join(LETTERS)}",
            hint="M is Mamba-2, * attention, - an MLP, E experts",
        )
        return ["attention"]
    return [LETTERS[letter] for letter in text]


def _block(f: Fields, kind: str, width: int) -> Part:
    if kind == "mamba":
        return blocks.layer(_mamba2(f, width), None, norms=1, norm_params=width)
    if kind == "attention":
        h = parts.heads(f, width)
        return blocks.layer(blocks.attention(h.q, h.kv, h.dim), None, norms=1, norm_params=width)
    bias = f.flag("mlp_bias", default=False)
    if kind == "mlp":
        inner = f.whole("intermediate_size")
        plain = blocks.dense(inner, gated=False, bias=bias * (inner + width))
        return blocks.layer(None, plain, norms=1, norm_params=width)
    latent = f.whole("moe_latent_size", low=0, default=0)
    shared = f.whole("moe_shared_expert_intermediate_size", low=0, default=0)
    experts = parts.moe(
        f,
        width,
        MoeTraits(gated=False, router_bias=True),
        expert_hidden=latent or width,
        latent_params=2 * width * latent + bias * (width + latent) * (latent > 0),
    )
    if shared:
        experts["shared_intermediate"] = shared
    return blocks.layer(None, experts, norms=1, norm_params=width)


def _mamba2(f: Fields, width: int) -> Part:
    heads = f.whole("mamba_num_heads", high=MAX_HEADS)
    dim = f.whole("mamba_head_dim")
    state, groups = f.whole("ssm_state_size"), f.whole("n_groups", high=MAX_HEADS)
    kernel = f.whole("conv_kernel", high=64)
    inner = heads * dim
    channels = inner + 2 * groups * state
    f.rule(heads % groups == 0, "n_groups", f"must divide mamba_num_heads = {heads}")
    bias = f.flag("use_bias", "mamba_proj_bias", default=False)
    conv_bias = f.flag("use_conv_bias", default=True)
    projections = inner + channels + heads + width
    other = channels * (kernel + conv_bias) + 3 * heads + inner + bias * projections
    return {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": dim,
        "state": state,
        "groups": groups,
        "conv_kernel": kernel,
        "other_params": other,
        "state_bytes": state_bytes(f),
    }


def _ignore_unused(f: Fields) -> None:
    """Count the widths of parts that the pattern does not use as understood."""
    f.ignore(
        "intermediate_size", "moe_intermediate_size", "n_routed_experts", "n_shared_experts",
        "num_experts_per_tok", "moe_latent_size", "moe_shared_expert_intermediate_size",
        "n_group", "topk_group", "mlp_bias", "use_bias", "mamba_proj_bias", "use_conv_bias",
        "attention_bias", "sliding_window", "expand", "time_step_rank", "ssm_state_size",
        "mamba_num_heads", "mamba_head_dim", "conv_kernel", "n_groups", "num_attention_heads",
        "num_key_value_heads", "head_dim", "attention_head_dim", "mamba_ssm_cache_dtype",
        "mamba_ssm_dtype",
    )  # fmt: skip


def _mtp(kinds: list[str], made: dict[str, Part], width: int) -> list[tuple[Part, int]]:
    """One head: its mixer block and its feed-forward block seen as one layer."""
    if not kinds:
        return []
    chosen = [made[kind] for kind in kinds]
    mixer = next((part["mixer"] for part in chosen if part["mixer"]), None)
    feed = next((part["feed_forward"] for part in chosen if part["feed_forward"]), None)
    layer = blocks.layer(mixer, feed, norms=len(chosen), norm_params=len(chosen) * width)
    return [(layer, mtp_projection(width))]


def searched(f: Fields, family: str) -> Draft:
    """Llama-Nemotron (``nemotron-nas``): ``block_configs`` says what each block keeps."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    heads = f.whole("num_attention_heads", high=MAX_HEADS)
    f.ignore("num_key_value_heads", "intermediate_size")
    dim = f.whole("head_dim", default=max(1, width // heads))
    bias = f.flag("attention_bias", default=False)
    configs = f.items("block_configs", count=count)
    if configs is None:
        if not f.has("block_configs"):
            f.problem("block_configs", "must be given, one entry for each layer")
        configs = [{}] * count
    layers = []
    for index, config in enumerate(configs):
        view = type(f)({"block": config}, f"{f.prefix}block_configs[{index}].", f).table("block")
        if view is None:
            continue
        mixer = _searched_attention(view, width, parts.Heads(heads, heads, dim), bias)
        feed = _searched_ffn(view, width)
        norms = (mixer is not None) + (feed is not None)
        layers.append(blocks.layer(mixer, feed, norms=norms, norm_params=norms * width))
    return Draft(
        width,
        vocab,
        layers or [blocks.layer(None, None, norms=0, norm_params=0)],
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
    )


def _searched_attention(f: Fields, width: int, h: parts.Heads, bias: bool) -> Part | None:
    attention = f.table("attention")
    if attention is None or attention.flag("no_op", default=False):
        return None
    if attention.flag("replace_with_linear", default=False):
        # A square matrix in place of attention: no keys, no state.
        return {
            "kind": "linear", "k_heads": 0, "v_heads": 0, "k_head_dim": 0, "v_head_dim": 0,
            "conv_kernel": 0, "in_params": width * width, "out_params": 0, "other_params": 0,
            "state_bytes": 2.0,
        }  # fmt: skip
    group = attention.whole("n_heads_in_group", high=MAX_HEADS)
    attention.rule(h.q % group == 0, "n_heads_in_group", f"must divide the {h.q} query heads")
    kv = max(1, h.q // group)
    tokens = attention.whole("window_length", low=0, high=MAX_POSITIONS, default=0)
    return blocks.attention(
        h.q,
        kv,
        h.dim,
        span=blocks.window(tokens) if tokens else blocks.FULL,
        bias=bias * ((h.q + 2 * kv) * h.dim + width),
    )


def _searched_ffn(f: Fields, width: int) -> Part | None:
    ffn = f.table("ffn")
    if ffn is None or ffn.flag("no_op", default=False):
        return None
    if ffn.flag("replace_with_linear", default=False):
        return blocks.dense(max(1, width // 2), gated=False)
    if ffn.has("intermediate_size"):
        return blocks.dense(ffn.whole("intermediate_size"))
    factor = ffn.real("ffn_mult", low=0.001, high=64.0, default=0.0)
    ffn.rule(factor > 0, "ffn_mult", "must be given")
    inner = int(2 * factor * width / 3)
    return blocks.dense(max(256, -(-inner // 256) * 256))
