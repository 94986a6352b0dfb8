"""Importing the package is light, and what it promises is there."""

from __future__ import annotations

import json
import subprocess
import sys

import meshplan

HEAVY = {"altair", "numpy", "polars", "pydantic", "rich", "scipy", "torch", "typer"}


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_loads_nothing_heavy() -> None:
    modules = modules_after("import meshplan")
    assert "meshplan._core" in modules
    assert not modules & HEAVY


def test_command_line_loads_no_frame_library() -> None:
    modules = modules_after("import meshplan.cli.app")
    assert "typer" in modules
    assert not modules & {"altair", "numpy", "polars", "scipy", "torch"}


def test_every_public_name_resolves() -> None:
    assert meshplan.__all__
    for name in meshplan.__all__:
        assert getattr(meshplan, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(meshplan, "no_such_name")
