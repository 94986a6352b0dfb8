"""``planner moe loads``: describe and fit recorded loads."""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import Annotated, Any

import typer

from meshplan.cli.moe.common import MOST, Json, LoadsArgument, Plot, SkipDense, Where, labels, table
from meshplan.errors import InputError


def loads(
    loads: LoadsArgument,
    top_k: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Experts per token; token records state it.")
    ] = None,
    where: Where = None,
    skip_dense: SkipDense = False,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Describe recorded loads: spread, peak, concentration, and how well a model says so."""
    from meshplan.moe import api
    from meshplan.moe.loads import read_loads

    if plot is not None:
        from meshplan.kv.plot import check

        check(plot)
    recorded = read_loads(loads, top_k=top_k, skip_dense=skip_dense, where=labels(where))
    top_k = top_k or recorded.top_k
    if top_k is None:
        raise InputError("is needed: counts do not tell it", field="--top-k")
    layers = api.describe(recorded.snapshots, top_k=top_k)
    for layer, number in zip(layers, recorded.layers, strict=True):
        layer["layer"] = number
        for snapshot, name in zip(layer["snapshots"], recorded.names, strict=True):
            snapshot["name"] = name
    _doubt(layers, recorded.experts, top_k)
    summary = _summary(layers)
    if plot is not None:
        from meshplan.kv.plot import save
        from meshplan.moe.plot import plot_loads

        save(plot_loads(recorded), plot)
    if as_json:
        answer = {"experts": recorded.experts, "top_k": top_k, "layers": layers}
        print(json.dumps({**answer, "summary": summary}))
    else:
        _print(layers, summary)


def _doubt(layers: list[dict[str, Any]], experts: int, top_k: int) -> None:
    """Say if an expert has more choices than there are tokens: a token chooses it once at most."""
    most = experts / top_k
    names = sorted(
        {s["name"] for a in layers for s in a["snapshots"] if s["max_over_mean"] > 1.05 * most}
    )
    if names:
        print(
            f"note: {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: an expert has "
            f"more than E/k = {most:g} times the mean, which {top_k} different experts per token "
            "cannot give; choose rows with --where",
            file=sys.stderr,
        )


def _summary(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over layers and snapshots."""
    held = [abs(x) for layer in layers for x in layer["held_out_error"]]
    unseen = [abs(x) for layer in layers for x in layer["unseen_error"]]
    misfit = [layer["dirichlet_max_over_mean"] / layer["max_over_mean"] - 1 for layer in layers]
    return {
        "alpha": median(layer["alpha"] for layer in layers),
        "max_over_mean": median(layer["max_over_mean"] for layer in layers),
        "dirichlet_error": median(misfit),
        "held_out_error": median(held) if held else None,
        "unseen_error": median(unseen) if unseen else None,
    }


def _print(layers: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    rows = []
    for layer in layers:
        interval = layer["alpha_ci95"]
        cvs = [s["cv"] for s in layer["snapshots"]]
        rows.append(
            (
                str(layer["layer"]),
                f"{sum(cvs) / len(cvs):.3f}",
                " ".join(f"{q:.2f}" for q in layer["quantiles_over_mean"]),
                f"{layer['max_over_mean']:.3f}",
                f"{layer['alpha']:.3g}",
                f"{interval[0]:.3g}-{interval[1]:.3g}" if interval else "",
                f"{layer['dirichlet_max_over_mean']:.3f}",
                f"{layer['peak']:.2f}",
            )
        )
    heads = ("layer", "CV", "p50 p90 p99", "max/mean", "alpha", "95 %", "Dirichlet says", "peak")
    table(heads, rows)
    print(f"\nrouting like this: --routing dirichlet:{summary['alpha']:.3g}")
    print(f"Dirichlet max/mean, median error: {100 * summary['dirichlet_error']:+.1f} %")
    if summary["held_out_error"] is not None:
        print(
            f"max/mean from the spread, peak of the other snapshots, median error: "
            f"{100 * summary['held_out_error']:.1f} %"
        )
        print(
            f"max/mean of an unseen snapshot from the others, median error: "
            f"{100 * summary['unseen_error']:.1f} %"
        )
