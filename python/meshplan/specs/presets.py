"""Presets of clusters, devices and fabrics, and how a description builds on them.

The files of ``presets`` (`FILES`) hold three kinds of table: ``[devices.NAME]``,
``[fabrics.NAME]`` and ``[clusters.NAME]``; a device's curves are in files of their own. A cluster
names its device and fabrics. Everything here works on raw values with their origins, before
validation, so that a wrong override is reported where it was written.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.specs import overlay
from meshplan.specs.base import problem_at, suggest
from meshplan.specs.toml import Path

if TYPE_CHECKING:
    from collections.abc import Mapping


FILES = (
    "clusters.toml",
    "devices.toml",
    "fabrics.toml",
    "sites.toml",
    "gemm.toml",
    "attention.toml",
)
"""Files that together hold the presets."""

ALSO = {("clusters", "a100-80"): "a100"}
"""Other names of presets, so that both memory sizes of a device are named alike."""


@functools.cache
def _read() -> dict[str, dict[str, dict[str, Any]]]:
    folder = resources.files("meshplan").joinpath("presets")
    merged: dict[str, Any] = {}
    for name in FILES:
        _deepen(merged, tomllib.loads(folder.joinpath(name).read_text("utf-8")))
    fabrics = merged["fabrics"]
    for name, table in fabrics.items():
        if "base" in table:
            own = {k: v for k, v in table.items() if k != "base"}
            fabrics[name] = {**fabrics[table["base"]], **own}
    return overlay.apply("devices", overlay.apply("fabrics", merged))


def _deepen(base: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Lay the tables of one file into those of the files before it."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _deepen(base[key], value)
        else:
            base[key] = value


def tables(kind: str = "clusters") -> Mapping[str, Mapping[str, Any]]:
    """Presets of a kind, as they stand in their files."""
    return _read()[kind]


def names(kind: str = "clusters") -> list[str]:
    """Names of the presets of a kind: ``clusters``, ``devices`` or ``fabrics``."""
    return list(_read()[kind])


def raw(kind: str, name: object, path: Path, origins: Mapping[Path, str]) -> dict[str, Any]:
    """Raw values of a preset.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    known = _read()[kind]
    folded = str(name).lower()
    folded = ALSO.get((kind, folded), folded)
    if folded not in known:
        rule = f"is not a known preset of {kind}"
        hint = suggest(str(name), list(known))
        raise InputError.all_of([problem_at(path, name, rule, hint, origins)])
    return dict(known[folded])


def expand(description: Any, path: Path, origins: Mapping[Path, str]) -> Any:
    """Put every preset that a description of a cluster builds on into it.

    Parameters
    ----------
    description
        Name of a preset, or a table that may have a ``preset`` key.
    path
        Where the description stands in its document.
    origins
        Origins of the document's values.
    """
    if isinstance(description, str):
        description = raw("clusters", description, path, origins)
    if not isinstance(description, dict):
        return description
    cluster = dict(description)
    if "preset" in cluster:
        preset = cluster.pop("preset")
        cluster = _over(raw("clusters", preset, (*path, "preset"), origins), cluster)
    device = _device(cluster.get("device"), (*path, "device"), origins)
    if device is not None:
        cluster["device"] = device
    for key in ("scale_up_fabric", "scale_out_fabric"):
        if isinstance(cluster.get(key), str):
            fabric = raw("fabrics", cluster[key], (*path, key), origins)
            cluster[key] = {k: v for k, v in fabric.items() if k not in ("source", "date", "fit")}
    return cluster


def _device(value: Any, path: Path, origins: Mapping[Path, str]) -> Any:
    if isinstance(value, str):
        return raw("devices", value, path, origins)
    if isinstance(value, dict) and "preset" in value:
        base = raw("devices", value["preset"], (*path, "preset"), origins)
        return {**base, **{k: v for k, v in value.items() if k != "preset"}}
    return value


def _over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay changes over a preset; a device table without a preset changes the preset's device."""
    merged = {**base, **changes}
    device = changes.get("device")
    if isinstance(device, dict) and "preset" not in device and "device" in base:
        merged["device"] = {"preset": base["device"], **device}
    return merged
