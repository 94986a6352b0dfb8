"""Calibration: what the data hold is found, what they do not hold is refused."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from meshplan import bands
from meshplan.calibrate import crossval
from meshplan.calibrate.profile import Finding, Profile, calibrate
from meshplan.calibrate.training import Problem
from meshplan.errors import InputError
from meshplan.specs import overlay
from meshplan.specs.reading import load_cluster
from meshplan.validate import predict
from meshplan.validate import runs as recorded
from published import RUNS, write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def batch(models: Path) -> predict.Batch:
    rows = recorded.read_rows(RUNS)
    return predict.Batch.of(rows, predict.load_models(rows, models))


def test_the_fit_stays_within_ninety_parameters() -> None:
    parameters = overlay.parameters()
    assert 0 < len(parameters) <= 90
    assert all(p.spread > 1 and p.prior > 0 and p.value > 0 for p in parameters)
    targets = [target for p in parameters for target in p.targets]
    assert len(targets) == len(set(targets))


def test_every_parameter_sets_something(batch: predict.Batch) -> None:
    problem = Problem(batch)
    names = {p.name: p.value for p in problem.parameters}
    before = problem.software(names)
    for p in problem.parameters:
        if p.targets[0].startswith("software.") and problem.moved[problem.parameters.index(p)]:
            assert problem.software(names | {p.name: p.value * 1.5}) != before, p.name


def test_a_true_parameter_is_found_again(batch: predict.Batch) -> None:
    """Times made by a slower device lead the fit to that device."""
    problem = Problem(batch)
    chosen = [p for p in problem.parameters if p.name == "a100.gemm"]
    alone = Problem(batch, parameters=chosen)
    truth = np.log([chosen[0].value * 1.2])
    alone.logs_measured = alone.logs_measured + alone.logs(truth)
    found = alone.solve(max_steps=10)
    assert found.values[0] == pytest.approx(np.exp(truth[0]), rel=0.03)
    assert found.rows[0] > 0


def test_folds_split_no_model_and_gpu_and_lose_no_run(batch: predict.Batch) -> None:
    folds = crossval.by_model_and_gpu(batch)
    assert sorted(i for fold in folds for i in fold) == list(range(len(batch.runs)))
    owner = {
        (batch.runs[i].model, batch.runs[i].device): n for n, fold in enumerate(folds) for i in fold
    }
    for n, fold in enumerate(folds):
        assert all(owner[batch.runs[i].model, batch.runs[i].device] == n for i in fold)
    assert len(crossval.by_source(batch)) == 10


def table(path: Path, latency: float, rows: int = 64) -> Path:
    """GEMM times of a device that reaches half its peak, whatever the shape."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream)
        out.writerow(["dtype", "m", "n", "k", "latency_us"])
        for i in range(rows):
            m, n, k = 512 << (i % 4), 1024 << (i // 4 % 4), 1024 << (i // 16 % 4)
            out.writerow(["bfloat16", m, n, k, 2 * m * n * k / latency * 1e6 + 5])
    return path


def test_a_profile_is_a_cluster_that_commands_accept(tmp_path: Path) -> None:
    profile = calibrate("h100", gemm=table(tmp_path / "gemm.csv", 989.4e12 / 2))
    finding = profile.findings[0]
    assert finding.what == "gemm.bf16"
    assert finding.after < 0.05 < finding.before
    mine = tmp_path / "mine.toml"
    mine.write_text(profile.to_toml(), encoding="utf-8")
    cluster = load_cluster(str(mine))
    assert cluster.name == "h100, calibrated"
    assert cluster.device.gemm["bf16"] == profile.changes["device"]["gemm"]["bf16"]


def test_a_fit_no_better_than_the_preset_is_not_taken_up() -> None:
    profile = Profile("h100")
    assert profile.accept(Finding("gemm.fp8", 40, 0.08, 0.05))
    assert not profile.accept(Finding("gemm.bf16", 40, 0.05, 0.06))
    assert profile.accept(Finding("gemm.nvfp4", 40, math.nan, 0.5))  # the preset has no curve
    assert "6.0 % cross-validated" in profile.refused["gemm.bf16"]
    assert "gemm.bf16" in profile.to_toml()


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    profile = calibrate("h100", gemm=table(tmp_path / "gemm.csv", 5e14, rows=7))
    assert not profile.findings
    assert "7 rows" in profile.refused["gemm.bfloat16"]


def test_nothing_to_calibrate_on() -> None:
    with pytest.raises(InputError, match="needs measurements"):
        calibrate("h100")


def test_a_table_without_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("m,n\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="lacks the columns dtype, k, latency_us"):
        calibrate("h100", gemm=path)


def test_bands_go_from_the_nearest_kind_to_any() -> None:
    layout = {"tp": 8, "pp": 8, "cp": 1, "ep": 1}
    near = bands.band("megatron-core-2026", "hopper", layout)
    assert near.kind == "megatron-core, hopper, pipeline"
    assert 0 < near.q50 < near.q90
    far = bands.band("deepspeed", "cdna3", layout)
    assert far.kind == bands.UNKNOWN
    assert far.q90 > near.q50
