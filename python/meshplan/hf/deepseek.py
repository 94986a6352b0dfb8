"""DeepSeek V2, V3, V3.2 and V4; GLM-5 and Kimi-K2, which have the same layers as V3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.decoder import mtp_projection
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS, MAX_POSITIONS
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields


def mla(f: Fields, width: int, *, span: Part = blocks.FULL, indexer: Part | None = None) -> Part:
    """Read multi-head latent attention."""
    heads = f.whole("num_attention_heads", high=MAX_HEADS)
    f.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    q_rank = f.whole("q_lora_rank", low=0, default=0)
    kv_rank = f.whole("kv_lora_rank")
    nope, rope = f.whole("qk_nope_head_dim"), f.whole("qk_rope_head_dim", low=0)
    value = f.whole("v_head_dim")
    bias = f.flag("attention_bias", default=False) * (q_rank + kv_rank + rope + width)
    return {
        "kind": "mla",
        "heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "span": span,
        "bias_params": bias,
        "head_params": q_rank + kv_rank,
        "output_gate": f.flag("mla_use_output_gate", default=False),
        "indexer": indexer,
    }


def lightning_indexer(f: Fields, width: int) -> tuple[Part | None, Part]:
    """Indexer of V3.2: queries from the compressed q, one key of its own, a weight per head."""
    if not f.has("index_topk"):
        f.ignore("index_topk", "index_n_heads", "index_head_dim")
        return None, blocks.FULL
    heads = f.whole("index_n_heads", high=MAX_HEADS)
    dim = f.whole("index_head_dim")
    rank = f.whole("q_lora_rank", default=width)
    params = rank * heads * dim + width * dim + 2 * dim + width * heads
    keys = f.whole("index_topk", high=MAX_POSITIONS)
    return blocks.indexer(heads, dim, params), blocks.top_k(keys)


def read(f: Fields, family: str) -> Draft:
    """V2, V3, V3.2, Kimi-K2, GLM-4.7-Flash and GLM-5."""
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    indexer, span = lightning_indexer(f, width)
    f.ignore("layer_types")  # every layer is of the one kind that the ranks below state
    mixer = mla(f, width, span=span, indexer=indexer)
    owns = _owns_indexer(f, count)
    borrowed = {**mixer, "indexer": None}
    experts, plain, sparse = _feeds(f, family, width, count)
    layers = []
    for own, flag in zip(owns, sparse, strict=True):
        feed = experts if flag else plain
        layers.append(
            blocks.layer(mixer if own else borrowed, feed, norms=2, norm_params=2 * width)
        )
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    last = blocks.layer(mixer, layers[-1]["feed_forward"], norms=2, norm_params=2 * width)
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        mtp=[(last, mtp_projection(width))] * heads,
    )


def _owns_indexer(f: Fields, count: int) -> list[bool]:
    """Say which layers have an indexer of their own; GLM-5.2 lets three in four borrow one."""
    kinds = f.names("indexer_types", count=count, known=("full", "shared"))
    every = f.whole("index_topk_freq", low=1, default=1)
    offset = f.whole("index_skip_topk_offset", low=0, default=2)
    f.ignore("index_topk_pattern", "index_share_for_mtp_iteration")
    if kinds is not None:
        return [kind == "full" for kind in kinds]
    return [max(index - offset + 1, 0) % every == 0 for index in range(count)]


def _feeds(
    f: Fields, family: str, width: int, count: int
) -> tuple[Part | None, Part | None, list[bool]]:
    experts = plain = None
    sparse = [False] * count
    if f.has(*parts.EXPERTS):
        sparse = parts.sparse_layers(f, count)
        bias = family not in ("deepseek_v2",) and f.text("topk_method", default="noaux_tc") == (
            "noaux_tc"
        )
        experts = parts.moe(f, width, MoeTraits(router_bias=bias))
    if not all(sparse):
        plain = blocks.dense(f.whole("intermediate_size"))
    else:
        f.ignore("intermediate_size")
    return experts, plain, sparse


def read_v4(f: Fields, family: str) -> Draft:
    """V4: shared-key attention over a window and pooled keys, hyper-connections, hash routing.

    Layers are of three kinds: a window only (ratio 0), a window and one pooled key per 4 tokens
    chosen by an indexer, and a window and one pooled key per 128 tokens.
    """
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    streams = f.whole("hc_mult", high=64, default=1)
    ratios = _ratios(f, count)
    moe = parts.moe(f, width, MoeTraits(router_bias=True))
    hashed_moe = {**moe, "router_params": moe["experts"] * width}
    hashed = f.whole("num_hash_layers", low=0, high=2048, default=0)
    routing = f.names("mlp_layer_types", count=count, known=("hash_moe", "moe"))
    if routing is not None:
        hashed = routing.count("hash_moe")
    mix = (2 + streams) * streams
    connection = mix * streams * width + mix + 3
    mixers = {ratio: _v4_attention(f, width, ratio) for ratio in dict.fromkeys([*ratios, 0])}
    layers = [
        blocks.layer(
            mixers[ratio],
            hashed_moe if index < hashed else moe,
            norms=2,
            norm_params=2 * width,
            extra=2 * connection,
        )
        for index, ratio in enumerate(ratios)
    ]
    head = streams * streams * width + streams + 1
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    extra = blocks.layer(mixers[0], moe, norms=2, norm_params=2 * width, extra=2 * connection)
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        head_extra=head,
        mtp=[(extra, mtp_projection(width) + head)] * heads,
        streams=streams,
    )


V4_LAYERS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
"""Kind of layer → tokens that it pools into one key (0: none)."""


def _ratios(f: Fields, count: int) -> list[int]:
    """Tokens that each layer pools into one key; new configs name kinds of layers instead."""
    ratios = f.wholes("compress_ratios", count=count, high=MAX_POSITIONS)
    kinds = f.names("layer_types", count=count, known=V4_LAYERS)
    rates = f.table("compress_rates")
    if ratios is not None:
        return ratios
    if kinds is None:
        f.problem("compress_ratios", "must be given, one entry for each layer")
        return [0] * count
    found = dict(V4_LAYERS)
    for name in list(V4_LAYERS)[1:]:
        if rates is not None:
            found[name] = rates.whole(name, high=MAX_POSITIONS, default=V4_LAYERS[name])
    return [found[kind] for kind in kinds]


def _v4_attention(f: Fields, width: int, ratio: int) -> Part:
    heads, dim = f.whole("num_attention_heads", high=MAX_HEADS), f.whole("head_dim")
    f.ignore("num_key_value_heads", "qk_rope_head_dim", "attention_bias")
    q_rank, o_rank = f.whole("q_lora_rank"), f.whole("o_lora_rank")
    groups = f.whole("o_groups", high=MAX_HEADS)
    f.rule(heads % groups == 0, "o_groups", f"must divide the {heads} query heads")
    selected = f.whole("index_topk", low=0, high=MAX_POSITIONS, default=0)
    i_heads = f.whole("index_n_heads", low=0, high=MAX_HEADS, default=0)
    i_dim = f.whole("index_head_dim", low=0, default=0)
    indexer = compress = None
    # Overlapping windows pool two series (a factor 2); only they have an indexer.
    overlap = 0 < ratio < 16
    if ratio:
        series = 2 if overlap else 1
        pooling = series * dim * (2 * width + ratio) + dim
        top = selected if overlap else 0
        compress = {"ratio": ratio, "top_k": top, "params": pooling}
    if overlap:
        params = 2 * i_dim * (2 * width + ratio) + i_dim + q_rank * i_heads * i_dim
        indexer = blocks.indexer(i_heads, i_dim, params + width * i_heads)
    return blocks.attention(
        heads,
        1,
        dim,
        span=blocks.window(f.whole("sliding_window", high=MAX_POSITIONS)),
        head_params=q_rank + dim + heads,
        shares_k_and_v=True,
        indexer=indexer,
        q_lora_rank=q_rank,
        o_lora_rank=o_rank,
        o_groups=groups,
        compress=compress,
    )
