"""Redundant experts cost memory, which the cache loses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.kv.size import Flags, Hardware, size
from meshplan.moe import expert_memory

MODEL = "qwen3-30b-a3b"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(args))
    out, err = capsys.readouterr()
    assert not left.value.code, err
    return out


def test_replicas_lower_the_cache_by_what_they_weigh() -> None:
    gpu = Hardware(gpu="h100")
    flags = {"tensor_parallel": 1, "expert_parallel": 8, "max_model_len": 32768}
    plain = size(MODEL, Flags(**flags), gpu).stages[0]["memory"]  # type: ignore[arg-type]
    spare = size(MODEL, Flags(redundant_experts=16, **flags), gpu).stages[0]["memory"]  # type: ignore[arg-type]
    told = expert_memory(MODEL, ranks=8, redundant=16)
    assert spare["replica_bytes"] == pytest.approx(told["replica_bytes_per_rank"])
    lost = plain["available_bytes"] - spare["available_bytes"]
    assert lost == pytest.approx(spare["replica_bytes"])
    # 2 replicas a layer and rank: 48 layers · 2 · 3 · 2048 · 768 weights of 2 bytes.
    assert spare["replica_bytes"] == pytest.approx(48 * 2 * 3 * 2048 * 768 * 2)
    parts = ("weights", "activation", "graph", "context", "available")
    assert sum(spare[f"{p}_bytes"] for p in parts) == pytest.approx(spare["usable_bytes"])


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (MODEL, {"expert_parallel": 8, "redundant_experts": 3}),
        (MODEL, {"expert_parallel": 1, "redundant_experts": 8}),
        (MODEL, {"expert_parallel": 8, "redundant_experts": -8}),
        (MODEL, {"expert_parallel": 8, "redundant_experts": 1 << 39}),
        ("llama-3.1-8b", {"expert_parallel": 8, "redundant_experts": 8}),
    ],
)
def test_replicas_that_have_no_place(model: str, flags: dict[str, int]) -> None:
    with pytest.raises(InputError, match="redundant_experts"):
        size(model, Flags(max_model_len=4096, **flags), Hardware(gpu="h100"))  # type: ignore[arg-type]


def test_balance_tells_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(",".join(str(1 + i % 7) for i in range(128)) + "\n", encoding="utf-8")
    place = ("moe", "balance", str(path), "--ranks", "8", "--redundant", "16", "--model", MODEL)
    told = json.loads(run(capsys, *place, "--json"))["memory"]
    assert told["slots_per_rank"] == 18
    assert told["replica_bytes_per_rank"] == pytest.approx(told["experts_bytes_per_rank"] * 2 / 18)
    assert "which the KV cache loses" in run(capsys, *place)
    with pytest.raises(SystemExit) as left:
        main([*place[:-1], "mixtral-8x7b"])
    assert left.value.code == 2
    assert "has 8 experts" in capsys.readouterr().err


def test_robust_honours_groups_nodes_and_speeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(
        "domain,layer,e0,e1,e2,e3,e4,e5,e6,e7\nweb,0,8,1,4,2,9,3,1,5\ncode,0,1,7,2,4,3,6,8,1\n",
        encoding="utf-8",
    )
    place = ("moe", "balance", str(path), "--robust", "--ranks", "4", "--redundant", "4", "--json")
    shape = ("--nodes", "2", "--groups", "4", "--keep-groups", "--speeds", "2,1,1,1")
    layer = json.loads(run(capsys, *place, *shape))["layers"][0]
    nodes: dict[int, set[int]] = {}
    for slot, expert in enumerate(layer["physical_to_logical"]):
        nodes.setdefault(expert // 2, set()).add(slot // 6)
    assert all(len(found) == 1 for found in nodes.values())
    rows = ([8, 1, 4, 2, 9, 3, 1, 5], [1, 7, 2, 4, 3, 6, 8, 1])
    for row, told in zip(rows, layer["snapshot_max_over_mean"], strict=True):
        share = [w / c for w, c in zip(row, layer["logical_count"], strict=True)]
        slots = layer["physical_to_logical"]
        loads = [sum(share[e] for e in slots[3 * r : 3 * r + 3]) for r in range(4)]
        cost = max(load / speed for load, speed in zip(loads, (2, 1, 1, 1), strict=True))
        assert told == pytest.approx(cost * 5 / sum(row))
    ranks = [layer["physical_to_logical"][3 * r : 3 * r + 3] for r in range(4)]
    assert layer["duplicates"] == sum(len(r) - len(set(r)) for r in ranks)
