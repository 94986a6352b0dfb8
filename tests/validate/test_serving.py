"""The serving estimate against published deployments, and the command around it."""

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
from meshplan import _core
from meshplan.errors import InputError
from meshplan.validate import deployments
from meshplan.validate.serving import Validation, validate_serving
from meshplan.validate.serving_batch import Batch, load_models

PUBLISHED = Path(__file__).with_name("published_deployments.csv")
"""Measured deployments of public benchmarks, a few of each (model, GPU, backend, mode)."""


@pytest.fixture(scope="session")
def published() -> Validation:
    return validate_serving(PUBLISHED)


def total(found: Validation, metric: str) -> dict[str, Any]:
    figures: dict[str, Any] = found.score["errors"]["all"]["all"][metric]
    return figures


def test_published_deployments_are_predicted_within_their_bars(published: Validation) -> None:
    assert not published.failed
    assert not published.infeasible
    tpot, ttft = total(published, "tpot"), total(published, "ttft")
    assert (tpot["n"], tpot["covered"]) == (66, 66)
    assert tpot["median"] < 0.12
    assert tpot["p90"] < 0.35
    assert ttft["n"] >= 55
    assert ttft["median"] < 0.25
    ranking = published.score["ranking"]["tau_b tpot, group"]
    assert ranking["groups"] >= 1
    assert ranking["mean"] > 0.7


def test_predictions_are_in_the_format_of_the_scorer(published: Validation) -> None:
    frame = published.predictions
    assert frame.columns == ["deployment_id", "ttft_ms", "tpot_ms", "feasible"]
    assert frame["deployment_id"].n_unique() == 66
    assert frame["feasible"].all()
    assert (frame["ttft_ms"] > 0).all()
    assert (frame["tpot_ms"] > 0).all()


def test_open_choices_are_said(published: Validation) -> None:
    assert any("KV cache" in words for words in published.assumed)


def test_predictions_do_not_depend_on_company() -> None:
    rows = deployments.read_rows(PUBLISHED)
    batch = Batch.of(rows, load_models(rows, "models"))
    picked = [5, 40, 7]
    every = batch.predict()
    assert every.equals(batch.predict())
    assert batch.predict(only=picked).equals(every[picked])


def test_indices_beside_the_lists() -> None:
    rows = deployments.read_rows(PUBLISHED)[:1]
    batch = Batch.of(rows, load_models(rows, "models"))
    with pytest.raises(IndexError):
        batch.predict(only=[1])
    with pytest.raises(IndexError):
        batch.jobs.predict([], *batch.numbers())
    with pytest.raises(InputError):
        _core.ServingJobs([], "{")


def test_shared_deployments_meet_the_bars() -> None:
    found = validate_serving(shared("truth/serving/deployments.csv"), shared("truth/hf_configs"))
    tpot, ttft = total(found, "tpot"), total(found, "ttft")
    assert tpot["covered"] >= 0.99 * tpot["n"]
    assert ttft["covered"] >= 0.99 * ttft["n"]
    assert tpot["median"] <= 0.08
    assert tpot["p90"] <= 0.24
    assert ttft["median"] <= 0.17
    split = found.score["errors"]["mode"]["disagg"]
    assert split["tpot"]["median"] <= 0.14
    assert split["ttft"]["median"] <= 0.33
    ranking = found.score["ranking"]
    assert ranking["tau_b tpot, group"]["mean"] >= 0.90
    assert ranking["tau_b tpot, equal concurrency"]["mean"] >= 0.82
    rate = ranking["tau_b output_tokens_per_s_per_gpu, group"]
    assert rate["mean"] > rate["floor"]
    for limit, bar in (("none", 0.03), ("50", 0.08), ("30", 0.10), ("15", 0.20)):
        assert ranking[f"regret tpot<={limit}"]["mean"] <= bar, limit


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def some(count: int) -> list[dict[str, str]]:
    return [row for _, row in deployments.read_rows(PUBLISHED)[:count]]


def test_bad_rows_do_not_take_the_good_ones_down(tmp_path: Path) -> None:
    rows = some(4)
    rows[0]["gpu"] = "abacus"
    rows[1]["model"] = "unheard-of"
    found = validate_serving(write(tmp_path / "mine.csv", rows))
    assert len(found.failed) == 2
    assert "mine.csv:2" in str(found.failed[rows[0]["deployment_id"]])
    assert found.predictions["tpot_ms"].null_count() == 2
    assert total(found, "tpot")["covered"] == 2


def test_rows_that_the_core_refuses_are_told_apart(tmp_path: Path) -> None:
    rows = some(2)
    rows[0] |= {"tp": "7", "gpus": "7", "ep": "1", "attention_dp": "1"}
    found = validate_serving(write(tmp_path / "mine.csv", rows))
    assert list(found.failed) == [rows[0]["deployment_id"]]


def test_a_file_without_a_good_row(tmp_path: Path) -> None:
    rows = some(2)
    for row in rows:
        row["isl_nominal"] = "0"
    with pytest.raises(InputError) as caught:
        validate_serving(write(tmp_path / "mine.csv", rows))
    assert [p.where for p in caught.value.problems[1:]] == ["mine.csv:2", "mine.csv:3"]


def test_rows_without_measurements_are_predicted(tmp_path: Path) -> None:
    rows = some(3)
    for row in rows:
        row |= {"ttft_ms": "", "tpot_ms": ""}
    found = validate_serving(write(tmp_path / "mine.csv", rows))
    assert total(found, "tpot")["n"] == 0
    assert found.predictions["tpot_ms"].null_count() == 0


def planner(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshplan.cli.app", "validate", "serving", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_command_prints_what_the_function_finds(tmp_path: Path, published: Validation) -> None:
    out = tmp_path / "predictions.csv"
    done = planner(str(PUBLISHED), "--output", str(out), "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["errors"] == published.score["errors"]
    assert told["ranking"] == published.score["ranking"]
    assert pl.read_csv(out).columns == published.predictions.columns


def test_the_table_for_eyes() -> None:
    done = planner(str(PUBLISHED), "--spec", "stp")
    assert done.returncode == 0, done.stderr
    for words in ("TPOT median", "trtllm disagg", "tau-b", "regret of the pick"):
        assert words in done.stdout
    assert "assumed in" in done.stderr


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
def test_the_chart(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("altair")
    path = tmp_path / f"chart{suffix}"
    done = planner(str(PUBLISHED), "--plot", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size > 5000


def test_the_command_on_bad_input(tmp_path: Path) -> None:
    done = planner(str(tmp_path / "none.csv"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    rows = [{k: v for k, v in row.items() if k != "gpu"} for row in some(1)]
    done = planner(str(write(tmp_path / "mine.csv", rows)))
    assert done.returncode == 2
    assert "lacks the columns gpu" in done.stderr
    assert "hint: docs/inputs.md" in done.stderr
    assert planner(str(PUBLISHED), "--spec", "some").returncode == 2
    assert planner(str(PUBLISHED), "--output", str(tmp_path / "x.docx")).returncode == 2
