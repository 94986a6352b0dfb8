"""Placements in the formats that serving engines load."""

from __future__ import annotations

from typing import Any


def engine_map(
    layers: list[dict[str, Any]], engine: str, ranks: int, dense: list[int]
) -> dict[str, Any]:
    """Build what an engine loads.

    Parameters
    ----------
    layers
        Layers with ``layer`` and ``physical_to_logical``.
    engine
        ``sglang``: the file of ``--init-expert-location``; dense layers get the experts in order,
        since SGLang counts every layer. ``vllm``: the three maps of its EPLB state.
        ``vllm-ascend``: the file of ``expert_map_path``.
    ranks
        Ranks of the expert-parallel group.
    dense
        Numbers of the layers without experts.
    """
    maps = [layer["physical_to_logical"] for layer in layers]
    if engine == "vllm":
        return _vllm(maps)
    if engine == "vllm-ascend":
        return _ascend(layers, ranks)
    experts = 1 + max(maps[0])
    trivial = [slot % experts for slot in range(len(maps[0]))]
    numbered = [(layer["layer"], layer["physical_to_logical"]) for layer in layers]
    numbered += [(number, trivial) for number in dense]
    return {"physical_to_logical_map": [m for _, m in sorted(numbered, key=lambda n: n[0])]}


def _vllm(maps: list[list[int]]) -> dict[str, Any]:
    experts = 1 + max(maps[0])
    homes = [[[s for s, e in enumerate(m) if e == x] for x in range(experts)] for m in maps]
    most = max(len(slots) for layer in homes for slots in layer)
    return {
        "physical_to_logical_map": maps,
        "logical_to_physical_map": [
            [slots + [-1] * (most - len(slots)) for slots in layer] for layer in homes
        ],
        "logical_replica_count": [[len(slots) for slots in layer] for layer in homes],
    }


def _ascend(layers: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    def devices(slots: list[int]) -> list[dict[str, Any]]:
        size = len(slots) // ranks
        return [
            {"device_id": r, "device_expert": slots[r * size : (r + 1) * size]}
            for r in range(ranks)
        ]

    return {
        "moe_layer_count": len(layers),
        "layer_list": [
            {
                "layer_id": i,
                "device_count": ranks,
                "device_list": devices(layer["physical_to_logical"]),
            }
            for i, layer in enumerate(layers)
        ],
    }
