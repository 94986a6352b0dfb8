"""The GPT generation with its own spellings: BLOOM, OPT, Falcon, MPT, GPT-J, StarCoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields


def bloom(f: Fields, family: str) -> Draft:
    """BLOOM: ALiBi, biases everywhere, and a layer norm on the embedding."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    inner = f.whole("n_inner", "intermediate_size", default=4 * width)
    layer = blocks.layer(
        blocks.attention(h.q, h.kv, h.dim, bias=(h.q + 2 * h.kv) * h.dim + width),
        blocks.dense(inner, gated=False, bias=inner + width),
        norms=2,
        norm_params=4 * width,
    )
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=2 * width,
        tied=f.flag("tie_word_embeddings", default=True),
        max_positions=parts.max_positions(f),
        embedding_extra=2 * width,
    )


def opt(f: Fields, family: str) -> Draft:
    """OPT: learned positions with two rows more, perhaps a narrower word embedding."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    inner = f.whole("ffn_dim", default=4 * width)
    bias = f.flag("enable_bias", default=True)
    affine = 2 * width * f.flag("layer_norm_elementwise_affine", default=True)
    before = f.flag("do_layer_norm_before", default=True)
    drop_final = f.flag("_remove_final_layer_norm", default=False)
    layer = blocks.layer(
        blocks.attention(h.q, h.kv, h.dim, bias=bias * ((h.q + 2 * h.kv) * h.dim + width)),
        blocks.dense(inner, gated=False, bias=bias * (inner + width)),
        norms=2,
        norm_params=2 * affine,
    )
    embed = f.whole("word_embed_proj_dim", default=width)
    longest = parts.max_positions(f)
    f.rule(longest is not None, "max_position_embeddings", "must be given: positions are learned")
    # A narrower word table has a projection to H behind it, and the head one from H before it.
    projection = embed * width if embed != width else 0
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=affine if before and not drop_final else 0,
        tied=f.flag("tie_word_embeddings", default=True),
        positions=(longest or 0) + 2,
        max_positions=longest,
        embedding_extra=projection,
        head_extra=projection,
        embedding_width=embed,
    )


def falcon(f: Fields, family: str) -> Draft:
    """Falcon: attention and MLP in parallel under one norm or two."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    new = f.flag("new_decoder_architecture", default=False)
    multi_query = f.flag("multi_query", default=True)
    parallel = f.flag("parallel_attn", default=True)
    bias = f.flag("bias", default=False)
    if not new:
        # The old architecture reads no key/value heads from the config.
        f.ignore("num_kv_heads", "n_head_kv")
        f = _without(f, "num_kv_heads", "n_head_kv")
    elif f.has("n_head_kv"):
        f.default("num_kv_heads", f.whole("n_head_kv", high=MAX_HEADS))
    h = parts.heads(f, width)
    kv = h.kv if new else 1 if multi_query else h.q
    inner = f.whole("ffn_hidden_size", default=4 * width)
    norms = 1 if parallel else 2
    if new:
        norms = f.whole("num_ln_in_parallel_attn", low=1, high=2, default=2)
    layer = blocks.layer(
        blocks.attention(h.q, kv, h.dim, bias=bias * ((h.q + 2 * kv) * h.dim + width)),
        blocks.dense(inner, gated=False, bias=bias * (inner + width)),
        norms=norms,
        norm_params=norms * 2 * width,
    )
    if not f.has("tie_word_embeddings"):
        f.assume(
            "tie_word_embeddings is not given: Falcon checkpoints store the head apart, "
            "so it is counted apart"
        )
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=2 * width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
    )


def _without(f: Fields, *names: str) -> Fields:
    """View of the same object in which some fields are null."""
    view = type(f)({k: v for k, v in f.data.items() if k not in names}, f.prefix, f)
    view.read, view.children = f.read, f.children
    return view


def mpt(f: Fields, family: str) -> Draft:
    """MPT: learned positions or ALiBi, grouped or full heads, usually no biases."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    attn = f.table("attn_config")
    alibi, kind, kv = True, "multihead_attention", 0
    qk_norm = False
    if attn is not None:
        alibi = attn.flag("alibi", default=False)
        kind = attn.text("attn_type", default=kind)
        kv = attn.whole("kv_n_heads", low=0, high=MAX_HEADS, default=0)
        qk_norm = attn.flag("qk_ln", default=False)
        known = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
        attn.rule(kind in known, "attn_type", f"must be one of {', '.join(known)}")
    h = parts.heads(f, width)
    kv = 1 if kind == "multiquery_attention" else kv or h.q
    f.rule(h.q % kv == 0, "n_heads", f"must be a multiple of attn_config.kv_n_heads = {kv}")
    bias = not f.flag("no_bias", default=True)
    inner = f.whole("expansion_ratio", low=1, high=64, default=4) * width
    norm = 2 * width if bias else width
    layer = blocks.layer(
        blocks.attention(
            h.q,
            kv,
            h.dim,
            bias=bias * ((h.q + 2 * kv) * h.dim + width),
            head_params=qk_norm * (h.q + kv) * h.dim * (2 if bias else 1),
        ),
        blocks.dense(inner, gated=False, bias=bias * (inner + width)),
        norms=2,
        norm_params=2 * norm,
    )
    longest = parts.max_positions(f)
    learned = f.flag("learned_pos_emb", default=True) and not alibi
    f.rule(
        not learned or longest is not None, "max_seq_len", "must be given: positions are learned"
    )
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=norm,
        tied=f.flag("tie_word_embeddings", default=True),
        positions=(longest or 0) if learned else 0,
        max_positions=longest,
    )


def gpt_bigcode(f: Fields, family: str) -> Draft:
    """StarCoder and SantaCoder: GPT-2 with one key/value head."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    kv = 1 if f.flag("multi_query", default=True) else h.q
    inner = f.whole("n_inner", default=4 * width)
    layer = blocks.layer(
        blocks.attention(h.q, kv, h.dim, bias=(h.q + 2 * kv) * h.dim + width),
        blocks.dense(inner, gated=False, bias=inner + width),
        norms=2,
        norm_params=4 * width,
    )
    longest = parts.max_positions(f)
    f.rule(longest is not None, "n_positions", "must be given: positions are learned")
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=2 * width,
        tied=f.flag("tie_word_embeddings", default=True),
        positions=longest or 0,
        max_positions=longest,
    )


def gptj(f: Fields, family: str) -> Draft:
    """GPT-J: parallel residual under one norm, a head with a bias."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    inner = f.whole("n_inner", default=4 * width)
    layer: Part = blocks.layer(
        blocks.attention(h.q, h.kv, h.dim),
        blocks.dense(inner, gated=False, bias=inner + width),
        norms=1,
        norm_params=2 * width,
    )
    f.ignore("rotary_dim")
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=2 * width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        head_extra=vocab,
    )
