from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli.app import main
from meshplan.moe import balance
from meshplan.moe.placement import engine_map

FLASHLB = "600,560,120,120,20,10,10,10\n"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["moe", "balance", *args])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def flashlb(tmp_path: Path) -> str:
    path = tmp_path / "loads.csv"
    path.write_text(FLASHLB, encoding="utf-8")
    return str(path)


def layer_of(out: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(out)
    return dict(answer["layers"][0])


def test_json_of_both_policies(flashlb: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--ranks", "8", "--redundant", "8", "--json")
    status, out, _ = run(capsys, flashlb, *shape, "--policy", "eplb")
    greedy = layer_of(out)
    assert status == 0
    assert greedy["rank_max_over_mean"] == pytest.approx(232 / 181.25)
    assert greedy["duplicates"] == 1
    _, out, _ = run(capsys, flashlb, *shape)
    best = layer_of(out)
    assert best["rank_max_over_mean"] == pytest.approx(590 / 3 / 181.25)
    assert best["bound_max_over_mean"] <= best["rank_max_over_mean"]
    assert sorted(set(best["physical_to_logical"])) == list(range(8))
    assert sum(best["logical_count"]) == 16
    columns = json.loads(out)
    assert columns["physical_to_logical"] == [best["physical_to_logical"]]


def test_the_table_fits_eighty_columns_or_a_little_more(
    flashlb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, flashlb, "--ranks", "8", "--redundant", "8")
    assert status == 0
    assert "1.0851" in out
    assert err == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ranks", "3"), "the smallest that fits is 1"),
        (("--ranks", "2", "--redundant", "10"), "more replicas than slots"),
        (("--ranks", "8", "--nodes", "3"), "must divide ranks"),
        (("--ranks", "8", "--groups", "3"), "must divide experts"),
        (("--ranks", "8", "--speeds", "1,x"), "numbers with commas"),
        (("--ranks", "8", "--speeds", "1,1"), "one speed per rank"),
        (("--ranks", "8", "--where", "x"), "LABEL=VALUE"),
        (("--ranks", "8", "--where", "x=1"), "no row is left"),
    ],
)
def test_wrong_questions(
    flashlb: str, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    status, out, err = run(capsys, flashlb, *args)
    assert (status, out) == (2, "")
    assert message in err


def test_output_for_each_engine(
    flashlb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for engine in ("sglang", "vllm", "vllm-ascend"):
        path = tmp_path / f"{engine}.json"
        shape = ("--ranks", "8", "--redundant", "8")
        assert run(capsys, flashlb, *shape, "--output", str(path), "--engine", engine)[0] == 0
        written = json.loads(path.read_text(encoding="utf-8"))
        if engine == "vllm-ascend":
            devices = written["layer_list"][0]["device_list"]
            slots = [e for device in devices for e in device["device_expert"]]
        else:
            slots = written["physical_to_logical_map"][0]
        assert sorted(set(slots)) == list(range(8))
        assert len(slots) == 16
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_vllm_maps_point_back() -> None:
    layers = balance([[5, 1, 1, 1]], ranks=2, redundant=2)
    maps = engine_map([{**layers[0], "layer": 0}], "vllm", 2, [])
    for expert, slots in enumerate(maps["logical_to_physical_map"][0]):
        homes = [s for s in slots if s >= 0]
        assert len(homes) == maps["logical_replica_count"][0][expert]
        assert all(maps["physical_to_logical_map"][0][s] == expert for s in homes)


def test_sglang_counts_dense_layers() -> None:
    layers = [{"layer": 1, "physical_to_logical": [1, 0]}]
    assert engine_map(layers, "sglang", 2, [0]) == {"physical_to_logical_map": [[0, 1], [1, 0]]}
