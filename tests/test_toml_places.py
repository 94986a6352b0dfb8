"""Positions of TOML values."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.specs.toml import Path, TomlSyntaxError, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = '''\
# a plan
model = "llama-3.1-70b"   # comment with = and [
gpus  =  1024

[workload]
seq_len = 8192
"odd key".x = 1
[cluster]
nic = "400 Gb"
tiers = [
  {name = "leaf", gpus = 256}, # first
  {name = "spine", gpus = 1024},
]
text = """one
two \\""" still"""
after = true

[[cluster.pods]]
size = 1
[[cluster.pods]]
size = 2
[cluster.pods.inner]
deep = [[1, 2], [3]]
'''


def test_every_value_has_its_place() -> None:
    data, places = parse(TEXT)
    assert data == tomllib.loads(TEXT)
    lines = TEXT.splitlines()

    def at(*path: str | int) -> str:
        line, column = places[path]
        return lines[line - 1][column - 1 :]

    assert at("model").startswith('"llama')
    assert places["gpus",] == (3, 10)
    assert at("workload", "seq_len") == "8192"
    assert at("workload", "odd key", "x") == "1"
    assert places["cluster", "nic"] == (9, 7)
    assert at("cluster", "tiers", 0, "gpus").startswith("256")
    assert at("cluster", "tiers", 1, "name").startswith('"spine"')
    assert at("cluster", "after") == "true"
    assert at("cluster", "pods", 1, "size") == "2"
    assert at("cluster", "pods", 1, "inner", "deep", 1, 0) == "3]]"
    assert at("cluster", "pods", 0) == "[[cluster.pods]]"


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = \nb = 1", (1, 5)), ("a = 1\nb = [1,,2]", (2, 8)), ("a = '", None)],
)
def test_syntax_errors_carry_a_place(text: str, place: tuple[int, int] | None) -> None:
    with pytest.raises(TomlSyntaxError) as caught:
        parse(text)
    assert caught.value.place == place or place is None


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    with pytest.raises(TomlSyntaxError, match="nested too deeply"):
        parse("a = " + "[" * 20000 + "]" * 20000)


def flat(value: object, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from flat(item, (*path, index))


names = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
scalars = st.integers(-99, 99) | st.booleans() | st.text(st.characters(codec="ascii"), max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values, min_size=1, max_size=5))
def test_every_value_of_a_random_document_is_found(document: dict[str, Any]) -> None:
    tomlkit = pytest.importorskip("tomlkit")
    text = tomlkit.dumps(document)
    data, places = parse(text)
    assert data == document
    missing = [p for p in flat(document) if p and p not in places]
    assert not missing
