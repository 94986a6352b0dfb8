"""Qwen3-Next and Qwen3.5, MiMo-V2, Step-3.7, Llama 4, DBRX, Grok."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.hf import blocks, parts
from meshplan.hf.decoder import attention_bias, mtp_projection
from meshplan.hf.draft import Draft
from meshplan.hf.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields

STATE_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
"""Dtype of a recurrent state → bytes per element."""


def state_bytes(f: Fields, default: str = "float32") -> float:
    """Bytes per element of a recurrent state."""
    name = f.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default=default)
    f.rule(
        name in STATE_BYTES,
        "mamba_ssm_dtype" if f.has("mamba_ssm_dtype") else "mamba_ssm_cache_dtype",
        f"must be one of {', '.join(STATE_BYTES)}",
    )
    return STATE_BYTES.get(name, 4.0)


def feeds(
    f: Fields, width: int, count: int, traits: MoeTraits, dense_field: str = "intermediate_size"
) -> list[Part]:
    """Feed-forward of each layer: experts where the config says, else a gated MLP."""
    sparse = parts.sparse_layers(f, count) if f.has(*parts.EXPERTS) else [False] * count
    experts = parts.moe(f, width, traits) if any(sparse) else None
    plain = None
    if all(sparse):
        f.ignore(dense_field)
    else:
        plain = blocks.dense(f.whole(dense_field))
    chosen = [experts if flag else plain for flag in sparse]
    return [part for part in chosen if part is not None]


def qwen_next(f: Fields, family: str) -> Draft:
    """Qwen3-Next and Qwen3.5: three gated-delta-net layers, then one gated attention layer.

    Qwen3.5 keeps float32 states, and its configs say so. Those of Qwen3-Next say nothing, and engines
    then keep states in the type of the model: vLLM logs blocks of 544 tokens, not 1056.
    """
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    kinds = parts.layer_types(f, count)
    every = f.whole("full_attention_interval", high=MAX_LAYERS, default=4)
    if kinds is None:
        kinds = [
            "linear_attention" if (index + 1) % every else "full_attention"
            for index in range(count)
        ]
    h = parts.heads(f, width)
    bias = f.flag("attention_bias", default=False)
    gated = f.flag("attn_output_gate", default=True)
    full = blocks.attention(
        h.q,
        h.kv,
        h.dim,
        bias=attention_bias(h, width, bias, bias) + bias * gated * h.q * h.dim,
        head_params=2 * h.dim,
        output_gate=gated,
    )
    k_heads = f.whole("linear_num_key_heads", high=MAX_HEADS)
    v_heads = f.whole("linear_num_value_heads", high=MAX_HEADS)
    f.rule(
        v_heads % k_heads == 0,
        "linear_num_value_heads",
        f"must be a multiple of linear_num_key_heads = {k_heads}",
        of="linear_num_key_heads",
    )
    linear = blocks.gated_delta_net(
        width,
        k_heads,
        v_heads,
        f.whole("linear_key_head_dim"),
        f.whole("linear_value_head_dim"),
        f.whole("linear_conv_kernel_dim", high=64),
        state_bytes(f, "bfloat16" if family == "qwen3_next" else "float32"),
    )
    f.ignore("use_sliding_window", "sliding_window", "max_window_layers")
    feed = feeds(f, width, count, MoeTraits(shared_gate=True))
    layers = [
        blocks.layer(
            linear if kind == "linear_attention" else full, part, norms=2, norm_params=2 * width
        )
        for kind, part in zip(kinds, feed, strict=True)
    ]
    heads = f.whole("mtp_num_hidden_layers", "num_nextn_predict_layers", low=0, high=64, default=0)
    f.ignore("mtp_use_dedicated_embeddings")
    extra = blocks.layer(full, feed[-1], norms=2, norm_params=2 * width)
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        mtp=[(extra, mtp_projection(width))] * heads,
    )


def mimo_v2(f: Fields, family: str) -> Draft:
    """MiMo-V2-Flash: window layers with sinks and their own heads, and a few full layers."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    value = f.whole("v_head_dim", default=h.dim)
    bias = f.flag("attention_bias", default=False)
    sinks = f.flag("add_full_attention_sink_bias", default=False)
    window_sinks = f.flag("add_swa_attention_sink_bias", default=True)
    tokens = f.whole("sliding_window", "sliding_window_size", high=MAX_POSITIONS)
    f.ignore("attention_chunk_size")
    q = f.whole("swa_num_attention_heads", high=MAX_HEADS, default=h.q)
    kv = f.whole("swa_num_key_value_heads", high=MAX_HEADS, default=min(q, 2 * h.kv))
    f.rule(q % kv == 0, "swa_num_key_value_heads", f"must divide swa_num_attention_heads = {q}")
    dim = f.whole("swa_head_dim", default=h.dim)
    local_value = f.whole("swa_v_head_dim", default=value)
    full = blocks.attention(
        h.q,
        h.kv,
        h.dim,
        v_head_dim=value,
        bias=bias * ((h.q + h.kv) * h.dim + h.kv * value),
        head_params=h.q * sinks,
    )
    local = blocks.attention(
        q,
        kv,
        dim,
        v_head_dim=local_value,
        span=blocks.window(tokens),
        bias=bias * ((q + kv) * dim + kv * local_value),
        head_params=q * window_sinks,
    )
    flags = f.wholes("hybrid_layer_pattern", count=count, high=1)
    kinds = parts.layer_types(f, count)
    if flags is None and kinds is not None:
        flags = [int(kind == "sliding_attention") for kind in kinds]
    if flags is None:
        f.problem("hybrid_layer_pattern", "must be given, one entry for each layer")
        flags = [0] * count
    feed = feeds(f, width, count, MoeTraits(router_bias=True))
    layers = [
        blocks.layer(local if flag else full, part, norms=2, norm_params=2 * width)
        for flag, part in zip(flags, feed, strict=True)
    ]
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        mtp=[(layers[-1], mtp_projection(width))] * heads,
    )


def step(f: Fields, family: str) -> Draft:
    """Step-3.7-Flash: gated heads, window and full layers, experts with one shared."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    spans = parts.windows(f, count)
    other = f.table("attention_other_setting")
    local = h
    if f.has("num_sliding_attention_heads"):
        local = parts.Heads(f.whole("num_sliding_attention_heads", high=MAX_HEADS), h.kv, h.dim)
        f.rule(local.q % h.kv == 0, "num_sliding_attention_heads", f"must be a multiple of {h.kv}")
        f.ignore("per_layer_config")  # says the same once more
    f.ignore("mtp_layer_types", "mtp_mlp_layer_types", "num_sliding_attention_heads")
    if other is not None:
        q = other.whole("num_attention_heads", high=MAX_HEADS, default=h.q)
        kv = other.whole(
            "num_attention_groups", "num_key_value_heads", high=MAX_HEADS, default=h.kv
        )
        other.rule(q % kv == 0, "num_attention_heads", f"must be a multiple of {kv}")
        local = parts.Heads(q, kv, other.whole("head_dim", default=h.dim))
        other.ignore("attention_type", "true_head_dim")
    per_head = _step_gate(f)
    mixers = []
    for span in spans:
        use = h if span["kind"] == "full" else local
        gate = width * use.q if per_head else 0
        mixers.append(
            blocks.attention(
                use.q,
                use.kv,
                use.dim,
                span=span,
                head_params=2 * use.dim + gate,
            )
        )
    feed = feeds(f, width, count, MoeTraits(router_bias=True))
    layers = [
        blocks.layer(mixer, part, norms=2, norm_params=2 * width)
        for mixer, part in zip(mixers, feed, strict=True)
    ]
    heads = f.whole("num_nextn_predict_layers", low=0, high=64, default=0)
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
        mtp=[(layers[-1], mtp_projection(width))] * heads,
    )


def _step_gate(f: Fields) -> bool:
    """Whether each head has a scalar gate; the field is a flag or a word."""
    for name in ("gating", "use_head_wise_attn_gate"):
        _, value = f.get(name)
        if isinstance(value, str):
            f.rule(value == "per-head", name, 'must be true, false or "per-head"')
            return True
        if value is not None:
            return f.flag(name)
    f.ignore("gating", "use_head_wise_attn_gate")
    f.assume("gating is not given: each head has a scalar gate, as in the published Step models")
    return True


def llama4(f: Fields, family: str) -> Draft:
    """Llama 4: chunked attention in three layers of four, experts in all layers or every second."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    bias = f.flag("attention_bias", default=False)
    chunk = f.whole("attention_chunk_size", low=0, high=MAX_POSITIONS, default=8192)
    kinds = parts.layer_types(f, count)
    rope = f.wholes("no_rope_layers", high=1)
    every = f.whole("no_rope_layer_interval", high=MAX_LAYERS, default=4)
    if kinds is None:
        if not rope or len(rope) < count:
            rope = [int((index + 1) % every != 0) for index in range(count)]
        kinds = ["chunked_attention" if flag else "full_attention" for flag in rope]
    spans = [
        blocks.chunk(chunk) if kind == "chunked_attention" and chunk else blocks.FULL
        for kind in kinds
    ]
    f.ignore("use_qk_norm", "attn_temperature_tuning", "floor_scale", "attn_scale")
    shared = f.whole("intermediate_size")
    feed = feeds(f, width, count, MoeTraits("intermediate_size"), "intermediate_size_mlp")
    f.ignore("intermediate_size_mlp")
    layers = []
    for span, part in zip(spans, feed, strict=True):
        feed_forward = {**part, "shared_intermediate": shared} if part["kind"] == "moe" else part
        mixer = blocks.attention(
            h.q, h.kv, h.dim, span=span, bias=attention_bias(h, width, bias, bias)
        )
        layers.append(blocks.layer(mixer, feed_forward, norms=2, norm_params=2 * width))
    return Draft(
        width,
        vocab,
        layers,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
    )


def dbrx(f: Fields, family: str) -> Draft:
    """DBRX: its widths sit in ``attn_config`` and ``ffn_config``."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    attn, ffn = f.table("attn_config"), f.table("ffn_config")
    for name, table in (("attn_config", attn), ("ffn_config", ffn)):
        if table is None:
            f.problem(name, "must be given", hint=f"add {name} to the config")
    h = parts.heads(f, width)
    kv = attn.whole("kv_n_heads", high=MAX_HEADS, default=h.q) if attn else h.q
    f.rule(h.q % kv == 0, "n_heads", f"must be a multiple of attn_config.kv_n_heads = {kv}")
    experts = blocks.moe(1, 1, 1, width, router=width)
    if ffn:
        number = ffn.whole("moe_num_experts", high=2**14, default=4)
        k = ffn.whole("moe_top_k", high=2**14, default=1)
        ffn.rule(k <= number, "moe_top_k", f"must not exceed the {number} experts")
        experts = blocks.moe(number, k, ffn.whole("ffn_hidden_size"), width, router=number * width)
    layer = blocks.layer(blocks.attention(h.q, kv, h.dim), experts, norms=2, norm_params=2 * width)
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=False),
        max_positions=parts.max_positions(f),
    )


def grok(f: Fields, family: str) -> Draft:
    """Grok-1: four norms in a layer, eight gated experts."""
    del family
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    h = parts.heads(f, width)
    experts = parts.moe(f, width, MoeTraits("intermediate_size"))
    layer = blocks.layer(
        blocks.attention(h.q, h.kv, h.dim), experts, norms=4, norm_params=4 * width
    )
    return Draft(
        width,
        vocab,
        [layer] * count,
        final_norm=width,
        tied=f.flag("tie_word_embeddings", default=True),
        max_positions=parts.max_positions(f),
    )
