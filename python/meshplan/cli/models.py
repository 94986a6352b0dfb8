"""``planner models``: built-in models, and the facts of any model."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan.hf import load_model
from meshplan.hf import presets as built_in

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(help="Built-in models, and the facts of any model.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def list_models(context: typer.Context, as_json: Json = False) -> None:
    """List the built-in models with their sizes and sources."""
    if context.invoked_subcommand is not None:
        return
    rows = []
    for name, entry in built_in.table().items():
        facts = load_model(name).summary()
        rows.append(
            {
                "name": name,
                "title": entry["title"],
                "total_params": facts["total_params"],
                "active_params": facts["active_params"],
                "kv_bytes_per_token": facts["kv_bytes_per_token"],
                "source": entry["source"],
            }
        )
    if as_json:
        print(json.dumps({"models": rows}, indent=2))
        return
    lines = [("name", "parameters", "active", "KV B/token", "source")]
    for row in rows:
        total, active = row["total_params"], row["active_params"]
        lines.append(
            (
                row["name"],
                count(total),
                "" if active == total else count(active),
                f"{row['kv_bytes_per_token']:.0f}",
                row["source"],
            )
        )
    print_table(lines, right=(1, 2, 3))


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help="A preset, a config.json, or its folder.")],
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", help="Format of the KV cache: bf16, fp8, ...")
    ] = "bf16",
    as_json: Json = False,
) -> None:
    """Print parameters, KV bytes per token and layer kinds of a model."""
    spec = load_model(model)
    facts = spec.summary(kv_dtype=kv_dtype)
    for assumption in spec.assumptions:
        print(f"assumed: {assumption}", file=sys.stderr)
    entry = built_in.table().get(built_in.resolve(model) or "")
    facts["source"] = entry["source"] if entry else model
    facts["assumptions"] = list(spec.assumptions)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    print_facts(facts)


def print_facts(facts: dict[str, Any]) -> None:
    """Print the facts of one model for people."""
    tied = " (the head is the word table)" if facts["tied_embeddings"] else ""
    pairs = [
        ("model", f"{facts['name']} ({facts['model_type'] or 'no model_type'})"),
        ("source", facts["source"]),
        ("parameters", f"{facts['total_params']:,}"),
        ("  active per token", f"{facts['active_params']:,}"),
        ("  active without input tables", f"{facts['active_params_without_embedding']:,}"),
        ("  word table", f"{facts['embedding_params']:,}{tied}"),
        ("  routed experts", f"{facts['expert_params']:,}"),
        ("  towers", f"{facts['tower_params']:,}"),
        ("  apart: MTP heads", f"{facts['mtp_params']:,}"),
        ("weights stored as", facts["weight_dtype"]),
        ("hidden, vocabulary", f"{facts['hidden']:,}, {facts['vocab']:,}"),
        ("longest context", f"{facts['max_positions']:,}" if facts["max_positions"] else "-"),
        ("KV bytes per token", f"{facts['kv_bytes_per_token']:,.0f} ({facts['kv_dtype']})"),
        ("  beyond windows", f"{facts['kv_growth_bytes_per_token']:,.0f}"),
        ("  indexer keys", f"{facts['indexer_bytes_per_token']:,.0f}"),
        ("state bytes per sequence", f"{facts['state_bytes_per_sequence']:,.0f}"),
    ]
    for label, value in pairs:
        if value != "0":
            print(f"{label:<30} {value}")
    print(f"\n{facts['layers']} layers")
    lines = [("layers", "kind", "parameters", "active", "KV B/token")]
    lines += [
        (
            str(kind["count"]) if kind["count"] else "MTP",
            kind["name"],
            f"{kind['params']:,}",
            f"{kind['active_params']:,}",
            f"{kind['kv_bytes_per_token']:,.0f}",
        )
        for kind in facts["kinds"]
    ]
    print_table(lines, right=(0, 2, 3, 4))


def count(params: int) -> str:
    """Print a number of parameters in billions."""
    return f"{params / 1e9:.2f} B" if params >= 10**9 else f"{params / 1e6:.0f} M"


def print_table(lines: Sequence[tuple[str, ...]], *, right: tuple[int, ...]) -> None:
    """Print rows in columns, the first row as a heading; some columns are set right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
