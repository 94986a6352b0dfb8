"""Kimi-Linear and Kimi-K3: delta attention with a decay per channel, and a few MLA layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.decoder import mtp_projection
from meshplan.hf.deepseek import mla
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields


def delta_attention(f: Fields, width: int) -> Part:
    """Kimi delta attention: q, k, v, a low-rank decay gate, a scalar beta, an output gate."""
    heads = f.whole(f.first("linear_num_heads", "num_heads"), high=MAX_HEADS)
    dim = f.whole(f.first("linear_head_dim", "head_dim"))
    kernel = f.whole("short_conv_kernel_size", "linear_conv_kernel_dim", high=64, default=4)
    full_gate = f.flag("use_full_rank_gate", default=False)
    inner = heads * dim
    low_rank = width * dim + dim * inner
    gate = width * inner if full_gate else low_rank
    return {
        "kind": "linear",
        "k_heads": heads,
        "v_heads": heads,
        "k_head_dim": dim,
        "v_head_dim": dim,
        "conv_kernel": kernel,
        "in_params": 3 * width * inner + low_rank + width * heads + gate,
        "out_params": inner * width,
        "other_params": 3 * inner * kernel + inner + heads + dim,
        "state_bytes": 4.0,
    }


def read(f: Fields, family: str) -> Draft:
    """Read Kimi-Linear or the language model of Kimi-K3."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    full_layers, table = _full_layers(f, count)
    full, linear = mla(f, width), delta_attention(table, width)
    residuals = f.whole("attn_res_block_size", low=0, high=MAX_LAYERS, default=0)
    extra = 0
    if residuals:
        extra = 4 * width
        f.assume(
            "attn_res_block_size: attention over earlier residuals is counted as one query and one "
            "norm of width H before each part of a layer"
        )
    feed = _feeds(f, width, count)
    layers = [
        blocks.layer(
            full if index + 1 in full_layers else linear,
            part,
            norms=2,
            norm_params=2 * width,
            extra=extra,
        )
        for index, part in enumerate(feed)
    ]
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    longest = parts.max_positions(f)
    if longest is None and f.has("model_max_length"):
        longest = f.whole("model_max_length", high=MAX_POSITIONS)
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=longest,
        mtp=[(layers[-1], mtp_projection(width))] * heads,
    )


def _full_layers(f: Fields, count: int) -> tuple[list[int], Fields]:
    """Numbers of the MLA layers, from 1, and the object that holds the linear layers' widths."""
    kinds = parts.layer_types(f, count)
    table = f.table("linear_attn_config")
    if table is None:
        if kinds is None:
            f.problem("linear_attn_config", "must be given", hint="it names the linear layers")
        kinds = kinds or []
        return [i + 1 for i, kind in enumerate(kinds) if kind != "linear_attention"], f
    full_layers = table.wholes("full_attn_layers", low=1, high=MAX_LAYERS) or []
    linear_layers = table.wholes("kda_layers", low=1, high=MAX_LAYERS)
    if linear_layers is not None:
        table.rule(
            sorted([*full_layers, *linear_layers]) == list(range(1, count + 1)),
            "kda_layers",
            f"must together with full_attn_layers name each of the {count} layers once",
        )
    return full_layers, table


def _feeds(f: Fields, width: int, count: int) -> list[Part]:
    sparse = parts.sparse_layers(f, count)
    experts = parts.moe(f, width, MoeTraits(router_bias=True))
    latent = f.whole("routed_expert_hidden_size", low=0, default=0)
    norm = f.flag("latent_moe_use_norm", default=False)
    if latent:
        experts["expert_hidden"] = latent
        experts["latent_params"] = 2 * width * latent + latent * norm
    plain = blocks.dense(f.whole("intermediate_size")) if not all(sparse) else experts
    return [experts if flag else plain for flag in sparse]
