"""Bad input, as a user meets it: one clear message each, status 2, nothing on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = ("evaluate", "--gpus", "64", "--tp", "8", "--pp", "4")


def planner(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *args]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "NO_COLOR": "1"}
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (("sweep",), "gpus: is required", "--gpus 1024"),
        (("sweep", "--gpus", "0"), "--gpus = 0: must be at least 1", ""),
        (("sweep", "--gpus", "-8"), '--gpus = "-8": must not be negative', ""),
        (("sweep", "--gpus", "nan"), '--gpus = "nan": must be', ""),
        (("sweep", "--gpus", "1e999"), "every sensible range", ""),
        (
            ("sweep", "--gpus", "1020"),
            "must be a multiple of the node's 8 GPUs",
            "use 1016 or 1024",
        ),
        (("sweep", "--gpus", "64", "--model", "lama-3.1-70b"), "lama-3.1-70b", "llama-3.1-70b"),
        (("sweep", "--gpus", "64", "--cluster", "h10"), "is not a known preset", "h100"),
        (("sweep", "--gpus", "64", "--cluster", "no/such.toml"), "no such file", ""),
        (("sweep", "--gpus", "64", "--config", "no.toml"), "no.toml: cannot be read", ""),
        (("sweep", "--gpus", "64", "--precision", "fp7"), "must be one of bf16", ""),
        (("sweep", "--gpus", "64", "--framework", "megatorn"), "must be one of", "megatron"),
        (("sweep", "--gpus", "64", "--tp", "3"), "--tp = 3: must divide the 64 GPUs", "use 2 or 4"),
        (("sweep", "--gpus", "64", "--tp", "8..2"), "must rise", "write 8"),
        (("sweep", "--gpus", "64", "--ep", "8"), "has no experts", "drop ep"),
        (("sweep", "--gpus", "64", "--routing", "uniform"), "has no experts", "drop routing"),
        (("sweep", "--gpus", "64", "--moe-imbalance", "2"), "has no experts", "drop moe_imbalance"),
        (("sweep", "--gpus", "999999999999"), "must be at most 16777216", ""),
        (("sweep", "--gpus", "64", "--pp", "1", "--vpp", "2"), "virtual chunks need pp", "drop"),
        (("sweep", "--gpus", "64", "--output", "all.xlsx"), "must end in .parquet", ""),
        (("sweep", "--gpus", "64", "--output", "no/all.csv"), "does not exist", "mkdir"),
        (("sweep", "--gpus", "64", "--output", "/proc/all.csv"), "cannot be written to", ""),
        ((*JOB, "--global-batch", "7"), "must be a multiple of micro_batch · dp = 2", "use 6 or 8"),
        ((*JOB, "--micro-batch", "1,2"), "must be one value", "pin it"),
        ((*JOB, "--sequence-parallel", "maybe"), "must be on or off", ""),
        ((*JOB, "--cp", "4"), "must divide gpus = 64", "leave one of them open"),
        ((*JOB, "--no-such-flag"), "No such option", "--help"),
    ],
)
def test_flags(args: tuple[str, ...], message: str, hint: str, tmp_path: Path) -> None:
    said = refused(planner(*args, cwd=tmp_path))
    assert message in said
    assert hint in said
    assert list(tmp_path.iterdir()) == []


MOE = ("evaluate", "--gpus", "64", "--model", "mixtral-8x7b", "--ep", "8")


def test_a_file_of_loads_that_is_not_there() -> None:
    said = refused(planner(*MOE, "--routing", "no/loads.csv"))
    assert "--routing = no/loads.csv: neither a routing model nor a file" in said
    assert "hint: uniform" in said


def test_two_words_on_the_balance_of_experts() -> None:
    said = refused(planner(*MOE, "--routing", "uniform", "--moe-imbalance", "2"))
    assert "--moe-imbalance = 2.0: routing sets the imbalance itself" in said


def test_loads_of_another_model(tmp_path: Path) -> None:
    loads = tmp_path / "loads.csv"
    loads.write_text("1,2,3,4\n4,3,2,1\n")
    said = refused(planner(*MOE, "--routing", str(loads)))
    assert "holds loads of 4 experts, mixtral-8x7b has 8" in said


def test_every_problem_of_a_file_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'gpus = 64\n[cluster]\npreset = "h100"\nnic = "400 Gb"\n'
        '[cluster.device]\nmemory = "80 Gb"\n[workload]\nseq_len = -1\n'
    )
    said = refused(planner("sweep", "--config", "plan.toml", "--tp", "x", cwd=tmp_path))
    assert 'error: plan.toml:4:7: cluster.nic = "400 Gb": ' in said
    assert 'plan.toml:6:10: cluster.device.memory = "80 Gb": is in bits (Gb) where bytes' in said
    assert "error: plan.toml:8:11: workload.seq_len = -1: must not be negative" in said
    assert 'error: --tp = "x": must be whole numbers' in said
    assert said.count("error: ") == 4


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '{"model_type": "llama"}', "\x00"])
def test_broken_models(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    refused(planner("sweep", "--gpus", "64", "--model", "config.json", cwd=tmp_path))


def test_model_with_heads_that_do_not_divide(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 5,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = refused(planner("sweep", "--gpus", "64", "--model", ".", cwd=tmp_path))
    assert "num_key_value_heads" in said


def test_closed_pipe(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m meshplan.cli.app columns | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("column")
