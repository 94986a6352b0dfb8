"""Files of results: whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from meshplan.errors import InputError
from meshplan.output import check, write

if TYPE_CHECKING:
    from collections.abc import Iterator

READERS = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".arrow": pl.read_ipc}


def batches(count: int = 3, rows: int = 1000) -> Iterator[pl.DataFrame]:
    for start in range(0, count * rows, rows):
        yield pl.DataFrame({"id": range(start, start + rows), "half": [0.5] * rows})


@pytest.mark.parametrize("ending", sorted(READERS))
def test_every_row_arrives_in_order(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"all{ending}"
    assert write(batches(), file) == 3000
    frame = READERS[ending](file)
    assert frame["id"].to_list() == list(range(3000))
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


def test_a_file_is_replaced_only_when_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    file.write_text("old")

    def broken() -> Iterator[pl.DataFrame]:
        yield from batches(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot be written: .*no space left"):
        write(broken(), file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("all.xlsx", r"must end in \.parquet"),
        ("no/such/folder/all.csv", "does not exist"),
        ("folder.csv", "is a folder"),
    ],
)
def test_hopeless_paths(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=rule):
        check(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written to: permission denied"):
        check(tmp_path / "all.csv")


def test_pseudo_file_system_refuses() -> None:
    if not Path("/proc").is_dir():
        pytest.skip("no /proc here")
    with pytest.raises(InputError, match="cannot be written to"):
        check("/proc/all.csv")


def test_full_disk(tmp_path: Path) -> None:
    """A limit on file size stands for a full disk: the write fails halfway."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "import polars as pl; from meshplan.output import write;"
        "write((pl.DataFrame({'x': range(i, i + 99999)}) for i in range(9)), sys.argv[1])"
    )
    file = tmp_path / "all.csv"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True,
        text=True,
    )
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []
