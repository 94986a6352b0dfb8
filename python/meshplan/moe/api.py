"""Questions about MoE routing, asked of the core."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import meshplan._core as _core

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        "speeds": [float(s) for s in speeds],
        "keep_groups": keep_groups,
    }
    answer: list[dict[str, Any]] = json.loads(_core.moe_balance(json.dumps(spec)))
    return answer
