from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from conftest import shared
from meshplan.errors import InputError
from meshplan.moe import read_loads


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_same_matrix_from_every_kind_of_file(tmp_path: Path) -> None:
    matrix = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    bare = write(tmp_path / "bare.csv", "1,2,3,4\n5,6,7,8\n")
    headed = write(tmp_path / "headed.csv", "layer,e0,e1,e2,e3\n0,1,2,3,4\n1,5,6,7,8\n")
    long = "layer,expert,count\n" + "".join(
        f"{i},{e},{matrix[i][e]}\n" for i in range(2) for e in range(4)
    )
    rows = write(tmp_path / "long.csv", long)
    text = write(tmp_path / "m.json", json.dumps({"logical_count": matrix}))
    parquet = tmp_path / "m.parquet"
    pl.DataFrame(matrix, schema=["0", "1", "2", "3"], orient="row").write_parquet(parquet)
    for path in (bare, headed, rows, text, parquet):
        loads = read_loads(path)
        assert loads.total == matrix, path
        assert loads.layers == [0, 1], path


def test_parquet_with_polars_own_column_names(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    pl.DataFrame([[1.0, 2.0], [3.0, 4.0]], orient="row").write_parquet(path)
    assert read_loads(path).total == [[1.0, 2.0], [3.0, 4.0]]


def test_other_names_of_the_columns(tmp_path: Path) -> None:
    for head in ("layer_id,expert_0,expert_1", "layer_idx,c1,c2", "layer,f0,f1"):
        path = write(tmp_path / "l.csv", f"{head}\n3,1,2\n")
        assert (read_loads(path).layers, read_loads(path).total) == ([3], [[1.0, 2.0]])
    path = write(tmp_path / "l.csv", "layer_id,expert_id,load\n3,0,1\n3,1,2\n")
    assert read_loads(path).total == [[1.0, 2.0]]
    path = write(tmp_path / "l.json", json.dumps({"layers": [[1, 2]]}))
    assert read_loads(path).total == [[1.0, 2.0]]


def test_snapshots_are_kept_apart_and_summed(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "domain,layer,e0,e1\na,3,1,2\nb,3,10,20\n")
    loads = read_loads(path)
    assert loads.names == ["a", "b"]
    assert loads.layers == [3]
    assert loads.total == [[11.0, 22.0]]
    assert read_loads(path, where={"domain": "b"}).total == [[10.0, 20.0]]
    steps = write(tmp_path / "l.json", json.dumps([[[1, 2]], [[3, 4]]]))
    assert read_loads(steps).total == [[4.0, 6.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("1,2\n1,2,3\n", "3 experts"),
        ("1,nan\n", "not a number"),
        ("1,-2\n", "not negative"),
        ("1,inf\n", "finite"),
        ("1,2\n0,0\n", "no expert has a load"),
        ("0,0\n0,0\n", "no expert of any layer"),
        ("layer,e0,e1,e2\n0,0,0,0\n3,1,2,3\n", "dense layer"),
        ("1,2,0,0\n3,4,0,0\n", "one rank's part"),
        ("total_assignments,e0,e1\n10,4,5\n", "sum to 9"),
        ("layer,e0,e1\n0,1,2\n0,1,2\n", "twice"),
        ("layer,e0,e2\n0,1,2\n", "e0 … e1"),
        ("layer,name\n0,x\n", "no column of counts"),
        ("layer,e0,e1\n0,1,x\n", "not a number"),
        ("layer,e0,e1\nzero,1,2\n", "not a number"),
        ("layer,e0,e1\n0,1\n", "the header has"),
    ],
)
def test_what_cannot_be_a_recording_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_loads(write(tmp_path / "l.csv", text))


def test_tokens_times_k_must_be_the_sum(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "tokens,e0,e1,e2\n10,5,6,9\n")
    assert read_loads(path, top_k=2).experts == 3
    with pytest.raises(InputError, match=r"tokens × 3 = 30"):
        read_loads(path, top_k=3)


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "1,nan\n-1,2\n")
    with pytest.raises(InputError) as caught:
        read_loads(path)
    assert len(caught.value.problems) == 2
    assert "l.csv:1" in str(caught.value)


def test_dense_layers_are_left_out_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "layer,e0,e1,e2\n0,0,0,0\n3,1,2,3\n")
    loads = read_loads(path, skip_dense=True)
    assert loads.layers == [3]
    assert loads.dense == [0]


def test_files_that_are_not_loads(tmp_path: Path) -> None:
    for name, text in [
        ("a.pkl", "x"),
        ("a.json", "{"),
        ("b.json", '{"x": 1}'),
        ("c.json", "[[true]]"),
    ]:
        with pytest.raises(InputError):
            read_loads(write(tmp_path / name, text))
    with pytest.raises(InputError, match="no such file"):
        read_loads(tmp_path / "absent.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="Parquet"):
        read_loads(tmp_path / "bad.parquet")


def test_public_recordings_read_whole() -> None:
    folder = shared("truth", "moe", "loads")
    olmoe = read_loads(
        folder / "olmoe" / "olmoe_1b_7b_expert_counts.csv",
        where={"kind": "expert_counts", "model": "olmoe"},
    )
    assert (len(olmoe.snapshots), olmoe.layers, olmoe.experts) == (6, [0, 7, 15], 64)
    oss = read_loads(folder / "gptoss20b" / "gptoss20b_expert_counts_by_dataset.csv", top_k=4)
    assert (len(oss.snapshots), len(oss.layers), oss.experts) == (11, 24, 32)


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text(
        "layer,total,e0,e1,e2\n0,6,1,nan,3\n1,6,-5,1,x\nz,6,1,2,3\n3,9,1,2,3\n4,a,1,2,3\n5,1,2\n"
    )
    with pytest.raises(InputError) as refused:
        read_loads(path)
    told = [str(problem) for problem in refused.value.problems]
    expected = [
        ":4: layer = z: not a number",
        ":7: has 3 cells, the header has 5",
        ":2: expert 1 = nan: not a number",
        ":3: expert 0 = -5: counts are finite and not negative, below 1e+18",
        ":3: expert 2 = x: not a number",
        ":5: the counts sum to 6, not to total = 9",
        ":6: total = a: a stated total is a finite number",
    ]
    assert [line.removeprefix(str(path)) for line in told] == expected


def test_json_problems_name_the_layer(tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    path.write_text("[[1, 2], [3, -4], [5]]")
    with pytest.raises(InputError) as refused:
        read_loads(path)
    told = [str(problem) for problem in refused.value.problems]
    assert "layer 1, expert 1 = -4" in told[0]
    assert "layer 2, row: has 1 experts" in told[1]
