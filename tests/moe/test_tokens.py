"""Records of single tokens are counted into loads."""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pytest

from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.moe import describe, imbalance, read_loads, read_routing


def records() -> list[dict[str, object]]:
    draw = random.Random(3)
    return [
        {"layer": layer, "token": t, "experts": draw.sample(range(8), 2), "num_experts": 8}
        for layer in (3, 4)
        for t in range(200)
    ]


def write(kind: str, folder: Path) -> Path:
    rows = records()
    path = folder / f"tokens.{kind}"
    if kind == "parquet":
        pl.DataFrame(rows).write_parquet(path)
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    else:
        text = [f"{r['layer']},{r['token']},{' '.join(map(str, r['experts']))},8" for r in rows]  # type: ignore[call-overload]
        path.write_text("\n".join(["layer,token,experts,num_experts", *text]), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_every_format_counts_the_same(kind: str, tmp_path: Path) -> None:
    loads = read_loads(write(kind, tmp_path))
    expected = [[0.0] * 8, [0.0] * 8]
    for row in records():
        for e in row["experts"]:  # type: ignore[attr-defined]
            expected[row["layer"] - 3][e] += 1  # type: ignore[operator]
    assert loads.layers == [3, 4]
    assert loads.total == expected
    assert loads.top_k == 2


def test_other_columns_are_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("domain,experts\nweb,0;1\ncode,1;2\nweb,2;1\n", encoding="utf-8")
    loads = read_loads(path)
    assert loads.names == ["web", "code"]
    assert loads.snapshots == [[[1.0, 2.0, 1.0]], [[0.0, 1.0, 1.0]]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("experts\n0 1\n2\n", "1 tokens"),
        ("experts\n0 0\n", "different experts"),
        ("experts\n0 x\n", "whole numbers"),
        ("experts\n0 -1\n", "different experts"),
        ("experts\n0 70000\n", "65,536"),
        ("experts\n0 1.5\n", "whole numbers"),
        ("layer,experts\nx,0 1\n", "layer's number"),
        ("layer,experts\n0\n", "cells"),
        ("num_experts,experts\n2,0 5\n", "num_experts"),
        ("num_experts,experts\nmany,0 5\n", "num_experts"),
        ("experts\n", "records no token"),
        ("layer,expert,count\n0,nan,1\n", "not an expert's number"),
        ("layer,expert,count\n0,1.5,1\n", "not an expert's number"),
    ],
)
def test_what_is_no_record_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_loads(path)


def test_columns_with_names_of_counts_are_not_labels(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("expert,count,layer,experts\n9,5,0,0 1\n", encoding="utf-8")
    assert read_loads(path).total == [[1.0, 1.0]]


@pytest.mark.parametrize("line", ['{"experts": [[1, 2], [3]]}', '{"experts": {"a": 1}}'])
def test_nested_choices_are_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="list of whole numbers"):
        read_loads(path)


def test_records_route_and_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("parquet", tmp_path)
    shape = {"experts": 8, "top_k": 2, "ranks": 4, "tokens_per_rank": 50}
    assert imbalance(str(path), **shape) > 1.0  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as left:
        main(["moe", "loads", str(path), "--json"])
    assert not left.value.code
    told = json.loads(capsys.readouterr().out)
    assert told["top_k"] == 2
    low, high, top = told["layers"][0]["quantiles_over_mean"]
    assert low <= high <= top <= told["layers"][0]["max_over_mean"]


def test_counts_do_not_tell_k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,2,3,4\n", encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        main(["moe", "loads", str(path)])
    assert left.value.code == 2
    assert "--top-k" in capsys.readouterr().err


def test_a_bias_leaves_a_part_of_the_skew() -> None:
    shape = {"experts": 64, "top_k": 8, "ranks": 8, "tokens_per_rank": 1e7}
    ask = lambda text: imbalance(text, **shape) - 1  # type: ignore[arg-type] # noqa: E731
    assert ask("dirichlet:1.3*0") == pytest.approx(ask("uniform"), rel=1e-9)
    assert ask("dirichlet:1.3*1") == pytest.approx(ask("dirichlet:1.3"), rel=1e-9)
    assert ask("dirichlet:1.3*0.2") == pytest.approx(0.2 * ask("dirichlet:1.3"), rel=0.1)
    assert ask("zipf:0.5*0.5") == pytest.approx(0.5 * ask("zipf:0.5"), rel=0.05)
    for bad in (
        "dirichlet:1.3*x",
        "dirichlet:1.3*2",
        "dirichlet:1.3*nan",
        "uniform*0.5*0.5",
        "*1",
        "zipf:inf",
    ):
        with pytest.raises(InputError):
            ask(bad)
    assert read_routing("uniform*0.5")["of"] == {"kind": "uniform"}


def test_shared_experts_dilute() -> None:
    shape = {"experts": 64, "top_k": 8, "ranks": 8, "tokens_per_rank": 4096}
    alone = imbalance("dirichlet:1", **shape)  # type: ignore[arg-type]
    beside = imbalance("dirichlet:1", shared_experts=1, **shape)  # type: ignore[arg-type]
    assert beside == pytest.approx((alone * 8 + 1) / 9)


def test_one_snapshot_has_quantiles() -> None:
    layer = describe([[[1.0, 2.0, 3.0, 10.0]]], top_k=1)[0]
    assert layer["quantiles_over_mean"][2] == layer["max_over_mean"] == 2.5
