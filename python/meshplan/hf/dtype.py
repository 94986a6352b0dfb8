"""Format of the stored weights, from ``dtype`` and ``quantization_config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshplan.hf.fields import Fields

PLAIN = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
}
"""Torch dtype → format."""

ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block",
    "MXFP8": "fp8_block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
    "W4A8_AWQ": "int4",
    "W4A16_AWQ": "int4",
    "W4A16": "int4",
    "INT4_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W8A16": "int8",
}
"""ModelOpt ``quant_algo`` → format."""


def weight_dtype(f: Fields) -> str:
    """Format in which the checkpoint stores its linear weights (bf16 where it does not say)."""
    plain = "bf16"
    name = f.text("dtype", "torch_dtype").removeprefix("torch.")
    if name in PLAIN:
        plain = PLAIN[name]
    elif name not in ("", "auto"):
        f.problem(
            "dtype" if f.has("dtype") else "torch_dtype",
            f"must be one of {', '.join(PLAIN)}",
        )
    experts = f.text("expert_dtype")
    quantized = f.table("quantization_config", "compression_config", whole=False)
    if quantized is None:
        return plain
    stored = _quantized(quantized, plain)
    return "mxfp4" if experts == "fp4" else stored


def _quantized(q: Fields, plain: str) -> str:
    method = q.text("quant_method").lower()
    algorithm = q.text("quant_algo").upper()
    if algorithm == "MIXED_PRECISION":
        return _mixed(q)
    if algorithm:
        if algorithm in ALGORITHMS:
            return ALGORITHMS[algorithm]
        q.problem("quant_algo", f"must be one of {', '.join(ALGORITHMS)}, MIXED_PRECISION")
        return plain
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8_block" if q.has("weight_block_size") else "fp8"
    if method in ("mxfp4", "nvfp4"):
        return method
    if method == "mxfp8":
        return "fp8_block"
    if method in ("gptq", "awq", "auto-round", "autoround", "hqq", "quark", "aqlm"):
        return "int8" if q.whole("bits", "w_bit", high=8, default=4) == 8 else "int4"
    if method == "bitsandbytes":
        return "int8" if q.flag("load_in_8bit", "_load_in_8bit") else "int4"
    if method in ("compressed-tensors", "modelopt", ""):
        return _groups(q, plain)
    q.problem(
        "quant_method",
        "is not a known way to store weights",
        hint="known: fp8, mxfp4, modelopt, compressed-tensors, gptq, awq, bitsandbytes",
    )
    return plain


def _mixed(q: Fields) -> str:
    """Format of most layers of a ModelOpt mixed-precision checkpoint."""
    layers = q.table("quantized_layers")
    counts: dict[str, int] = {}
    for entry in (layers.data if layers else {}).values():
        name = str(entry.get("quant_algo", "")).upper() if isinstance(entry, dict) else ""
        if name in ALGORITHMS:
            counts[ALGORITHMS[name]] = counts.get(ALGORITHMS[name], 0) + 1
    if not counts:
        groups = _groups(q, "")
        if groups:
            return groups
        q.assume("quantization_config is MIXED_PRECISION without a list of layers: taken as fp8")
        return "fp8"
    best = max(counts, key=lambda name: (counts[name], name))
    q.assume(f"quantization_config mixes {', '.join(sorted(counts))}: all weights taken as {best}")
    return best


def _groups(q: Fields, plain: str) -> str:
    """Format that the first group of a compressed-tensors checkpoint states."""
    groups = q.table("config_groups")
    if groups is None:
        return plain
    for name in groups.data:
        group = groups.table(name)
        weights = group.table("weights") if group else None
        if weights is None:
            continue
        bits = weights.whole("num_bits", low=2, high=16, default=8)
        kind = weights.text("type", default="int")
        size = weights.whole("group_size", low=-1, default=0)
        if kind == "float" and bits == 4:
            return "mxfp4" if size == 32 else "nvfp4"
        if kind == "float":
            return "fp8_block" if weights.text("strategy") == "block" else "fp8"
        return "int8" if bits > 4 else "int4"
    return plain
