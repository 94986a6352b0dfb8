"""Values of a row as people read them: the unit in a column's name chooses the form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshplan import units

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = dict[str, Any]

DEGREES = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp")
"""Parallel degrees, in the order in which reports print them."""

LAYOUT = (
    *DEGREES,
    *("micro_batch", "sequence_parallel", "recompute", "recompute_layers"),
    *("sharding", "shard_group", "schedule"),
)
"""Columns that say which layout a row is about."""

SHORT = {
    "micro_batch": "mbs",
    "sequence_parallel": "sp",
    "step_time_s": "step",
    "tokens_per_s_per_gpu": "tok/s/GPU",
    "mfu_ratio": "MFU",
    "peak_memory_bytes": "memory",
    "cost_per_million_tokens": "cost/Mtok",
    "gpus": "GPUs",
}
"""Headers that differ from the column's name."""


def value(name: str, item: Any) -> str:
    """Value of a column as text.

    Examples
    --------
    >>> value("step_time_s", 5.25), value("peak_memory_bytes", 2**36), value("mfu_ratio", 0.413)
    ('5.25 s', '64 GiB', '41.3 %')
    """
    if item is None or item != item:
        return "-"
    if isinstance(item, bool):
        return "on" if item else "off"
    if isinstance(item, str):
        return item
    if name.endswith("_bytes"):
        return signed(units.format_bytes, item)
    if name.endswith("_ratio"):
        return f"{100 * item:.1f} %"
    if name.endswith("flops_per_s_per_gpu"):
        return units.format_flops(item)
    if name.endswith("_s") and not name.startswith("tokens_per"):
        return signed(_seconds, item)
    if isinstance(item, int):
        return f"{item:,}"
    return f"{item:,.0f}" if abs(item) >= 1000 else f"{item:.4g}"


def _seconds(item: float) -> str:
    """Seconds, never minutes: times of steps are compared."""
    return f"{item:,.4g} s" if item >= 1 else units.format_seconds(item)


def signed(form: Any, item: float) -> str:
    """Format a number that may be negative with a formatter for positive ones."""
    return ("-" if item < 0 else "") + str(form(abs(item)))


def phrase(row: Mapping[str, Any]) -> str:
    """Layout of a row in a few words: what is 1, off or implied is left out.

    Examples
    --------
    >>> phrase({"dp": 32, "tp": 8, "pp": 4, "vpp": 1, "micro_batch": 2, "schedule": "1f1b",
    ...         "sharding": "zero1", "recompute": "none", "sequence_parallel": True})
    'tp8 pp4 dp32 mbs2 zero1 1f1b sp'
    """
    parts = [f"{name}{row[name]}" for name in ("tp", "pp", "dp") if name in row]
    parts += [f"{n}{row[n]}" for n in ("cp", "ep", "etp", "vpp") if row.get(n, 1) != 1]
    parts.append(f"mbs{row['micro_batch']}")
    if row["sharding"] != "none":
        group = f"/{row['shard_group']}" if row["sharding"] == "hsdp" else ""
        parts.append(row["sharding"] + group)
    if row["recompute"] != "none":
        count = f"/{row['recompute_layers']}" if row["recompute"] == "block" else ""
        parts.append(f"recompute-{row['recompute']}{count}")
    if row.get("pp", 1) > 1:
        parts.append(row["schedule"])
    if row["sequence_parallel"]:
        parts.append("sp")
    return " ".join(parts)
