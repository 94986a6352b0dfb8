"""Plain decoders: softmax attention and an MLP or experts in every layer, told apart by a table.

A row of :data:`TRAITS` says how a family departs from Llama. The values are those of the model
definitions in Hugging Face Transformers (``modeling_<family>.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from meshplan.hf import blocks, parts
from meshplan.hf.draft import Draft
from meshplan.hf.parts import MoeTraits, Norm, norm_params

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part
    from meshplan.hf.fields import Fields

QkNorm = Literal["", "head", "all", "each"]
"""Norms on q and k: one vector of d per side, one over all heads, or d for each head."""


@dataclass(frozen=True)
class Traits:
    """How a family of plain decoders departs from Llama."""

    norm: Norm = "rms"
    norms: int = 2
    """Norms of width H in a layer."""
    gated: bool = True
    qkv_bias: bool | str = "attention_bias"
    """Biases on q, k and v: a fact, or the field that says so (absent: no)."""
    o_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    qk_norm: QkNorm = ""
    qk_norm_field: str = ""
    """Field that turns the q and k norms on, if the family has one."""
    sinks: bool = False
    """A learned sink logit per query head."""
    tied: bool = False
    """Tied embeddings where the config does not say."""
    pattern: int = 0
    """Every how many layers one sees all keys."""
    windowed: bool = False
    """``sliding_window`` counts for all layers."""
    positions: int | None = None
    """Learned positions: rows beyond the longest context (none: no table)."""
    head_bias: bool | str = False
    moe: MoeTraits | None = None
    mtp: str = "num_nextn_predict_layers"
    """Field with the number of multi-token-prediction layers."""


MIXTRAL = MoeTraits("intermediate_size")
QWEN = MoeTraits()

TRAITS: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(windowed=True),
    "ministral": Traits(windowed=True),
    "mixtral": Traits(windowed=True, moe=MIXTRAL),
    "internlm": Traits(qkv_bias="bias", o_bias="bias"),
    "internlm3": Traits(qkv_bias="qkv_bias", o_bias="bias", mlp_bias="bias"),
    "yi": Traits(),
    "qwen2": Traits(qkv_bias=True, o_bias=False),
    "qwen2_moe": Traits(qkv_bias="qkv_bias", o_bias=False, moe=MoeTraits(shared_gate=True)),
    "qwen3": Traits(qk_norm="head", qk_norm_field="use_qk_norm"),
    "qwen3_moe": Traits(qk_norm="head", qk_norm_field="use_qk_norm", moe=QWEN),
    "mimo": Traits(qkv_bias="attention_bias", o_bias=False),
    "gemma": Traits(tied=True),
    "gemma2": Traits(norms=4, tied=True, pattern=2),
    "gemma3_text": Traits(norms=4, tied=True, qk_norm="head", pattern=6),
    "phi": Traits(
        norm="layer",
        norms=1,
        gated=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
    ),
    "phi3": Traits(windowed=True, head_bias="lm_head_bias"),
    "phimoe": Traits(norm="layer", head_bias="lm_head_bias", windowed=True, moe=MIXTRAL),
    "cohere": Traits(norm="rms", norms=1, qk_norm="each", qk_norm_field="use_qk_norm", tied=True),
    "cohere2": Traits(norm="rms", norms=1, tied=True, pattern=4),
    "glm": Traits(o_bias=False),
    "glm4": Traits(o_bias=False, norms=4),
    "glm4_moe": Traits(
        o_bias=False, qk_norm="head", qk_norm_field="use_qk_norm", moe=MoeTraits(router_bias=True)
    ),
    "gpt_oss": Traits(
        sinks=True,
        pattern=2,
        moe=MoeTraits("intermediate_size", router_bias=True, expert_bias=True),
    ),
    "minimax_m2": Traits(
        qk_norm="all",
        qk_norm_field="use_qk_norm",
        moe=MoeTraits("intermediate_size", router_bias=True),
        mtp="num_mtp_modules",
    ),
    "nemotron": Traits(norm="layer", gated=False),
    "gpt_neox": Traits(
        norm="layer", gated=False, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias=True
    ),
    "gpt2": Traits(
        norm="layer", gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, tied=True, positions=0
    ),
    "starcoder2": Traits(
        norm="layer",
        gated=False,
        qkv_bias="use_bias",
        o_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        windowed=True,
    ),
    "olmo": Traits(norm="none"),
    "olmo2": Traits(qk_norm="all"),
    "olmo3": Traits(qk_norm="all", pattern=4),
    "olmoe": Traits(qk_norm="all", moe=MIXTRAL),
    "granite": Traits(tied=True),
    "smollm3": Traits(tied=True),
    "exaone4": Traits(qk_norm="head"),
    "seed_oss": Traits(o_bias="attention_out_bias"),
    "stablelm": Traits(norm="layer", qkv_bias="use_qkv_bias", o_bias=False, mlp_bias=False),
    "apertus": Traits(gated=False, qk_norm="head"),
    "arcee": Traits(gated=False),
    "dots1": Traits(qk_norm="head", moe=MoeTraits(router_bias=True)),
}
"""How each family departs from Llama."""

DEFAULT_TRUE = (
    "gpt_neox:attention_bias",
    "starcoder2:use_bias",
    "gpt_oss:attention_bias",
    "qwen2_moe:qkv_bias",
    "minimax_m2:use_qk_norm",
    "qwen3:use_qk_norm",
    "qwen3_moe:use_qk_norm",
)
"""Fields of :data:`TRAITS` that are true where a config of the family does not give them."""


def on(f: Fields, family: str, switch: bool | str) -> bool:
    """Resolve a trait that is a fact or the name of a field."""
    if isinstance(switch, bool):
        return switch
    return f.flag(switch, default=f"{family}:{switch}" in DEFAULT_TRUE)


def attention_bias(h: parts.Heads, width: int, qkv: bool, out: bool) -> int:
    """Biases of the four projections."""
    return (h.q + 2 * h.kv) * h.dim * qkv + width * out


def qk_norm_params(kind: QkNorm, h: parts.Heads) -> int:
    """Parameters of the norms on q and k."""
    each = (h.q + h.kv) * h.dim
    return {"": 0, "head": 2 * h.dim, "all": each, "each": each}[kind]


def mtp_projection(width: int, norms: int = 3, norm: Norm = "rms") -> int:
    """Projection of a multi-token-prediction head from 2H to H, with its norms of width H."""
    return 2 * width * width + norms * norm_params(norm, width)


def read(f: Fields, family: str) -> Draft:
    """Read a plain decoder."""
    return decoder(f, family, TRAITS[family])


def decoder(f: Fields, family: str, traits: Traits) -> Draft:
    """Read a plain decoder with the given traits."""
    width, vocab, count = parts.hidden(f), parts.vocab(f), parts.layer_count(f)
    mixers = _mixers(f, family, traits, width, count)
    feeds = _feed_forwards(f, family, traits, width, count)
    norm = norm_params(traits.norm, width)
    layers = [
        blocks.layer(mixer, feed, norms=traits.norms, norm_params=traits.norms * norm)
        for mixer, feed in zip(mixers, feeds, strict=True)
    ]
    heads = f.whole(traits.mtp, low=0, high=64, default=0)
    heads *= f.flag("use_mtp", default=True)
    longest = parts.max_positions(f)
    rows = 0
    if traits.positions is not None:
        rows = (longest or 0) + traits.positions
        f.rule(longest is not None, "n_positions", "must be given: positions are learned")
    return Draft(
        width,
        vocab,
        layers,
        final_norm=norm,
        tied=f.flag("tie_word_embeddings", default=traits.tied),
        positions=rows,
        max_positions=longest,
        head_extra=vocab if on(f, family, traits.head_bias) else 0,
        mtp=[(layers[-1], mtp_projection(width))] * heads,
    )


def _mixers(f: Fields, family: str, traits: Traits, width: int, count: int) -> list[Part]:
    h = parts.heads(f, width)
    qkv, out = on(f, family, traits.qkv_bias), on(f, family, traits.o_bias)
    kind = traits.qk_norm
    if traits.qk_norm_field and not on(f, family, traits.qk_norm_field):
        kind = ""
    head_params = qk_norm_params(kind, h) + (h.q if traits.sinks else 0)
    spans = parts.windows(f, count, pattern=traits.pattern, always=traits.windowed)
    return [
        blocks.attention(
            h.q,
            h.kv,
            h.dim,
            span=span,
            bias=attention_bias(h, width, qkv, out),
            head_params=head_params,
        )
        for span in spans
    ]


def _feed_forwards(f: Fields, family: str, traits: Traits, width: int, count: int) -> list[Part]:
    sparse = [False] * count
    experts: Part | None = None
    if traits.moe is not None:
        sparse = parts.sparse_layers(f, count)
        experts = parts.moe(f, width, traits.moe)
    plain: Part | None = None
    if not all(sparse):
        inner = f.whole("intermediate_size", "n_inner", default=4 * width)
        if family not in ("gpt2", "bloom") and not f.has("intermediate_size", "n_inner"):
            f.problem("intermediate_size", "must be given", hint="add it to the config")
        biased = on(f, family, traits.mlp_bias)
        columns = 2 if traits.gated else 1
        bias = (columns * inner + width) * biased
        plain = blocks.dense(inner, gated=traits.gated, bias=bias)
    else:
        f.ignore("intermediate_size")
        if isinstance(traits.mlp_bias, str):
            f.ignore(traits.mlp_bias)
    chosen = [experts if flag else plain for flag in sparse]
    return [part for part in chosen if part is not None]
