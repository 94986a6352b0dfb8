"""``planner export``: from a job to files that start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from meshplan.export import EXPORTERS

if TYPE_CHECKING:
    from pathlib import Path

JOB = ("--model", "llama-3.1-8b", "--gpus", "64", "--global-batch", "256")


def export(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", "export", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", EXPORTERS)
def test_the_best_layout_under_the_rules_of_the_target(target: str) -> None:
    done = export(*JOB, "--to", target, "--json")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["framework"] == target
    assert got["files"]
    at = got["layout"]
    assert at["dp"] * at["tp"] * at["pp"] * at["cp"] == 64


def test_a_pinned_layout_is_exported_as_it_is() -> None:
    done = export(*JOB, "--to", "megatron", "--tp", "4", "--pp", "2", "--recompute", "full")
    assert done.returncode == 0, done.stderr
    assert "--tensor-model-parallel-size 4\n" in done.stdout
    assert "--pipeline-model-parallel-size 2\n" in done.stdout
    assert "--recompute-method uniform\n" in done.stdout


def test_files_go_to_a_folder(tmp_path: Path) -> None:
    done = export(*JOB, "--to", "deepspeed", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds_config.json", "launch.sh"]
    assert json.loads((tmp_path / "ds_config.json").read_text())["train_batch_size"] == 256


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        ((), 2, "error: --to = nothing: must be one of megatron"),
        (("--to", "jax"), 2, "error: --to = jax: must be one of"),
        (("--to", "megatron", "--rank", "0"), 2, "error: --rank = 0"),
        (("--to", "megatron", "--folder", "/no/such"), 2, "error: --folder"),
        (("--to", "megatron", "--schedule", "zb-h1"), 1, "error: "),
        (("--framework", "generic", "--to", "megatron", "--schedule", "zb-h1", "--pp", "2"), 1,
         "error: not expressible for Megatron-LM: schedule zb-h1"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_said(args: tuple[str, ...], status: int, words: str) -> None:
    done = export(*JOB, *args)
    assert done.returncode == status
    assert done.stderr.startswith(words)
    assert done.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_input_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = export(*JOB, "--to", "deepspeed", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "--folder" in done.stderr
