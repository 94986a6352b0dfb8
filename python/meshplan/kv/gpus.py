"""Memory that a process sees of a GPU, which is less than its name says."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from meshplan.errors import InputError
from meshplan.units import parse_bytes

GIB = float(1 << 30)

_ALIASES = {
    "h100-sxm": "h100",
    "h100-80": "h100",
    "v100-sxm-32": "v100",
    "a100-sxm-80": "a100",
    "a100-sxm-40": "a100-40",
    "a100-80": "a100",
    "a100-sxm": "a100",
    "h200-141": "h200-sxm",
    "a10g": "a10",
    "rtx-3090": "rtx3090",
    "rtx-4090": "rtx4090",
    "rtx-5090": "rtx5090",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "rtxpro6000": "rtx-pro-6000",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "h800": "h800-sxm",
}


@functools.cache
def _visible() -> dict[str, float]:
    """Memory by GPU: as processes saw it, else that of the device's preset."""
    from meshplan.specs import presets

    text = resources.files("meshplan").joinpath("presets", "visible.toml").read_text("utf-8")
    seen = tomllib.loads(text)["visible"]
    of_devices = presets.tables("devices")
    found = {name: parse_bytes(str(device["memory"])) for name, device in of_devices.items()}
    return found | {name: parse_bytes(fact["memory"]) for name, fact in seen.items()}


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
    25250627584.0
    """
    name = gpu.strip().lower().replace("_", "-").replace(" ", "-")
    name = name.removesuffix("gb").removesuffix("g")
    name = name.rstrip("-") if name else name
    known = _visible()
    name = _ALIASES.get(name, name)
    if name not in known:
        short = name.rsplit("-", 1)[0]
        name = _ALIASES.get(short, short)
    if name in known:
        return known[name]
    try:
        return parse_bytes(gpu)
    except ValueError:
        raise InputError(
            "is not a GPU that is known",
            field="gpu",
            value=gpu,
            hint=f"one of {', '.join(known)}; or its memory: --gpu-memory '80 GiB'",
        ) from None
