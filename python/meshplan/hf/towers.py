"""Parameters of vision towers and their projectors, from ``vision_config``.

A tower is counted in the total, not in the time of the language model. The formulas follow the
model definitions in Hugging Face Transformers, class by class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from meshplan.hf.fields import MAX_LAYERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshplan.hf.fields import Fields

Tower: TypeAlias = "Callable[[Fields, int], int]"


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Parameters of a linear map."""
    return inputs * outputs + outputs * bias


def block(width: int, inner: int, *, norm: int = 4, bias: bool = True, gated: bool = False) -> int:
    """Encoder layer: four square projections, an MLP, norms of ``norm`` times the width."""
    mlp = linear(width, inner, bias=bias) * (2 if gated else 1) + linear(inner, width, bias=bias)
    return 4 * linear(width, width, bias=bias) + mlp + norm * width


def _sizes(v: Fields) -> tuple[int, int, int]:
    width = v.whole("hidden_size", "embed_dim", default=1152)
    inner = v.whole("intermediate_size", default=4 * width)
    layers = v.whole("num_hidden_layers", "depth", high=MAX_LAYERS, default=27)
    return width, inner, layers


def qwen3(v: Fields, text: int) -> int:
    """Qwen3-VL and Qwen3.5: learned positions, a merger, and mergers for deep features."""
    width, inner, layers = _sizes(v)
    patch = v.whole("patch_size", high=1024, default=16) ** 2
    patch *= v.whole("temporal_patch_size", high=64, default=2)
    patch *= v.whole("in_channels", high=64, default=3)
    out = v.whole("out_hidden_size", default=text)
    merged = width * v.whole("spatial_merge_size", high=64, default=2) ** 2
    mlp = linear(merged, merged) + linear(merged, out)
    deep = len(v.items("deepstack_visual_indexes") or [])
    return (
        linear(patch, width)
        + v.whole("num_position_embeddings", low=0, default=2304) * width
        + layers * block(width, inner)
        + mlp
        + 2 * width
        + deep * (mlp + 2 * merged)
    )


def qwen2(v: Fields, text: int) -> int:
    """Qwen2.5-VL: RMS norms and a gated MLP; the merger leads to the language width."""
    width, inner, layers = _sizes(v)
    patch = v.whole("patch_size", high=1024, default=14) ** 2
    patch *= v.whole("temporal_patch_size", high=64, default=2)
    patch *= v.whole("in_channels", "in_chans", high=64, default=3)
    merged = width * v.whole("spatial_merge_size", high=64, default=2) ** 2
    out = v.whole("out_hidden_size", default=text)
    return (
        linear(patch, width, bias=False)
        + layers * block(width, inner, norm=2, gated=True)
        + width
        + linear(merged, merged)
        + linear(merged, out)
    )


def siglip(v: Fields, text: int) -> int:
    """SigLIP as Gemma 3 uses it: no pooling head, one projection and one norm behind it."""
    width, inner, layers = _sizes(v)
    patch = v.whole("patch_size", high=1024, default=14)
    image = v.whole("image_size", high=65536, default=896)
    return (
        linear(3 * patch * patch, width)
        + (image // patch) ** 2 * width
        + layers * block(width, inner)
        + 2 * width
        + linear(width, text, bias=False)
        + width
    )


def gemma4(v: Fields, text: int) -> int:
    """Gemma 4: RMS norms around both parts, norms on q and k, a gated MLP, no biases."""
    width, inner, layers = _sizes(v)
    heads = v.whole("num_attention_heads", default=16)
    kv = v.whole("num_key_value_heads", default=heads)
    dim = v.whole("head_dim", default=max(1, width // heads))
    patch = 3 * v.whole("patch_size", high=1024, default=16) ** 2
    positions = 2 * v.whole("position_embedding_size", default=10240) * width
    each = 2 * width * (heads + kv) * dim + 2 * dim + 3 * width * inner + 4 * width
    standard = 2 * width * v.flag("standardize", default=False)
    return patch * width + positions + layers * each + standard + width * text


def moonvit(v: Fields, text: int) -> int:
    """MoonViT of Kimi-K2.5 and K3, with its patch merger."""
    width = v.whole("vt_hidden_size", "hidden_size", default=1152)
    inner = v.whole("vt_intermediate_size", "intermediate_size", default=4304)
    layers = v.whole("vt_num_hidden_layers", "num_hidden_layers", high=MAX_LAYERS, default=27)
    patch = 3 * v.whole("patch_size", high=1024, default=14) ** 2
    rows = v.whole("init_pos_emb_height", default=64) * v.whole("init_pos_emb_width", default=64)
    merged = 4 * width
    qkv = v.whole("qkv_hidden_size", default=width)
    bias = v.flag("linear_bias", default=True)
    attn_bias = v.flag("attn_bias", default=True)
    norm = width if v.text("norm_type") == "rmsnorm" else 2 * width
    each = (
        3 * linear(width, qkv, bias=attn_bias)
        + linear(qkv, width, bias=attn_bias)
        + linear(width, inner, bias=bias)
        + linear(inner, width, bias=bias)
        + 2 * norm
    )
    patches = linear(patch, width, bias=v.flag("patch_embed_proj_bias", default=True))
    merger = 2 * width + linear(merged, merged) + linear(merged, text)
    return patches + rows * width + layers * each + norm + merger


def llama4(v: Fields, text: int) -> int:
    """Llama 4: class token, learned positions, pixel shuffle and two projections."""
    width, inner, layers = _sizes(v)
    patch = v.whole("patch_size", high=1024, default=14)
    image = v.whole("image_size", high=65536, default=336)
    tokens = (image // patch) ** 2 + 1
    into = v.whole("projector_input_dim", default=4096)
    out = v.whole("projector_output_dim", default=4096)
    return (
        3 * patch * patch * width
        + width
        + tokens * width
        + layers * block(width, inner)
        + 4 * width
        + inner * into
        + out * out
        + v.whole("vision_output_dim", default=4096) * text
    )


def qwen2_vl(v: Fields, text: int) -> int:
    """Qwen2-VL: layer norms and a plain MLP; ``hidden_size`` is the width behind the merger."""
    width = v.whole("embed_dim", default=1280)
    out = v.whole("hidden_size", default=text)
    ratio = v.real("mlp_ratio", low=0.1, high=64, default=4.0)
    layers = v.whole("depth", high=MAX_LAYERS, default=32)
    patch = v.whole("patch_size", high=1024, default=14) ** 2
    patch *= v.whole("temporal_patch_size", high=64, default=2)
    patch *= v.whole("in_channels", "in_chans", high=64, default=3)
    merged = width * v.whole("spatial_merge_size", high=64, default=2) ** 2
    return (
        linear(patch, width, bias=False)
        + layers * block(width, int(width * ratio))
        + 2 * width
        + linear(merged, merged)
        + linear(merged, out)
    )


def pixtral(v: Fields, text: int) -> int:
    """Pixtral with the merger of Mistral 3: no biases, a gated MLP."""
    width, inner, layers = _sizes(v)
    patch = 3 * v.whole("patch_size", high=1024, default=14) ** 2
    merged = 4 * width * width
    return (
        patch * width
        + width
        + layers * block(width, inner, norm=2, bias=False, gated=True)
        + width
        + merged
        + width * text
        + text * text
    )


def step(v: Fields, text: int) -> int:
    """Step-3.7: layer scales, and two convolutions that halve the grid twice."""
    width = v.whole(v.first("width", "hidden_size"), default=1536)
    layers = v.whole(v.first("layers", "num_hidden_layers"), high=MAX_LAYERS, default=47)
    ratio = v.real("mlp_ratio", low=0.1, high=64, default=8960 / 1536)
    patch = v.whole("patch_size", high=1024, default=14)
    image = v.whole("image_size", high=65536, default=728)
    halved = 9 * 2 * width * width + 2 * width
    quartered = 9 * 8 * width * width + 4 * width
    return (
        3 * patch * patch * width
        + (image // patch) ** 2 * width
        + 2 * width
        + layers * block(width, int(width * ratio), norm=6)
        + halved
        + quartered
        + 4 * width * text
    )


TOWERS: dict[str, Tower] = {
    "qwen3_vl": qwen3,
    "qwen3_vl_moe": qwen3,
    "qwen3_5": qwen3,
    "qwen3_5_moe": qwen3,
    "qwen3_omni_moe": qwen3,
    "qwen2_5_vl": qwen2,
    "qwen2_vl": qwen2_vl,
    "mistral3": pixtral,
    "step3p7": step,
    "step3p7_flash": step,
    "gemma3": siglip,
    "siglip_vision_model": siglip,
    "gemma4": gemma4,
    "gemma4_vision": gemma4,
    "kimi_k25": moonvit,
    "kimi_k3": moonvit,
    "kimi_vl": moonvit,
    "llama4": llama4,
    "llama4_vision_model": llama4,
}
"""Type of the wrapper or of the tower → its parameters."""


def towers(f: Fields, wrapper: str, text: int) -> list[tuple[str, int]]:
    """Count the towers of a wrapper around a language model of width ``text``."""
    found = []
    for name in ("vision_config", "audio_config"):
        view = f.table(name, whole=False)
        if view is None or not view.data:
            continue
        label = name.removesuffix("_config")
        own = view.data.get("model_type")
        formula = TOWERS.get(wrapper) or (TOWERS.get(own) if isinstance(own, str) else None)
        if name == "vision_config" and formula is not None:
            found.append((label, formula(view, text)))
            continue
        params = _plain(view)
        what = "counted as a plain encoder" if params else "not counted: its widths are not given"
        f.assume(f"{name} of {wrapper} has no formula of its own and is {what}")
        if params:
            found.append((label, params))
    return found


def _plain(v: Fields) -> int:
    """Square projections and a plain MLP in each layer, where the config gives its widths."""
    width_names, layer_names = ("hidden_size", "embed_dim"), ("num_hidden_layers", "depth")
    if not (v.has(*width_names) and v.has(*layer_names)):
        return 0
    width, inner, layers = _sizes(v)
    return layers * block(width, inner)
