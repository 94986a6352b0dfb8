"""The house itself: what is committed, and that it stays readable."""

from __future__ import annotations

import re
import statistics
import subprocess
import tomllib
from pathlib import Path

import pytest

from conftest import REPO

LIMIT = 500
"""Lines of a source file that a newcomer still reads in one sitting."""


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=REPO, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    files = [REPO / name for name in done.stdout.split("\0") if name]
    assert files
    return files


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_source_files_are_short() -> None:
    sizes = {path: lines(path) for path in tracked("*.rs", "*.py", "*.pyi")}
    assert {str(path): size for path, size in sizes.items() if size > LIMIT} == {}
    assert statistics.median(sizes.values()) < 200


def test_lock_files_name_hashes_and_no_index() -> None:
    for path in tracked("requirements/*.txt"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text), path
        pins = re.findall(r"^\S+==\S+", text, re.MULTILINE)
        assert pins
        assert text.count("--hash=sha256:") >= len(pins)
    assert "registry+https://github.com/rust-lang/crates.io-index" in (
        REPO / "Cargo.lock"
    ).read_text(encoding="utf-8")


def test_lock_files_satisfy_the_declared_dependencies() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = (REPO / "requirements" / "run.txt").read_text(encoding="utf-8")
    pins = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", locked, re.MULTILINE)}
    for requirement in project["dependencies"]:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert name
        assert name[0].lower() in pins


def test_nothing_large_is_committed() -> None:
    large = {str(path): path.stat().st_size for path in tracked() if path.stat().st_size > 1 << 20}
    assert large == {}
