"""`planner evaluate`, `explain`, `columns` and `clusters`, as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import meshplan as mp
from conftest import REPO
from meshplan import bands

JOB = ("--gpus", "64", "--tp", "8", "--pp", "4")


def planner(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *args]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1", **env}
    )


def answer(*args: str) -> Any:
    done = planner(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_evaluate_is_one_row_with_every_column() -> None:
    row = answer("evaluate", *JOB)
    assert list(row) == [name for name, _, _ in (*mp.columns(), *bands.COLUMNS)]
    assert (row["tp"], row["pp"], row["dp"], row["status"]) == (8, 4, 2, "ok")
    assert row == mp.evaluate(gpus=64, tp=8, pp=4).to_dict()


def test_terms_add_up() -> None:
    from meshplan.report.terms import MEMORY, STEP

    row = answer("evaluate", *JOB, "--recompute", "full", "--micro-batch", "2")
    for total, parts in (("step_time_s", STEP), ("peak_memory_bytes", MEMORY)):
        assert abs(sum(row[part.name] for part in parts) / row[total] - 1) < 1e-9


def test_every_term_has_a_formula() -> None:
    from meshplan.report.terms import MEMORY, STEP

    known = {part.name for part in (*STEP, *MEMORY)}
    names = [name for name, _, _ in mp.columns()]
    step = names[names.index("step_time_s") + 1 : names.index("peak_memory_bytes")]
    memory = names[names.index("peak_memory_bytes") + 1 : names.index("headroom_bytes")]
    assert {*step, *memory} == known


def test_the_equation_of_every_term_is_told() -> None:
    from meshplan.report.terms import MEMORY, PAGE, STEP

    page = (REPO / PAGE).read_text(encoding="utf-8")
    headings = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {part.anchor for part in (*STEP, *MEMORY)} <= anchors


def test_evaluate_for_people() -> None:
    done = planner("evaluate", *JOB)
    assert done.returncode == 0
    assert "tp8 pp4 dp2 mbs1 zero1 1f1b sp" in done.stdout
    assert "gemm_s" in done.stdout
    assert "weights_bytes" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_switch_needs_no_value() -> None:
    row = answer("evaluate", *JOB, "--sequence-parallel")
    assert row["sequence_parallel"] is True
    off = answer("evaluate", "--sequence-parallel", "off", *JOB, "--recompute", "full")
    assert off["sequence_parallel"] is False


def test_a_layout_that_does_not_fit_is_an_answer() -> None:
    done = planner("evaluate", "--gpus", "8", "--tp", "8", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "memory"
    assert done.stderr.startswith("error: the layout does not fit: ")


def test_a_layout_that_breaks_a_rule_is_an_answer() -> None:
    done = planner("evaluate", "--gpus", "64", "--tp", "64", "--framework", "torchtitan", "--json")
    assert done.returncode == 1
    row = json.loads(done.stdout)
    assert row["status"] == "framework"
    assert row["step_time_s"] is None
    assert "key/value heads (8) must be a multiple of tp (64)" in done.stderr


def test_explain_tells_groups_stages_and_alternatives() -> None:
    told = answer("explain", *JOB, "--recompute", "full")
    assert [g["name"] for g in told["groups"]] == ["tensor", "data", "pipeline"]
    assert told["groups"][0]["links"] == ["scale-up"]
    assert told["groups"][2]["links"] == ["NIC"]
    assert sum(s["stages"] for s in told["stages"]) == 4
    assert (
        0 < told["replay"]["bubble_s"] < told["replay"]["makespan_s"] < told["row"]["step_time_s"]
    )
    assert told["alternatives"]
    assert all(a["row"]["step_time_s"] < told["row"]["step_time_s"] for a in told["alternatives"])
    done = planner("explain", *JOB)
    assert done.returncode == 0
    for title in ("Rank groups", "Terms, formulas, sources", "Stages", "by one change"):
        assert title in done.stdout


def test_narrow_terminals() -> None:
    done = planner("evaluate", *JOB, COLUMNS="60")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()[3:]) <= 60


def test_columns_and_clusters() -> None:
    declared = answer("columns")
    assert {"name": "step_time_s", "unit": "s"}.items() <= declared[17].items()
    known = answer("clusters")["clusters"]
    assert {c["preset"] for c in known} == set(mp.clusters())
    assert all(c["device_source"] for c in known)
    shown = answer("clusters", "show", "h100")
    assert shown["scale_out"]["nic_bytes_per_s"] == 50e9
