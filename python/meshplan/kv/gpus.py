"""Memory that the driver shows of a GPU, which is less than its name says."""

from __future__ import annotations

from meshplan.errors import InputError
from meshplan.units import parse_bytes

GIB = float(1 << 30)

VISIBLE_GIB: dict[str, float] = {
    "t4": 14.74,
    "v100": 31.74,
    "a10": 22.06,
    "l4": 22.05,
    "rtx3090": 23.69,
    "rtx4090": 25_250_627_584 / GIB,
    "rtx5090": 31.36,
    "l40s": 44.40,
    "a100-40": 39.39,
    "a100": 79.15,
    "h100": 79.11,
    "h20": 95.0,
    "rtx-pro-6000": 94.97,
    "h200": 139.8,
    "b200": 178.4,
    "gb200": 184.0,
    "b300": 267.6,
    "mi300x": 191.98,
    "mi325x": 255.98,
    "mi355x": 287.98,
}
"""GiB as ``torch.cuda.get_device_properties`` shows them.

RTX 4090 from the metadata of a published vLLM run; the others as start-up logs and out-of-memory
messages quote them, rounded to 0.1 to 0.3 %.
"""

_ALIASES = {
    "h100-sxm": "h100",
    "h100-80": "h100",
    "a100-80": "a100",
    "a100-sxm": "a100",
    "h200-sxm": "h200",
    "h200-141": "h200",
    "b200-sxm": "b200",
    "a10g": "a10",
    "rtx-3090": "rtx3090",
    "rtx-4090": "rtx4090",
    "rtx-5090": "rtx5090",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "rtxpro6000": "rtx-pro-6000",
}


def visible_bytes(gpu: str) -> float:
    """Bytes that a GPU shows, by name.

    Parameters
    ----------
    gpu
        Name such as ``h100``, ``A100-40GB`` or ``rtx4090``, or a size such as ``80 GiB``.

    Raises
    ------
    InputError
        If the name is not known.

    Examples
    --------
    >>> visible_bytes("rtx4090")
    25250627584
    """
    name = gpu.strip().lower().replace("_", "-").replace(" ", "-")
    name = name.removesuffix("gb").removesuffix("g")
    name = name.rstrip("-") if name else name
    name = _ALIASES.get(name, name)
    if name not in VISIBLE_GIB:
        short = name.rsplit("-", 1)[0]
        name = _ALIASES.get(short, short)
    if name in VISIBLE_GIB:
        return round(VISIBLE_GIB[name] * GIB)
    try:
        return parse_bytes(gpu)
    except ValueError:
        raise InputError(
            "is not a GPU that is known",
            field="gpu",
            value=gpu,
            hint=f"one of {', '.join(VISIBLE_GIB)}; or its memory: --gpu-memory '80 GiB'",
        ) from None
