"""Measuring this machine: on the CPU with gloo it runs the path of a GPU with NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest


def planner(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshplan.cli.app", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_measures_and_writes_what_calibrate_reads(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is an optional extra: meshplan[measure]")
    done = planner("measure", "--output", str(tmp_path), "--each", "0.001", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["parts"]) == {"gemm", "attention", "copy", "collectives"}
    assert pl.read_csv(tmp_path / "gemm.csv").columns == ["dtype", "m", "n", "k", "latency_us"]
    assert (pl.read_csv(tmp_path / "collectives.csv")["busbw"] > 0).all()


@pytest.mark.parametrize("args", [("--only", "gemm,soup"), ("--each", "0"), ("--each", "1000")])
def test_bad_flags(tmp_path: Path, args: tuple[str, str]) -> None:
    done = planner("measure", "--output", str(tmp_path), *args)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
