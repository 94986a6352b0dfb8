"""MiniMax-M1 with lightning attention, M3 with indexed blocks; M2 is a plain decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.decoder import mtp_projection
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS, MAX_POSITIONS
from meshplan.hf.hybrids import feeds
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields


def minimax_m1(f: Fields, family: str) -> Draft:
    """MiniMax-Text-01 and M1: seven lightning-attention layers, then one softmax layer."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    kinds = parts.layer_types(f, count)
    if kinds is None:
        flags = f.wholes("attn_type_list", count=count, high=1)
        if flags is None:
            f.assume("attn_type_list is not given: every eighth layer is softmax attention")
            flags = [int((index + 1) % 8 == 0) for index in range(count)]
        kinds = ["full_attention" if flag else "linear_attention" for flag in flags]
    inner = h.q * h.dim
    lightning: Part = {
        "kind": "linear",
        "k_heads": h.q,
        "v_heads": h.q,
        "k_head_dim": h.dim,
        "v_head_dim": h.dim,
        "conv_kernel": 0,
        "in_params": 4 * width * inner,
        "out_params": inner * width,
        "other_params": inner,
        "state_bytes": 4.0,
    }
    full = blocks.attention(h.q, h.kv, h.dim)
    experts = parts.moe(f, width, MoeTraits("intermediate_size"))
    layers = [
        blocks.layer(
            lightning if kind == "linear_attention" else full,
            experts,
            norms=2,
            norm_params=2 * width,
        )
        for kind in kinds
    ]
    f.ignore("block_size", "postnorm", "shared_moe_mode", "attn_type_list")
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
    )


def minimax_m3(f: Fields, family: str) -> Draft:
    """MiniMax-M3: grouped attention whose later layers see the blocks that an indexer picks."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    head_params = 2 * h.dim if f.flag("use_qk_norm", default=True) else 0
    gate = f.flag("attention_output_gate", default=False)
    full = blocks.attention(h.q, h.kv, h.dim, head_params=head_params, output_gate=gate)
    sparse, flags = _block_sparse(f, width, count, full)
    feed = feeds(
        f, width, count, MoeTraits("intermediate_size", router_bias=True), "dense_intermediate_size"
    )
    layers = [
        blocks.layer(sparse if flag else full, part, norms=2, norm_params=2 * width)
        for flag, part in zip(flags, feed, strict=True)
    ]
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    f.ignore("num_mtp_modules", "mtp_transformer_layers", "use_mtp")
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        mtp=[(layers[-1], mtp_projection(width))] * heads,
    )


def _block_sparse(f: Fields, width: int, count: int, full: Part) -> tuple[Part, list[int]]:
    """Attention over chosen blocks, and which layers have it; old and new configs differ."""
    table = f.table("sparse_attention_config")
    kinds = f.names("layer_types", count=count, known=("full_attention", "minimax_m3_sparse"))
    if kinds is not None:
        flags = [int(kind != "full_attention") for kind in kinds]
        view, names = (
            f,
            ("index_n_heads", "index_head_dim", "index_topk_blocks", "index_block_size"),
        )
        f.ignore("index_local_blocks")
    elif table is not None and table.flag("use_sparse_attention", default=True):
        flags = table.wholes("sparse_attention_freq", count=count, high=1) or [1] * count
        view = table
        names = (
            "sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size",
        )  # fmt: skip
        table.ignore("sparse_disable_index_value", "sparse_local_block", "sparse_init_block")
        table.ignore("sparse_score_type")
    else:
        return full, [0] * count
    heads, dim = view.whole(names[0], high=MAX_HEADS), view.whole(names[1])
    keys = view.whole(names[2]) * view.whole(names[3])
    indexer = blocks.indexer(heads, dim, width * (heads + 1) * dim + 2 * dim)
    span = blocks.top_k(min(keys, MAX_POSITIONS))
    return {**full, "span": span, "indexer": indexer}, flags
