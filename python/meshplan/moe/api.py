"""Questions about MoE routing, asked of the core."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import meshplan._core as _core
from meshplan.errors import InputError, require_finite

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import polars as pl

    from meshplan.hf import ModelSpec


def balance(
    loads: Sequence[Sequence[float]],
    *,
    ranks: int,
    nodes: int = 1,
    groups: int = 1,
    redundant: int = 0,
    policy: Literal["best", "eplb"] = "best",
    speeds: Sequence[float] = (),
    keep_groups: bool = False,
) -> list[dict[str, Any]]:
    """Place the experts of every layer on ranks.

    Parameters
    ----------
    loads
        Tokens per expert: layers × experts.
    ranks, nodes
        Ranks of the expert-parallel group, and the nodes that hold them.
    groups
        Expert groups of the router (8 in DeepSeek-V3).
    redundant
        Spare slots for replicas: ``experts + redundant`` must be a multiple of ``ranks``.
    policy
        ``eplb`` is DeepSeek's balancer, map for map; ``best`` is never worse.
    speeds
        Relative speed of each rank; empty where all are alike.
    keep_groups
        ``best`` keeps the replicas of a router group on one node.

    Returns
    -------
    list of dict
        Per layer: ``physical_to_logical``, ``logical_count``, ``rank_max_over_mean``,
        ``bound_max_over_mean``, ``contiguous_max_over_mean``, ``duplicates``.

    Examples
    --------
    >>> layer = balance([[4, 3, 2, 1]], ranks=2)[0]
    >>> layer["rank_max_over_mean"], layer["bound_max_over_mean"]
    (1.0, 1.0)
    """
    spec = {
        "loads": [[float(x) for x in row] for row in loads],
        "ranks": ranks,
        "nodes": nodes,
        "groups": groups,
        "redundant": redundant,
        "policy": policy,
        "speeds": list(speeds),
        "keep_groups": keep_groups,
    }
    answer: list[dict[str, Any]] = json.loads(_core.moe_balance(json.dumps(spec)))
    return answer


def balance_robust(
    snapshots: Sequence[Sequence[Sequence[float]]],
    *,
    ranks: int,
    nodes: int = 1,
    groups: int = 1,
    redundant: int = 0,
    speeds: Sequence[float] = (),
    keep_groups: bool = False,
) -> list[dict[str, Any]]:
    """Place the experts of every layer once for all snapshots: the lowest worst case.

    Parameters
    ----------
    snapshots
        Matrices of layers × experts, all of one shape.
    ranks, nodes, groups, redundant, speeds, keep_groups
        As in :func:`balance`.

    Returns
    -------
    list of dict
        As :func:`balance`; ``rank_max_over_mean`` and ``contiguous_max_over_mean`` are those of
        the worst snapshot, and ``snapshot_max_over_mean`` has each.
    """
    spec = {
        "snapshots": snapshots,
        "ranks": ranks,
        "nodes": nodes,
        "groups": groups,
        "redundant": redundant,
        "speeds": list(speeds),
        "keep_groups": keep_groups,
    }
    layers: list[dict[str, Any]] = json.loads(_core.moe_robust(json.dumps(spec)))
    return layers


def expert_memory(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec,
    *,
    ranks: int,
    redundant: int = 0,
    weight_dtype: str | None = None,
) -> dict[str, Any]:
    """Bytes that the experts of a model take on each rank, and what replicas add.

    Parameters
    ----------
    model
        Preset, ``config.json``, folder, parsed config or model.
    ranks, redundant
        As in :func:`balance`.
    weight_dtype
        Format of the weights (default: that of the checkpoint).

    Returns
    -------
    dict
        ``experts``, ``moe_layers``, ``slots_per_rank``, ``expert_bytes`` of one layer's expert,
        ``experts_bytes_per_rank`` and, of that, ``replica_bytes_per_rank``.
    """
    from meshplan.hf import load_model
    from meshplan.kv.size import check_weights

    check_weights(weight_dtype)
    spec = {"redundant": redundant, "ranks": ranks, "weight_dtype": weight_dtype}
    # Spliced as text: the core reads the model's JSON exactly as it was made.
    text = json.dumps(spec)[:-1] + ', "model": ' + load_model(model).canonical_json() + "}"
    answer: dict[str, Any] = json.loads(_core.moe_memory(text))
    return answer


def rebalance(
    snapshots: Sequence[Sequence[Sequence[float]]],
    *,
    ranks: int,
    redundant: int,
    every: Sequence[int],
    steps_per_snapshot: float,
    balanced_layer_s: float,
    expert_bytes: float,
    bytes_per_s: float,
    stall_s: float,
) -> list[dict[str, Any]]:
    """Compare intervals of rearrangement over a load that drifts, moves charged.

    Parameters
    ----------
    snapshots
        Loads in the order of time.
    every
        Intervals to try, in snapshots; 0 is never.
    steps_per_snapshot, balanced_layer_s
        Steps between snapshots, and the time of a balanced layer's experts in one step.
    expert_bytes, bytes_per_s, stall_s
        Weights of one expert, bandwidth that moves them, standstill at each rearrangement.

    Returns
    -------
    list of dict
        Per interval: balance, experts moved, time in experts and in moving, net gain.
    """
    require_finite(
        steps_per_snapshot=steps_per_snapshot,
        balanced_layer_s=balanced_layer_s,
        expert_bytes=expert_bytes,
        bytes_per_s=bytes_per_s,
        stall_s=stall_s,
    )
    experts = len(snapshots[0][0])
    spec = {
        "snapshots": snapshots,
        "shape": {"experts": experts, "redundant": redundant, "ranks": ranks},
        "steps_per_snapshot": steps_per_snapshot,
        "balanced_layer_s": balanced_layer_s,
        "expert_bytes": expert_bytes,
        "bytes_per_s": bytes_per_s,
        "stall_s": stall_s,
        "every": list(every),
    }
    answer: list[dict[str, Any]] = json.loads(_core.moe_rebalance(json.dumps(spec)))
    return answer


def describe(snapshots: Sequence[Sequence[Sequence[float]]], *, top_k: int) -> list[dict[str, Any]]:
    """Spread, peak and Dirichlet concentration of every layer, with held-out errors."""
    spec = {"snapshots": snapshots, "top_k": top_k}
    answer: list[dict[str, Any]] = json.loads(_core.moe_fit(json.dumps(spec)))
    return answer


Routing = dict[str, Any]
"""Canonical routing model: ``kind`` and its parameter."""

_PARAMETERS = {"uniform": None, "dirichlet": "alpha", "zipf": "s", "lognormal": "sigma"}


def _finite(text: str) -> float | None:
    """Read a number; none where it is not one, or not finite."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_routing(text: str) -> Routing:
    """Read ``uniform``, ``dirichlet:1.3``, ``zipf:0.6``, ``lognormal:1`` or a file of loads.

    ``*0.2`` after any of them: a bias of the router has left a fifth of the skew.

    Examples
    --------
    >>> read_routing("dirichlet:1.3")
    {'kind': 'dirichlet', 'alpha': 1.3}
    >>> read_routing("zipf:1*0.2")["left"]
    0.2
    """
    model, star, left = text.rpartition("*")
    if star:
        share = _finite(left)
        if share is None:
            raise InputError(
                "the skew that is left is a number from 0 to 1: dirichlet:1.3*0.2",
                field="--routing",
                value=text,
            )
        return {"kind": "biased", "left": share, "of": read_routing(model)}
    name, colon, value = text.partition(":")
    if name in _PARAMETERS:
        parameter = _PARAMETERS[name]
        if parameter is None and not colon:
            return {"kind": name}
        number = _finite(value)
        if parameter is None or number is None:
            rule = f"{name} takes a number: {name}:1.3" if parameter else f"{name} takes no number"
            raise InputError(rule, field="--routing", value=text)
        return {"kind": name, parameter: number}
    if "." not in text:
        raise InputError(
            "not a routing model",
            field="--routing",
            value=text,
            hint="uniform, dirichlet:ALPHA, zipf:S, lognormal:SIGMA, or a file of counts",
        )
    from meshplan.moe.loads import read_loads

    if not Path(text).is_file():
        raise InputError(
            "neither a routing model nor a file of counts",
            field="--routing",
            value=text,
            hint="uniform, dirichlet:ALPHA, zipf:S, lognormal:SIGMA, or a file of counts",
        )
    return {"kind": "counts", "layers": read_loads(text, skip_dense=True).total}


def imbalance(
    routing: str | Routing,
    *,
    experts: int,
    top_k: int,
    ranks: int,
    tokens_per_rank: float,
    shared_experts: int = 0,
) -> float:
    """Fullest rank over the mean, in closed form; with the rows of shared experts, if any.

    Examples
    --------
    >>> round(imbalance("uniform", experts=256, top_k=8, ranks=32, tokens_per_rank=128), 3)
    1.064
    """
    spec = {
        "routing": read_routing(routing) if isinstance(routing, str) else routing,
        "experts": experts,
        "top_k": top_k,
        "ranks": ranks,
        "tokens_per_rank": tokens_per_rank,
        "shared_experts": shared_experts,
    }
    return _core.moe_imbalance(json.dumps(spec))


def simulate(
    routing: str | Routing,
    *,
    experts: int,
    top_k: int,
    ranks: int,
    tokens: int,
    nodes: int = 1,
    group_limit: tuple[int, int] | None = None,
    placement: Sequence[int] = (),
    capacity: int | None = None,
    trials: int = 1000,
    seed: int = 0,
    threads: int = 0,
) -> dict[str, Any]:
    """Route a batch of ``tokens`` tokens over all ranks many times.

    The same seed gives the same answer at any number of threads.

    Returns
    -------
    dict
        ``expert_max_over_mean``, ``expert_p50_over_mean``, ``expert_p90_over_mean``,
        ``expert_p99_over_mean``, ``rank_max_over_mean``, ``distinct_ranks``, ``distinct_nodes``,
        ``active_experts``, ``active_on_fullest_rank``, ``dropped_ratio``; each with ``mean``,
        ``ci95``, ``p50`` and ``p99``.
    """
    batch = {
        "routing": read_routing(routing) if isinstance(routing, str) else routing,
        "experts": experts,
        "top_k": top_k,
        "tokens": tokens,
        "ranks": ranks,
        "nodes": nodes,
        "group_limit": group_limit,
        "placement": list(placement),
        "capacity": capacity,
    }
    draw = {"trials": trials, "seed": seed, "threads": threads}
    answer: dict[str, Any] = json.loads(_core.moe_simulate(json.dumps(batch), json.dumps(draw)))
    return answer


def dispatch_question(
    *,
    routing: Routing,
    experts: int,
    top_k: int,
    ranks: int,
    nodes: int,
    tokens: int,
    hidden: int,
    kernel: str,
    nvlink_bytes_per_s: float,
    nic_bytes_per_s: float,
    group_limit: tuple[int, int] | None = None,
    trials: int = 64,
    seed: int = 0,
    matrix: bool = False,
    fit: str = "published",
) -> dict[str, Any]:
    """Build the question of :func:`dispatch`; ``tokens`` are those of one rank.

    ``fit`` says which measurements tell what the kernels reach: ``published`` (DeepEP's tables,
    H800) or ``hopper`` (H100 and H200 under SGLang).
    """
    if tokens * ranks >= 1 << 32:
        raise InputError("ranks × tokens is below 2^32", field="tokens", value=str(tokens))
    return {
        "batch": {
            "routing": routing,
            "experts": experts,
            "top_k": top_k,
            "tokens": tokens * ranks,
            "ranks": ranks,
            "nodes": nodes,
            "group_limit": group_limit,
        },
        "hidden": hidden,
        "kernel": kernel,
        "links": {
            "nvlink_bytes_per_s": nvlink_bytes_per_s,
            "nic_bytes_per_s": nic_bytes_per_s,
        },
        "draw": {"trials": trials, "seed": seed},
        "matrix": matrix,
        "fit": fit,
    }


def dispatch(question: dict[str, Any]) -> dict[str, Any]:
    """Bytes and time of dispatch and combine; see :func:`dispatch_question`."""
    answer: dict[str, Any] = json.loads(_core.moe_dispatch(json.dumps(question)))
    return answer


def layer_time(
    question: dict[str, Any],
    *,
    expert_hidden: int,
    shared_experts: int = 0,
    weight_bytes: float = 1.0,
    flops_per_s: float,
    bytes_per_s: float,
    overlap: str = "none",
) -> dict[str, float]:
    """Time of one MoE layer, dispatch to combine, set by its hottest rank."""
    require_finite(weight_bytes=weight_bytes, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    spec = {
        "dispatch": question,
        "expert_hidden": expert_hidden,
        "shared_experts": shared_experts,
        "weight_bytes": weight_bytes,
        "flops_per_s": flops_per_s,
        "bytes_per_s": bytes_per_s,
        "overlap": overlap,
    }
    answer: dict[str, float] = json.loads(_core.moe_layer_time(json.dumps(spec)))
    return answer


CAPACITY_RULES = ("megatron", "switch", "tutel")
"""Whose rule says how many rows an expert accepts."""


def sweep(
    *,
    experts: Sequence[int],
    top_k: Sequence[int],
    ranks: Sequence[int],
    nodes: Sequence[int] = (1,),
    redundant: Sequence[int] = (0,),
    alpha: Sequence[float] = (0.0,),
    tokens_per_rank: Sequence[int],
    capacity_factor: Sequence[float] = (0.0,),
    capacity_rule: Sequence[str] = ("megatron",),
    threads: int = 0,
) -> pl.DataFrame:
    """Imbalance of every combination, one row each; see ``moe_columns`` for the columns.

    Parameters
    ----------
    alpha
        Dirichlet concentration per expert; 0 is uniform routing.
    capacity_factor, capacity_rule
        Rows that an expert accepts, by the rule of ``megatron``, ``switch`` or ``tutel``; 0 is
        dropless, but for Tutel, whose capacity is then the largest load.
    """
    import polars as pl

    unknown = [rule for rule in capacity_rule if rule not in CAPACITY_RULES]
    if unknown:
        hint = "one of " + ", ".join(CAPACITY_RULES)
        rule = "is not a rule of capacity"
        raise InputError(rule, field="capacity_rule", value=unknown[0], hint=hint)
    require_finite(alpha=alpha, capacity_factor=capacity_factor)

    axes = {
        "experts": list(experts),
        "top_k": list(top_k),
        "ranks": list(ranks),
        "nodes": list(nodes),
        "redundant": list(redundant),
        "alpha": list(alpha),
        "tokens_per_rank": list(tokens_per_rank),
        "capacity_factor": list(capacity_factor),
        "capacity_rule": list(capacity_rule),
    }
    return pl.DataFrame(_core.moe_sweep(json.dumps(axes), threads=threads))
