"""The examples of docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import meshplan

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(meshplan.__path__, "meshplan.")
    if not found.name.endswith("._core")
)
OPTIONAL = {"altair", "scipy", "torch"}


def examples(name: str) -> list[doctest.DocTest]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in OPTIONAL:
            pytest.skip(f"needs {error.name}")
        raise
    return [test for test in doctest.DocTestFinder().find(module) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples(name):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_there_are_examples() -> None:
    assert sum(bool(examples(name)) for name in MODULES if ".specs." in name) > 3
