"""``model_type`` → reader, wrappers around a language model, and the generic decoder."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, TypeAlias

from meshplan.hf import (
    decoder,
    deepseek,
    gemma,
    gpt,
    hybrids,
    kimi,
    minimax,
    nemotron,
    parts,
)
from meshplan.hf.decoder import TRAITS, Traits
from meshplan.hf.fields import Fields, shown
from meshplan.hf.parts import MoeTraits

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshplan.hf.draft import Draft

Reader: TypeAlias = "Callable[[Fields, str], Draft]"

READERS: dict[str, Reader] = {
    **dict.fromkeys(TRAITS, decoder.read),
    "bloom": gpt.bloom,
    "opt": gpt.opt,
    "falcon": gpt.falcon,
    "mpt": gpt.mpt,
    "gpt_bigcode": gpt.gpt_bigcode,
    "gptj": gpt.gptj,
    "deepseek_v2": deepseek.read,
    "deepseek_v3": deepseek.read,
    "deepseek_v32": deepseek.read,
    "glm_moe_dsa": deepseek.read,
    "glm4_moe_lite": deepseek.read,
    "deepseek_v4": deepseek.read_v4,
    "kimi_linear": kimi.read,
    "qwen3_next": hybrids.qwen_next,
    "minimax": minimax.minimax_m1,
    "minimax_m3": minimax.minimax_m3,
    "mimo_v2_flash": hybrids.mimo_v2,
    "step3p7": hybrids.step,
    "llama4_text": hybrids.llama4,
    "dbrx": hybrids.dbrx,
    "grok-1": hybrids.grok,
    "nemotron_h": nemotron.hybrid,
    "nemotron-nas": nemotron.searched,
    "gemma3n_text": gemma.gemma3n,
    "gemma4_text": gemma.gemma4,
}
"""Family → reader."""

ALIASES: dict[str, str] = {
    "kimi_k2": "deepseek_v3",
    "deepseek_v3_text": "deepseek_v3",
    "glm4v_moe_text": "glm4_moe",
    "minimax_m1": "minimax",
    "minimax_text_01": "minimax",
    "minimax_m3_text": "minimax_m3",
    "minimax_m3_vl_text": "minimax_m3",
    "qwen3_5_text": "qwen3_next",
    "qwen3_5_moe_text": "qwen3_next",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mimo_v2": "mimo_v2_flash",
    "step3p5": "step3p7",
    "step3p7_text": "step3p7",
    "grok1": "grok-1",
    "grok": "grok-1",
    "nemotron_nas": "nemotron-nas",
    "deci": "nemotron-nas",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "code_llama": "llama",
    "internlm2": "llama",
    "phi4": "phi3",
    "ministral3": "mistral",
    "starcoder": "gpt_bigcode",
}
"""Other spellings of a family."""

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_next",
    "qwen3_5_moe": "qwen3_next",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "kimi_vl": "deepseek_v3",
    "mistral3": "mistral",
    "llava": "llama",
    "llava_next": "llama",
    "minimax_m3_vl": "minimax_m3",
    "step3p7": "step3p7",
    "step3p7_flash": "step3p7",
    "glm4v_moe": "glm4_moe",
}
"""Multimodal wrapper → language model where ``text_config`` does not name one."""

TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
"""Fields in which a wrapper holds its language model."""


def family_of(f: Fields, default: str = "") -> str:
    """Family of a config, or an empty string for the generic decoder."""
    name = f.text("model_type", default=default)
    family = ALIASES.get(name, name)
    if family in READERS:
        if family == "deepseek_v3" and f.has("index_topk"):
            return "deepseek_v32"
        return family
    near = difflib.get_close_matches(name.lower()[:60], [*READERS, *ALIASES], n=3, cutoff=0.6)
    unknown = f"model_type {shown(name)} is not known"
    unknown += f" (nearest: {', '.join(near)})" if near else ""
    guess = _from_architecture(f)
    if guess:
        f.assume(f"{unknown}: read as {guess}, after its architecture")
        return guess
    shape = _from_shape(f)
    if shape:
        f.assume(f"{unknown}: read as {shape}, after its fields")
        return shape
    f.assume(f"{unknown}: read as a generic decoder")
    return ""


def _from_architecture(f: Fields) -> str:
    listed = f.data.get("architectures")
    names = listed if isinstance(listed, list) else []
    squeezed = {_squeeze(family): family for family in [*READERS, *ALIASES]}
    for name in names:
        if not isinstance(name, str):
            continue
        for ending in (
            "ForCausalLM",
            "ForConditionalGeneration",
            "LMHeadModel",
            "ModelForCausalLM",
        ):
            family = squeezed.get(_squeeze(name.removesuffix(ending)))
            if family and name.endswith(ending):
                return ALIASES.get(family, family)
    return ""


def _squeeze(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _from_shape(f: Fields) -> str:
    """Family that the unusual fields of a config belong to."""
    if f.has("linear_num_value_heads"):
        return "qwen3_next"
    if f.has("hybrid_override_pattern", "layers_block_type") and f.has("mamba_num_heads"):
        return "nemotron_h"
    if f.has("kv_lora_rank") and f.has("qk_rope_head_dim"):
        return "deepseek_v32" if f.has("index_topk") else "deepseek_v3"
    if f.has("block_configs"):
        return "nemotron-nas"
    return ""


def generic(f: Fields) -> Draft:
    """Read an unknown decoder, naming each assumption."""
    layer_norm = f.has("layer_norm_eps", "layer_norm_epsilon") and not f.has("rms_norm_eps")
    f.assume(f"norms: two in each layer, {'layer norm' if layer_norm else 'RMS norm'}")
    act = f.data.get("hidden_act", f.data.get("hidden_activation", "silu"))
    gated = not (layer_norm or act in ("relu", "relu2", "gelu_new", "gelu_fast"))
    f.assume(f"feed-forward: {'gated, three matrices' if gated else 'plain, two matrices'}")
    if not f.has("attention_bias"):
        f.assume("attention_bias is not given: no biases")
    moe = None
    if f.has(*parts.EXPERTS):
        f.assume("experts: a router without bias, experts of the MLP's kind")
        moe = MoeTraits(gated=gated)
    if not f.has("tie_word_embeddings"):
        f.assume("tie_word_embeddings is not given: the head has its own matrix")
    qk_norm = f.data.get("use_qk_norm") is True or f.data.get("qk_norm") is True
    f.ignore("use_qk_norm", "qk_norm")
    if qk_norm:
        f.assume("norms on q and k: one vector of the head width on each side")
    windowed = isinstance(f.data.get("sliding_window"), int)
    if windowed and not f.has("layer_types", "use_sliding_window", "sliding_window_pattern"):
        f.assume("sliding_window: counts for every layer")
    traits = Traits(
        norm="layer" if layer_norm else "rms",
        gated=gated,
        moe=moe,
        qk_norm="head" if qk_norm else "",
        windowed=windowed,
        head_bias="lm_head_bias",
    )
    return decoder.decoder(f, "generic", traits)


DEFAULTS: dict[str, dict[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
    },
    "gemma3n_text": {"head_dim": 256},
    "gemma4_text": {"head_dim": 256},
    "glm": {"head_dim": 128},
    "glm4": {"head_dim": 128},
    "gpt_oss": {"head_dim": 64},
    "llama4_text": {"head_dim": 128},
    "minimax_m2": {"head_dim": 128},
    "mimo_v2_flash": {"head_dim": 192, "v_head_dim": 128},
    "nemotron_h": {"head_dim": 128},
    "qwen3": {"head_dim": 128},
    "qwen3_next": {"head_dim": 256},
}
"""Values that Transformers takes where a config of the family leaves a field out.

Configs that Transformers wrote leave out what equals its defaults (Gemma 3 4B states neither heads
nor vocabulary).
"""


def read(f: Fields, family: str) -> Draft:
    """Read a language model of a family (an empty name: the generic decoder)."""
    for name, value in DEFAULTS.get(family, {}).items():
        if name in f.data or (name == "head_dim" and f.has("attention_head_dim")):
            continue
        f.data = {**f.data, name: value}
        f.assume(f"{f.prefix}{name} is not given: {value}, the default of {family}")
    return READERS[family](f, family) if family else generic(f)
