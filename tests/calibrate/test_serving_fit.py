"""Fit of the serving numbers: to the published rows, and how the preset is written."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from meshplan.calibrate.serving import Problem, cell_left_out, to_toml
from meshplan.specs import serving_costs
from meshplan.validate import deployments
from meshplan.validate.serving_batch import Batch, load_models

PUBLISHED = Path(__file__).parents[1] / "validate" / "published_deployments.csv"


def test_the_preset_is_in_the_form_that_a_fit_writes() -> None:
    text = resources.files("meshplan").joinpath("presets/serving.toml").read_text("utf-8")
    assert to_toml(serving_costs.parameters()) == text
    assert sum(p.fitted for p in serving_costs.parameters()) <= 90


def test_a_fit_finds_its_way_back_and_leaves_rows_out() -> None:
    rows = deployments.read_rows(PUBLISHED)
    batch = Batch.of(rows, load_models(rows, "models"))
    names = ("vllm.step", "vllm.operator", "vllm.ttft")
    free = [replace(p, value=p.value * 2) for p in serving_costs.parameters() if p.name in names]
    problem = Problem(batch, free)
    start = problem.start()
    before = problem.cost(start, problem.all_logs(start), problem.weights())
    fit = problem.solve(rounds=2)
    assert fit.cost < 0.9 * before
    assert (fit.theta < start).all()
    groups = np.array([cell_left_out(job.row) for job in batch.recorded])
    left = problem.left_out(fit, groups)
    assert not np.isnan(left[problem.only]).any()
