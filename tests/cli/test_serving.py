"""`--workload serving` of `sweep`, `evaluate`, `explain` and `export`, as processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meshplan as mp
from meshplan._core import serving_columns

JOB = (
    *("--workload", "serving", "--gpus", "16", "--model", "llama-3.1-70b", "--cluster", "h200"),
    *("--isl", "2048", "--osl", "256", "--backend", "vllm,trtllm", "--pp", "1", "--dcp", "1"),
)
ONE = (
    *("--workload", "serving", "--model", "llama-3.1-70b", "--cluster", "h200"),
    *("--isl", "2048", "--osl", "256", "--tp", "8", "--concurrency", "32"),
)


def planner(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *args]
    env = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


def answer(*args: str, status: int = 0) -> Any:
    done = planner(*args, "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_one_object_with_the_best_the_front_and_the_account() -> None:
    found = answer("sweep", *JOB, "--ttft", "2s", "--tpot", "50ms", "--price", "2", "--top", "3")
    assert list(found)[:4] == ["best", "objectives", "top", "pareto"]
    assert found["best"] == found["top"][0] and len(found["top"]) == 3
    assert set(found["objectives"]) == {"throughput", "cost"}
    names = [name for name, _, _ in serving_columns()]
    assert list(found["best"])[: len(names)] == names
    space = found["space"]
    assert space["total"] == space["evaluated"] + space["pruned"] + sum(space["rejected"].values())
    assert "stalls included" in found["definition"]
    for row in found["top"]:
        assert row["ttft_s"] <= 2 and row["tpot_s"] <= 0.05 and row["status"] == "ok"
        assert 0 < row["limits_probability"] <= 1
        assert row["gpus"] <= 16
        # Little's law: clients = requests a second x time of a request.
        output = 256 * 0.9
        time_s = row["ttft_s"] + (output - 1) * row["tpot_s"]
        assert row["requests_per_s"] * time_s == pytest.approx(row["concurrency"], rel=0.03)
    front = found["pareto"]
    speeds = [row["tokens_per_s_per_user"] for row in front]
    assert speeds == sorted(speeds, reverse=True)


def test_the_report_and_its_command() -> None:
    done = planner("sweep", *JOB, "--tpot", "50ms", "--top", "2")
    assert done.returncode == 0, done.stderr
    for words in ("Best 2 layouts", "Pareto front", "Rejected", "TTFT: first token - arrival"):
        assert words in done.stdout
    line = next(part for part in done.stdout.splitlines() if part.startswith("Why the first: "))
    words = shlex.split(line.removeprefix("Why the first: "))
    assert words[:2] == ["planner", "explain"]
    told = answer(*words[1:])
    assert told["row"]["status"] == "ok"


def test_both_modes_and_different_layouts_on_the_two_sides() -> None:
    found = answer("sweep", *JOB, "--mode", "disagg", "--tpot", "20ms", "--top", "5")
    for row in found["top"]:
        assert row["mode"] == "disagg" and row["prefill_workers"] >= 1
        gpus = row["workers"] * row["tp"] * row["pp"]
        gpus += row["prefill_workers"] * row["prefill_tp"] * row["prefill_pp"]
        assert gpus == row["gpus"] <= 16


def test_a_rate_takes_the_fewest_gpus() -> None:
    job = (*JOB, "--mode", "agg", "--rate", "4/s", "--tpot", "40ms", "--objective", "gpus")
    found = answer("sweep", *job, "--top", "3")
    sizes = [row["gpus"] for row in found["top"]]
    assert sizes == sorted(sizes)
    assert found["objectives"]["gpus"]["gpus"] == sizes[0]
    assert found["best"]["requests_per_s"] == pytest.approx(4, rel=0.1)
    assert found["best"]["concurrency"] == 0


@pytest.mark.parametrize("given", [(), ("--rate", "4/s"), ("--concurrency", "48")])
def test_output_holds_every_deployment_that_runs(tmp_path: Path, given: tuple[str, ...]) -> None:
    file = tmp_path / "all.parquet"
    limits = ("--ttft", "2s", "--tpot", "30ms", "--max-batch", "8,64")
    done = planner("sweep", *JOB, *limits, *given, "--json", "--output", str(file))
    assert done.returncode == 0, done.stderr
    assert "in closed form" in done.stderr
    frame = pl.read_parquet(file)
    assert [name for name, _, _ in serving_columns()] == frame.columns
    assert set(frame["mode"].unique()) == {"agg", "disagg"}
    assert "ok" in set(frame["status"].unique()) and frame["status"].n_unique() > 1
    # The best that the replay confirms is among them, and its closed form is near.
    best = json.loads(done.stdout)["best"]
    stated = frame.columns[: frame.columns.index("requests_per_s")]
    axes = [n for n in stated if frame[n].dtype == pl.UInt32 or n in ("backend", "mode")]
    same = frame.filter([pl.col(name) == best[name] for name in axes if name != "gpus"])
    assert len(same) == 1
    assert same["tokens_per_s"][0] == pytest.approx(best["tokens_per_s"], rel=0.25)
    assert same["step_s"][0] == pytest.approx(sum(same[n][0] for n in terms(frame, "step_")))
    assert frame["ttft_p99_s"].is_nan().all()


def terms(frame: pl.DataFrame, prefix: str) -> list[str]:
    return [n for n in frame.columns if n.startswith(prefix) and n != f"{prefix}s"]


def test_output_of_nothing_that_runs_has_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "none.csv"
    job = ("--workload", "serving", "--gpus", "1", "--model", "deepseek-v3", "--cluster", "h200")
    lengths = ("--isl", "1024", "--osl", "256", "--backend", "vllm")
    done = planner("sweep", *job, *lengths, "--output", str(file))
    assert done.returncode == 1
    assert pl.read_csv(file).columns == [name for name, _, _ in serving_columns()]


def test_columns_are_those_of_a_deployment() -> None:
    declared = answer("columns", "--workload", "serving")
    assert [row["name"] for row in declared] == [name for name, _, _ in serving_columns()]


def test_evaluate_prints_every_term() -> None:
    done = planner("evaluate", *ONE, "--tpot", "50ms")
    assert done.returncode == 0, done.stderr
    for words in ("p99", "probability", "Decode step", "Prefill pass", "Memory of a GPU", "Cache:"):
        assert words in done.stdout
    row = answer("evaluate", *ONE)
    step = [n for n in row if n.startswith("step_") and n != "step_s"]
    assert row["step_s"] == pytest.approx(sum(row[n] for n in step))
    assert row["ttft_p50_s"] <= row["ttft_p90_s"] <= row["ttft_p99_s"]
    assert row["concurrency"] == 32 and row["gpus"] == 8


def test_explain_names_limits_and_neighbours() -> None:
    told = answer("explain", *ONE, "--gpus", "8")
    assert {"row", "refusal", "alternatives", "requests"} <= set(told)
    assert told["requests"]["played"] == 320
    done = planner("explain", *ONE, "--gpus", "8")
    assert "What limits: " in done.stdout and "Better by one change" in done.stdout


def test_disaggregation_by_hand() -> None:
    row = answer("evaluate", *ONE, "--prefill-tp", "4", "--prefill-workers", "3", "--replicas", "2")
    assert (row["mode"], row["gpus"]) == ("disagg", 2 * 8 + 3 * 4)
    assert 0 < row["prefill_busy_ratio"] <= 1


def test_a_deployment_that_breaks_a_rule_says_which() -> None:
    done = planner("evaluate", *ONE, "--tp", "6")
    assert done.returncode == 1
    assert "a stage lies inside a node of 8 GPUs and divides it" in done.stderr


def test_the_same_from_python() -> None:
    row = mp.evaluate(
        workload="serving", gpus=8, model="llama-3.1-70b", cluster="h200", isl=2048, osl=256,
        tp=8, concurrency=32,
    )  # fmt: skip
    told = answer("evaluate", *ONE)
    assert row.ttft_s == told["ttft_s"] and row.tpot_s == told["tpot_s"]
    result = mp.sweep(
        workload=mp.Serving(isl=2048, osl=256, tpot="50ms"), gpus=8, model="llama-3.1-70b",
        cluster="h200", backend="vllm", mode="agg", top=2,
    )  # fmt: skip
    assert result.proof.holds and result.best.tpot_s <= 0.05
    assert "tokens/s/GPU" in repr(result)


BAD = [
    (("--isl", "0"), "--isl = 0: must be at least 1"),
    (("--osl", "0"), "--osl = 0: must be at least 1"),
    (("--isl", "2147483647"), "must be at most 134217728 tokens"),
    (("--osl", "2147483648"), "must be at most 134217728 tokens"),
    (("--isl", "200000"), "beyond the 131072 positions of llama-3.1-70b"),
    (("--rate", "5/s", "--concurrency", "3"), "contradict"),
    (("--seq-len", "4096"), "is a flag of --workload training"),
    (("--backend", "tgi"), "must be of vllm, sglang, trtllm"),
    (("--mode", "both"), "must be of agg, disagg"),
    (("--ep", "8"), "llama-3.1-70b has no experts"),
    (("--spec-tokens", "2"), "has no multi-token-prediction head"),
    (("--objective", "gpus"), "the fewest GPUs are for a rate"),
    (("--objective", "cost"), "states no price"),
    (("--ttft", "2 GB"), "has a unit that does not fit here"),
    (("--percentile", "p95"), "must be one of"),
    (("--trace", "absent.jsonl"), "absent.jsonl"),
    (("--plot", "front.pdf"), "must end in .png, .svg or .html"),
    (("--gpus", "12"), "must be a multiple of the node's 8 GPUs"),
    (("--kv-dtype", "fp7"), "must be of"),
]


@pytest.mark.parametrize(("flags", "words"), BAD, ids=[" ".join(f) for f, _ in BAD])
def test_bad_input(flags: tuple[str, ...], words: str) -> None:
    done = planner("sweep", *JOB, *flags)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("error: ") and not done.stdout


def test_serving_flags_are_refused_by_training() -> None:
    done = planner("sweep", "--gpus", "8", "--isl", "4096", "--ttft", "2s")
    assert done.returncode == 2
    assert done.stderr.count("is a flag of --workload serving") == 2
    done = planner("sweep", "--gpus", "8", "--workload", "inference")
    assert "must be training or serving" in done.stderr


def test_lengths_must_be_known() -> None:
    done = planner("sweep", "--workload", "serving", "--gpus", "8", "--isl", "10")
    assert done.returncode == 2 and "--osl 1024" in done.stderr


def test_limits_that_nothing_keeps() -> None:
    done = planner("sweep", *JOB, "--mode", "agg", "--ttft", "2s", "--tpot", "1ms")
    assert done.returncode == 1
    assert "nearest: " in done.stderr and "what would meet it: --tpot " in done.stderr
    words = done.stderr.split("what would meet it: --tpot ")[1].split()
    again = planner("sweep", *JOB, "--mode", "agg", "--ttft", "2s", "--tpot", words[0])
    assert again.returncode == 0, again.stderr


def test_a_rate_above_every_capacity() -> None:
    done = planner("sweep", *JOB, "--mode", "agg", "--rate", "100000/s")
    assert done.returncode == 1
    assert "above the capacity" in done.stderr


def test_replays_that_fall_behind_say_what_they_serve(tmp_path: Path) -> None:
    """The closed form of 15 requests/s holds; a trace of 400 ends while its queue still grows."""
    rows = (
        {
            "timestamp": 10 * i,
            "input_length": 1024,
            "output_length": 512,
            "hash_ids": [2 * i, 2 * i + 1],
        }
        for i in range(400)
    )
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = ("--workload", "serving", "--gpus", "8", "--model", "llama-3.1-70b", "--cluster", "h200")
    short = ("--backend", "vllm", "--mode", "agg", "--trace", str(file))
    done = planner("sweep", *job, *short, "--rate", "15/s")
    assert done.returncode == 1
    assert "of 15 requests/s in a replay whose queue still grows" in done.stderr
    assert "a longer trace" in done.stderr
    assert planner("sweep", *job, *short, "--rate", "5/s").returncode == 0


def test_a_model_too_large_for_its_gpus() -> None:
    job = ("--workload", "serving", "--gpus", "1", "--model", "deepseek-v3", "--cluster", "h100")
    done = planner("sweep", *job, "--isl", "100", "--osl", "100", "--mode", "agg")
    assert done.returncode == 1
    assert "memory" in done.stderr


def test_a_trace_is_played(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 250 * i, "input_length": 1200, "output_length": 60, "hash_ids": [0, 1, i + 2]}
        for i in range(200)
    ]
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = (
        *("--workload", "serving", "--gpus", "8", "--model", "llama-3.1-8b", "--cluster", "h100"),
        *("--backend", "vllm", "--mode", "agg", "--trace", str(file)),
    )
    slow = answer("sweep", *job, "--top", "1")["best"]
    assert slow["requests_per_s"] == pytest.approx(4, rel=0.1)
    fast = answer("sweep", *job, "--rate", "40/s", "--top", "1")["best"]
    assert fast["requests_per_s"] > 20
    row = answer("evaluate", *job[:2], *job[4:], "--tp", "1")
    assert row["ttft_s"] > 0


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_charts(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("altair")
    file = tmp_path / f"front.{kind}"
    done = planner("sweep", *JOB, "--mode", "agg", "--plot", str(file))
    assert done.returncode == 0, done.stderr
    assert "tokens/s/GPU" in file.read_text()
    file = tmp_path / f"one.{kind}"
    done = planner("evaluate", *ONE, "--plot", str(file))
    assert done.returncode == 0, done.stderr
    assert file.stat().st_size > 1000


def test_threads_do_not_matter() -> None:
    one, two = (answer("sweep", *JOB, "--tpot", "30ms", "--threads", n) for n in ("1", "2"))
    one.pop("elapsed_s"), two.pop("elapsed_s")
    assert one == two
