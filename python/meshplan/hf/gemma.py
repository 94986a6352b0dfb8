"""Gemma 3n and Gemma 4: per-layer embeddings, shared keys and values, two widths of head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS, MAX_LAYERS, MAX_VOCAB
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields


def gemma4(f: Fields, family: str) -> Draft:
    """Gemma 4: full layers have wider heads, fewer of them, and may use their keys as values."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    spans = parts.windows(f, count, pattern=6)
    shared = f.whole("num_kv_shared_layers", low=0, high=MAX_LAYERS, default=0)
    f.rule(shared <= count, "num_kv_shared_layers", f"must not exceed the {count} layers")
    double = f.flag("use_double_wide_mlp", default=False)
    sparse = f.flag("enable_moe_block", default=False)
    per_layer = f.whole("hidden_size_per_layer_input", low=0, default=256)
    inner = f.whole("intermediate_size")
    experts = _experts(f, width, inner) if sparse else None
    if experts is None:
        f.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    f.ignore("expert_intermediate_size", "use_bidirectional_attention")
    norms = 4 + 3 * sparse + (per_layer > 0)
    # The per-layer input is gated down to its width and projected back; one scalar per layer.
    extra = 2 * width * per_layer + 1
    layers = []
    for index, span in enumerate(spans):
        borrows = index >= count - shared
        mixer = _attention4(f, width, span, borrows)
        plain = blocks.dense(inner * (2 if double and borrows else 1))
        layers.append(
            blocks.layer(
                mixer,
                experts or plain,
                norms=norms,
                norm_params=norms * width,
                extra=extra,
            )
        )
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=True),
        max_positions=parts.max_positions(f),
        embedding_extra=_per_layer_table(f, width, vocab, count, per_layer),
    )


def _experts(f: Fields, width: int, inner: int) -> Part:
    """Experts beside an MLP that every token passes; the router has a scale for each expert."""
    part = parts.moe(f, width, MoeTraits())
    part["router_params"] += width + part["experts"]
    part["shared_intermediate"] = inner
    return part


def _attention4(f: Fields, width: int, span: Part, borrows: bool) -> Part:
    h = parts.heads(f, width)
    dim, kv, equal = h.dim, h.kv, False
    wide, global_kv = _wide_heads(f, h)
    k_is_v = f.flag("attention_k_eq_v", default=False)
    if span["kind"] == "full":
        dim, equal = wide, k_is_v
        kv = global_kv if k_is_v else h.kv
    f.rule(
        h.q % kv == 0,
        "num_global_key_value_heads",
        f"must divide num_attention_heads = {h.q}",
        of="num_attention_heads",
    )
    bias = f.flag("attention_bias", default=False)
    keys = 0 if borrows else kv * dim * (1 if equal else 2)
    return blocks.attention(
        h.q,
        kv,
        dim,
        span=span,
        bias=bias * (h.q * dim + keys + width),
        head_params=dim if borrows else 2 * dim,
        shares_kv=borrows,
        shares_k_and_v=equal,
    )


def _wide_heads(f: Fields, h: parts.Heads) -> tuple[int, int]:
    """Width and number of key/value heads of the full layers.

    Old configs name them; new ones list them for each full layer in ``per_layer_config``.
    """
    wide = f.whole("global_head_dim", default=512)
    kv = f.whole("num_global_key_value_heads", high=MAX_HEADS, default=h.kv)
    table = f.table("per_layer_config")
    if table is None:
        return wide, kv
    found = {(wide, kv)} if not table.data else set()
    for name in list(table.data)[:MAX_LAYERS]:
        entry = table.table(name)
        if entry is not None:
            found.add(
                (
                    entry.whole("head_dim", default=wide),
                    entry.whole("num_key_value_heads", high=MAX_HEADS, default=kv),
                )
            )
    f.rule(len(found) == 1, "per_layer_config", "must say the same for each full layer")
    return min(found, default=(wide, kv))


def _per_layer_table(f: Fields, width: int, vocab: int, count: int, per_layer: int) -> int:
    """Parameters of the per-layer embedding: table, projection from H, and its norm."""
    rows = f.whole("vocab_size_per_layer_input", high=MAX_VOCAB, default=vocab)
    if per_layer == 0:
        return 0
    return (rows + width) * count * per_layer + per_layer


def gemma3n(f: Fields, family: str) -> Draft:
    """Gemma 3n: four copies of the residual stream (AltUp), a low-rank bypass, shared keys."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    spans = parts.windows(f, count, pattern=5)
    shared = f.whole("num_kv_shared_layers", low=0, high=MAX_LAYERS, default=15)
    f.rule(shared <= count, "num_kv_shared_layers", f"must not exceed the {count} layers")
    copies = f.whole("altup_num_inputs", high=64, default=4)
    rank = f.whole("laurel_rank", default=64)
    per_layer = f.whole("hidden_size_per_layer_input", default=256)
    _, given = f.get("intermediate_size")
    if isinstance(given, list):
        inner = f.wholes("intermediate_size", count=count, low=1) or [1] * count
    else:
        inner = [f.whole("intermediate_size")] * count
    f.ignore("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip")
    f.ignore("altup_correct_scale", "altup_lr_multiplier")
    bias = f.flag("attention_bias", default=False)
    laurel = 2 * width * rank + width
    altup = width + copies**2 + copies**3 + copies * width + width
    extra = laurel + altup + 2 * width * per_layer
    layers = []
    for index, span in enumerate(spans):
        borrows = index >= count - shared
        mixer = blocks.attention(
            h.q,
            h.kv,
            h.dim,
            span=span,
            bias=bias * ((h.q + (0 if borrows else 2 * h.kv)) * h.dim + width),
            head_params=h.dim if borrows else 2 * h.dim,
            shares_kv=borrows,
        )
        layers.append(
            blocks.layer(
                mixer, blocks.dense(inner[index]), norms=5, norm_params=5 * width, extra=extra
            )
        )
    projections = (copies - 1) * width * width
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=True),
        max_positions=parts.max_positions(f),
        embedding_extra=projections + _per_layer_table(f, width, vocab, count, per_layer),
        head_extra=projections,
        streams=copies,
    )
