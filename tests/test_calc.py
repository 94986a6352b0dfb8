"""Calculators: values that people know, and every problem of the arguments at once."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import REPO
from meshplan.calc import Calculator, calculate, calculator, groups
from meshplan.errors import InputError

ALL = [member for members in groups().values() for member in members]


def test_the_registry_is_not_empty() -> None:
    assert len(ALL) >= 40


@pytest.mark.parametrize("chosen", ALL, ids=lambda c: c.name)
def test_each_example_answers_every_declared_result(chosen: Calculator) -> None:
    arguments = {p.name: v for p, v in zip(chosen.parameters, chosen.example, strict=True)}
    results = calculate(chosen.name, **arguments)
    assert list(results) == [r.name for r in chosen.results]
    assert all(math.isfinite(v) and v >= 0 for v in results.values())


KNOWN = [
    ("all-reduce", {"ranks": 8, "bytes": "1 GiB"}, "sent_bytes", 1.75 * 2**30),
    ("ddp", {"params": "70B", "ranks": 1_000_000}, "total_bytes", 280e9),
    ("zero-3", {"params": "70B", "ranks": 1_000_000}, "total_bytes", 420e9),
    ("bubble", {"stages": 8, "micro_batches": 8}, "bubble_fraction", 7 / 15),
    ("bubble", {"stages": 8, "micro_batches": 8, "chunks": 4}, "bubble_fraction", 7 / 39),
    (
        "kv-cache",
        {"layers": 80, "kv_heads": 8, "head_dim": 128, "tokens": 2048},
        "total_bytes",
        671_088_640,
    ),
    ("link-rate", {"rate": "400 Gb/s"}, "bytes_per_s", 50e9),
    ("straggler", {"ranks": 1000, "probability": 1, "delay": "500 ms"}, "expected_delay_s", 0.5),
]


@pytest.mark.parametrize(("name", "arguments", "result", "value"), KNOWN)
def test_known_value(name: str, arguments: dict[str, str], result: str, value: float) -> None:
    assert calculate(name, **arguments)[result] == pytest.approx(value, rel=2e-6)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        calculate("kv-cache", layer=80, kv_heads="8 GiB", head_dim=-1, element_bytes=math.nan)
    told = {problem.field: problem.rule for problem in caught.value.problems}
    assert set(told) == {"layer", "layers", "kv_heads", "head_dim", "element_bytes"}
    assert told["layers"] == "is missing"


@given(st.sampled_from(ALL), st.data())
def test_any_argument_is_answered_or_refused(chosen: Calculator, data: st.DataObject) -> None:
    value = st.one_of(st.floats(), st.integers(), st.text(max_size=9), st.booleans())
    arguments = {p.name: data.draw(value) for p in chosen.parameters}
    try:
        results = calculate(chosen.name, **arguments)
    except InputError:
        return
    assert all(math.isfinite(v) and v >= 0 for v in results.values())


def planner(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", "calc", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", "8", "--bytes", "1GiB"),
        ("--ranks=8", "--bytes=1 GiB"),
        ("ranks=8", "bytes=1073741824"),
    ],
)
def test_flags_and_pairs_say_the_same(words: tuple[str, ...]) -> None:
    done = planner("all-reduce", *words, "--json")
    assert json.loads(done.stdout)["results"] == {"sent_bytes": 1879048192.0, "steps": 14.0}
    assert (done.returncode, done.stderr) == (0, "")


def test_people_read_units_and_the_exact_number() -> None:
    done = planner("all-reduce", "ranks=8", "bytes=1 GiB")
    assert done.stdout == (
        "2(N−1)/N · S\nsent_bytes  1.75 GiB  (1879048192 bytes)\nsteps       14\n"
    )


def test_a_switch_stands_alone() -> None:
    layer = ["tp-layer", "micro_batch=1", "seq_len=4096", "hidden=8192", "tp=8", "--json"]
    plain = json.loads(planner(*layer).stdout)["results"]
    split = json.loads(planner(*layer, "--sequence-parallel").stdout)["results"]
    assert plain["forward_collectives"] * 2 == split["forward_collectives"]
    assert plain["forward_bytes"] == split["forward_bytes"]


def test_the_list_shows_each_equation() -> None:
    listed = planner().stdout
    for member in ALL:
        assert member.name in listed
    raw = json.loads(planner("--json").stdout)
    assert sum(len(members) for members in raw.values()) == len(ALL)


WRONG = [
    (("allreduce",), "did you mean all-reduce"),
    (("all-reduce",), "ranks: is missing"),
    (("all-reduce", "ranks=8", "bytes=80 Gb"), "bits (Gb) where bytes are due"),
    (("all-reduce", "ranks=nan", "bytes=1"), "ranks"),
    (("all-reduce", "ranks=-8", "bytes=1"), "must not be negative"),
    (("all-reduce", "ranks=0", "bytes=1"), "must lie between"),
    (("all-reduce", "ranks=1e999", "bytes=1"), "ranks"),
    (("all-reduce", "ranks=8", "bytes=1", "speed=3"), "is not an argument of all-reduce"),
    (("all-reduce", "ranks=8", "ranks=9", "bytes=1"), "is given twice"),
    (("all-reduce", "8"), "names no argument"),
    (("all-reduce", "--ranks"), "ranks"),
    (("--ranks", "8"), "calculator"),
    (("occupancy", "block_dim=1024", "registers=255"), "exceed the multiprocessor"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_bad_input_is_named_and_exits_2(words: tuple[str, ...], message: str) -> None:
    done = planner(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_formulas_page_is_the_registry() -> None:
    from meshplan.calc_page import page

    written = (REPO / "docs" / "formulas.md").read_text(encoding="utf-8")
    assert written == page(), "renew it: python -m meshplan.calc_page > docs/formulas.md"


def test_an_unknown_calculator_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        calculator("buble")
    assert "bubble" in caught.value.hint
