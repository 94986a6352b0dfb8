"""The training estimate against published runs, and what happens to rows that make no sense."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from conftest import shared
from meshplan.errors import InputError
from meshplan.validate import predict
from meshplan.validate import runs as recorded
from meshplan.validate.training import Validation, validate_training
from published import RUNS, write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def published(models: Path) -> Validation:
    return validate_training(RUNS, models)


def test_published_runs_are_predicted_within_their_bars(published: Validation) -> None:
    assert not published.failed
    assert len(published.outcomes) == 42
    macro = published.score.macro
    assert macro["step_time_median"] is not None
    assert macro["step_time_median"] < 0.08
    assert all(errors.median < 0.25 for errors in published.score.step_time.values())
    assert published.score.memory["bigscience-176b"].median < 0.12
    assert published.score.fits["false_misfit"] <= 1


def test_predictions_carry_every_term(published: Validation) -> None:
    frame = published.predictions
    assert frame["run_id"].n_unique() == 42
    terms = [c for c in frame.columns if c.endswith("_s") and c not in ("step_time_s",)]
    terms = [c for c in terms if not c.startswith(("tokens", "model_flops"))]
    total = frame.select(pl.sum_horizontal(terms)).to_series()
    assert ((total / frame["step_time_s"] - 1).abs() < 1e-9).all()


def test_open_choices_are_said(published: Validation) -> None:
    assumed = dict(
        zip(published.predictions["run_id"], published.predictions["assumed"], strict=True)
    )
    open_rows = [o.row for o in published.outcomes if o.row["recompute"] == "unknown"]
    assert open_rows
    assert all("recompute" in assumed[row["run_id"]] for row in open_rows)


def test_shared_runs_meet_the_bars() -> None:
    found = validate_training(shared("truth/training/runs.csv"), shared("truth/training/models"))
    macro = found.score.macro
    assert not found.failed
    assert macro["step_time_median"] is not None
    assert macro["memory_median"] is not None
    assert macro["step_time_median"] <= 0.06
    assert macro["memory_median"] <= 0.05
    big = {k: v for k, v in found.score.step_time.items() if v.n >= 5}
    assert max(e.median for e in big.values()) <= 0.15
    assert max(e.median for k, e in found.score.memory.items() if e.n >= 5) <= 0.12
    ranking = found.score.ranking
    assert ranking["vtrain-single"].tau_b >= 0.88
    assert ranking["vtrain-single"].regret <= 0.06
    assert ranking["vtrain-multi"].tau_b >= 0.63
    assert ranking["bigscience-176b"].tau_b >= 0.6
    assert ranking["bigscience-176b"].regret <= 0.03
    assert found.score.fits["false_misfit"] <= 0.01 * found.score.fits["measured_ran"]


def row(**changes: str) -> dict[str, str]:
    base = {
        "run_id": "mine",
        "model": "llama-3.1-8b",
        "gpu": "h100-80gb-sxm",
        "gpus": "8",
        "seq_len": "8192",
        "global_batch": "128",
        "framework": "megatron-core",
        "micro_batch": "1",
        "vpp": "1",
        "recompute": "full",
    }
    return {**recorded.DEFAULTS, **base, **changes}


def run_of(**changes: str) -> recorded.Run:
    found = row(**changes)
    return recorded.interpret(found, predict.load_models([found], ".")[found["model"]])


def test_a_row_names_its_presets() -> None:
    run = run_of(interconnect_note="Jean Zay", gpu="a100-80gb-sxm", nic_gbps_per_gpu="50")
    assert (run.device, run.fabric, run.software) == (
        "a100-sxm-80gb",
        "jean-zay",
        "megatron-core",
    )
    assert run_of(framework="megatron-bridge", notes="release 26.06.01").software == "nemo-2026"
    assert run_of(framework="megatron-bridge", notes="release 26.04").software == "nemo"
    assert (
        run_of(framework="torchtitan (FSDP2)", overlap_note="eager").software == "torchtitan-eager"
    )


def test_what_a_row_leaves_open_is_tried() -> None:
    run = run_of(micro_batch="", recompute="unknown")
    assert {layout["micro_batch"] for layout in run.layouts} == {1, 2, 4, 8, 16}
    assert {layout["recompute"] for layout in run.layouts} == {
        "none",
        "selective",
        "block",
        "full",
    }
    assert len(run.assumptions) == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpu": "h1000"}, "gpu"),
        ({"framework": "myframework"}, "framework"),
        ({"gpus": "-8"}, "gpus"),
        ({"seq_len": "many"}, "seq_len"),
        ({"precision": "fp3"}, "precision"),
        ({"recompute": "sometimes"}, "recompute"),
        ({"nic_gbps_per_gpu": "nan"}, "nic_gbps_per_gpu"),
    ],
)
def test_rows_that_make_no_sense_name_the_column(changes: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        run_of(**changes)
    assert field in {problem.field for problem in caught.value.problems}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        names = list(dict.fromkeys(name for found in rows for name in found))
        writer = csv.DictWriter(stream, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_bad_rows_do_not_take_the_good_ones_down(tmp_path: Path) -> None:
    runs = write(tmp_path / "runs.csv", [row(step_time_s="9"), row(run_id="odd", gpu="abacus")])
    found = validate_training(runs, tmp_path)
    assert len(found.outcomes) == 1
    assert "abacus" in found.failed["odd"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"global_batch": "127", "gpus": "8", "micro_batch": "2"}, "global_batch"),
        ({"tp": "3", "dp": "2"}, "gpus"),
        ({"gpu": "v100-32gb-sxm", "precision": "fp8"}, "fp8"),
    ],
)
def test_a_run_that_the_core_refuses_is_told_apart(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    odd = row(run_id="odd", **changes)
    runs = write(tmp_path / "runs.csv", [{"dp": "", **row(step_time_s="9")}, {"dp": "", **odd}])
    found = validate_training(runs, tmp_path)
    assert [o.row["run_id"] for o in found.outcomes] == ["mine"]
    assert reason in found.failed["odd"]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "run_id\n\x00"])
def test_files_that_are_no_runs(tmp_path: Path, content: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError):
        recorded.read_rows(path)


def planner(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshplan.cli.app", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_command_prints_what_the_function_finds(
    models: Path, tmp_path: Path, published: Validation
) -> None:
    out = tmp_path / "predictions.csv"
    done = planner(
        "validate", "training", str(RUNS), "--models", str(models), "--output", str(out), "--json"
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["macro"] == published.score.macro
    assert pl.read_csv(out).columns[0] == "run_id"


def test_the_command_on_a_missing_file(tmp_path: Path) -> None:
    done = planner("validate", "training", str(tmp_path / "none.csv"), "--models", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
