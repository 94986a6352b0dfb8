"""What the documents show runs: Python and console blocks, and the examples.

A ``python`` block is executed; blocks of one page share their names, as a reader would expect. In a
``console`` block each line that starts with ``$ `` is run by a shell; it must end with status 0, or
with N where the line ends in ``# exit N``. ``sh`` and ``text`` blocks are only shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPO
from refresh_readme import SHOWN

PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/**/*.md"), *REPO.glob("benches/*.md")])
EXAMPLES = sorted(REPO.glob("examples/*.py"))
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [body for name, body in found if name == language]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def page_id(page: Path) -> str:
    return str(page.relative_to(REPO))


def environment() -> dict[str, str]:
    scripts = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "NO_COLOR": "1"}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


def test_there_is_something_to_run() -> None:
    assert pages_with("console")


@pytest.mark.parametrize("page", pages_with("console"), ids=page_id)
def test_console_blocks_run(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "console"):
        commands = re.sub(r"\\\n", "", block).splitlines()
        for line in (line.removeprefix("$ ") for line in commands if line.startswith("$ ")):
            expected = re.search(r"# exit (\d+)$", line)
            done = run(["bash", "-o", "pipefail", "-c", line], tmp_path)
            status = int(expected[1]) if expected else 0
            assert done.returncode == status, f"$ {line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", pages_with("python"), ids=page_id)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    done = run([sys.executable, "-c", "\n".join(blocks(page, "python"))], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=page_id)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    done = run([sys.executable, str(example)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_readme_shows_what_the_commands_print() -> None:
    shown = SHOWN.findall((REPO / "README.md").read_text(encoding="utf-8"))
    assert shown
    for _, command, old, _ in shown:
        new = run(["bash", "-c", command], REPO).stdout
        # Figures move with the model; the shape of the output does not.
        assert [words(line) for line in old.splitlines()[:6]] == [
            words(line) for line in new.splitlines()[:6]
        ], "make readme"


def words(line: str) -> list[str]:
    """Words of a line of output, figures and units apart."""
    return re.findall(r"[a-z/-]{3,}", line)
