"""The shell of the command line: help, version, errors, pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import meshplan


def planner(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version() -> None:
    done = planner("--version")
    assert (done.returncode, done.stdout) == (0, f"planner {meshplan.__version__}\n")


def test_help_is_data() -> None:
    done = planner("--help")
    assert done.returncode == 0
    assert "Usage: planner" in done.stdout
    assert done.stderr == ""


def test_unknown_option_is_a_usage_error() -> None:
    done = planner("--no-such-option")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: No such option")
    assert "\nhint: " in done.stderr


def test_unknown_command_is_a_usage_error() -> None:
    done = planner("swep")
    assert done.returncode == 2
    assert done.stderr.startswith("error: No such command 'swep'")


def test_closed_pipe_is_quiet() -> None:
    shell = f"{sys.executable} -m meshplan.cli.app --help | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    command = [sys.executable, "-m", "meshplan.cli.app", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: stdout: no space left on device\n"
