"""`planner sweep` as a process, and `meshplan.sweep` beside it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meshplan as mp

SMALL = ("--gpus", "16", "--model", "llama-3.1-8b", "--global-batch", "64", "--micro-batch", "1..4")


def planner(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *args]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "NO_COLOR": "1", **env}
    )


def answer(*args: str) -> Any:
    done = planner(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


READERS: dict[str, Callable[..., pl.DataFrame]] = {
    "parquet": pl.read_parquet,
    "csv": pl.read_csv,
    "arrow": pl.read_ipc,
}
ROW = {
    *("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "sharding", "recompute"),
    *("schedule", "status", "step_time_s", "peak_memory_bytes", "tokens_per_s_per_gpu"),
    "mfu_ratio",
}


def test_one_object_with_the_best_and_the_account() -> None:
    found = answer("sweep", *SMALL, "--top", "3")
    assert list(found) == ["best", "top", "pareto", "space", "elapsed_s", "version"]
    assert found["best"] == found["top"][0]
    assert len(found["top"]) == 3
    assert set(found["best"]) >= ROW
    assert [name for name, _, _ in mp.columns()] == list(found["best"])[: len(mp.columns())]
    times = [row["step_time_s"] for row in found["top"]]
    assert times == sorted(times)
    assert found["pareto"][0]["step_time_s"] == times[0]
    space = found["space"]
    assert space["total"] == space["evaluated"] + space["pruned"] + sum(space["rejected"].values())
    assert found["version"] == mp.__version__


def test_pruning_changes_nothing_but_the_work() -> None:
    pruned, all_ = answer("sweep", *SMALL), answer("sweep", *SMALL, "--exhaustive")
    assert pruned["top"] == all_["top"]
    assert pruned["pareto"] == all_["pareto"]
    assert all_["space"]["pruned"] == 0
    assert pruned["space"]["total"] == all_["space"]["total"]


def test_threads_change_nothing() -> None:
    one, three = (answer("sweep", *SMALL, "--threads", n) for n in ("1", "3"))
    assert (one["top"], one["pareto"]) == (three["top"], three["pareto"])


def test_python_and_command_line_agree() -> None:
    found = answer("sweep", *SMALL)
    result = mp.sweep(
        gpus=16, model="llama-3.1-8b", workload={"global_batch": 64}, micro_batch="1..4"
    )
    assert result.best.to_dict() == found["best"]
    assert result.proof.holds
    assert result.proof.to_dict() == found["space"]
    assert repr(result).count("\n") == 10


def test_report_for_people() -> None:
    done = planner("sweep", *SMALL)
    assert done.returncode == 0
    assert done.stderr == ""
    for words in ("Best 10 layouts", "Pareto front", "Rejected", "skipped by bounds"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Why the first: planner explain --gpus 16 --model llama-3.1-8b")
    best = mp.sweep(
        gpus=16, model="llama-3.1-8b", workload={"global_batch": 64}, micro_batch="1..4"
    ).best
    told = answer(*shlex.split(last)[4:])
    assert told["row"] == best.to_dict()


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_any_width(columns: str) -> None:
    done = planner("sweep", *SMALL, COLUMNS=columns)
    assert done.returncode == 0
    assert "step" in done.stdout


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
def test_every_layout_in_a_file(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"all.{ending}"
    done = planner("sweep", *SMALL, "--output", str(file), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    frame = READERS[ending](file)
    assert f"wrote {frame.height:,} layouts" in done.stderr
    space = found["space"]
    rules = sum(count for reason, count in space["rejected"].items() if reason != "memory")
    assert frame.height == space["total"] - rules
    best = frame.filter(pl.col("status") == "ok")["step_time_s"].min()
    assert best == found["best"]["step_time_s"]
    assert list(tmp_path.iterdir()) == [file]


def test_frame_has_every_layout_and_matches_the_account() -> None:
    result = mp.sweep(gpus=8, model="llama-3.1-8b", workload={"global_batch": 16}, exhaustive=True)
    counts = dict(result.frame["status"].cast(pl.String).value_counts().iter_rows())
    assert counts["ok"] == result.proof.evaluated
    assert counts.get("memory", 0) == result.proof.rejected.get("memory", 0)
    assert sum(len(part) for part in result.batches()) == sum(counts.values())


def test_frames_share_the_memory_of_the_core() -> None:
    result = mp.sweep(gpus=8, model="llama-3.1-8b", workload={"global_batch": 16})
    addresses = result.frames["top"]._buffer_addresses()
    for name in ("step_time_s", "peak_memory_bytes", "dp"):
        values = result.top[name].to_numpy(allow_copy=False)
        pointer = values.__array_interface__["data"][0]
        assert pointer == addresses[name]


def test_nothing_feasible_says_what_is_nearest() -> None:
    done = planner("sweep", "--gpus", "8", "--model", "llama-3.1-405b", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["best"] is None
    assert found["top"] == []
    assert found["space"]["rejected"]["memory"] > 0
    assert "nearest to giving way: memory: " in done.stderr
    with pytest.raises(mp.Infeasible, match="nearest to giving way"):
        _ = mp.sweep(gpus=8, model="llama-3.1-405b").best


def test_no_layout_obeys_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    done = planner("sweep", "--gpus", "1024", "--tp", "1024", "--output", str(file))
    assert done.returncode == 1
    assert "nearest to giving way: heads (G1)" in done.stderr
    assert pl.read_parquet(file).columns == [name for name, _, _ in mp.columns()]
    assert mp.sweep(gpus=1024, tp=1024).frame.is_empty()


def test_a_plan_file_and_flags_over_it(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'gpus = 16\nmodel = "llama-3.1-8b"\ncluster = "h200"\ntop = 2\n'
        "[workload]\nglobal_batch = 64\n[space]\ntp = [2, 4]\n"
    )
    done = planner("sweep", "--config", "plan.toml", "--pp", "2", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert len(found["top"]) == 2
    assert {row["tp"] for row in found["pareto"]} <= {2, 4}
    assert {row["pp"] for row in found["pareto"]} == {2}


def test_closed_pipe() -> None:
    words = shlex.join([sys.executable, "-m", "meshplan.cli.app", "sweep", *SMALL])
    shell = f"{words} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_interrupt_is_quick(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    words = ["sweep", "--gpus", "1024", "--output", str(file)]
    running = subprocess.Popen(
        [sys.executable, "-m", "meshplan.cli.app", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert time.monotonic() - asked < 5
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_large_file_in_bounded_memory(tmp_path: Path) -> None:
    """12.9 million rows of 50 columns; the resident set does not grow with their number."""
    file = tmp_path / "all.parquet"
    code = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    job = ["--gpus", "1024", "--model", "deepseek-v3", "--seq-len", "4096"]
    words = [sys.executable, "-m", "meshplan.cli.app", "sweep", *job, "--global-batch", "15360"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--output", str(file)], capture_output=True, text=True
    )
    status, kilobytes = done.stdout.splitlines()[-1].split()
    assert status == "0"
    assert pl.scan_parquet(file).select(pl.len()).collect().item() > 10_000_000
    assert int(kilobytes) < 1 << 20
