"""``planner clusters``: built-in clusters with their sources, and the facts of any cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan import units
from meshplan.specs import presets
from meshplan.specs.reading import load_cluster

if TYPE_CHECKING:
    from meshplan.specs.cluster import Cluster

app = typer.Typer(help="Built-in clusters, and the facts of any cluster.", add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def list_clusters(context: typer.Context, as_json: Json = False) -> None:
    """List the built-in clusters with their sources."""
    if context.invoked_subcommand is not None:
        return
    rows = [(name, load_cluster(name)) for name in presets.names()]
    if as_json:
        print(json.dumps({"clusters": [facts(name, c) for name, c in rows]}, indent=2))
        return
    from meshplan.report.console import show, table

    headers = ["name", "device", "source", "bf16 peak", "memory", "bandwidth", "NVLink", "network"]
    made = table("", headers, left=3)
    made.title = None
    for name, cluster in rows:
        made.add_row(name, cluster.device.name, cluster.source, *_figures(cluster))
    show(made)


@app.command("show")
def show_cluster(
    cluster: Annotated[str, typer.Argument(help="A preset or a TOML file.")],
    as_json: Json = False,
) -> None:
    """Print the facts and fitted numbers of a cluster."""
    described = load_cluster(cluster)
    if as_json:
        print(json.dumps(facts(cluster, described), indent=2))
        return
    from meshplan.report.console import show, table

    made = table(described.name, ["", ""], left=2)
    made.show_header = False
    for key, value in _flat(facts(cluster, described)):
        made.add_row(key, value)
    show(made)


def facts(name: str, cluster: Cluster) -> dict[str, Any]:
    """Facts of a cluster: the canonical form of the core, with sources."""
    device = cluster.device
    return {
        "preset": name,
        **cluster.canonical(),
        "source": cluster.source,
        "date": cluster.date,
        "device_source": device.source,
        "device_date": device.date,
        "device_fit": device.fit,
    }


def _figures(cluster: Cluster) -> list[str]:
    device = cluster.device
    peak = device.peak.get("bf16") or device.peak.get("fp16") or 0.0
    network = cluster.nic * cluster.nics_per_node / cluster.gpus_per_node
    return [
        units.format_flops(peak),
        units.format_bytes(device.memory, binary=False),
        units.format_bytes_per_s(device.memory_bandwidth),
        f"{cluster.nvlink_domain} × {units.format_bytes_per_s(cluster.nvlink)}",
        units.format_bytes_per_s(network, bits=True) + "/GPU",
    ]


def _flat(tree: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Leaves of nested tables with dotted names, units put back into words."""
    lines: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            lines += _flat(value, name)
        elif value not in (None, "", []):
            lines.append((name, _words(name, value)))
    return lines


def _words(name: str, value: Any) -> str:
    if name.endswith("bytes_per_s"):
        return units.format_bytes_per_s(value)
    if name.endswith("_bytes"):
        return units.format_bytes(value, binary=False)
    if ".peak_flops." in name:
        return units.format_flops(value)
    if name.endswith("_s"):
        return units.format_seconds(value)
    return str(value)
