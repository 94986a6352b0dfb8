"""Error bands of serving predictions, from predictions of rows that a fit has not seen."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from meshplan.calibrate import serving_bands
from meshplan.validate import deployments
from meshplan.validate.serving_batch import Batch, load_models

PUBLISHED = Path(__file__).parents[1] / "validate" / "published_deployments.csv"


@pytest.fixture(scope="module")
def batch() -> Batch:
    rows = deployments.read_rows(PUBLISHED)
    return Batch.of(rows, load_models(rows, "models"))


def test_bands_are_quantiles_of_the_error_factor(batch: Batch) -> None:
    logs = np.zeros((len(batch.recorded), 2))
    logs[:, 0] = np.where(np.arange(len(logs)) % 2, math.log(1.1), -math.log(1.1))
    logs[:, 1] = math.log(1.5)
    found = serving_bands.outcomes(batch, logs)
    bands = tomllib.loads(serving_bands.to_toml(found, found))
    assert set(bands) == {"tpot", "ttft"}
    assert "vllm, agg" in bands["tpot"]
    for metric, q in (("tpot", 0.1), ("ttft", 0.5)):
        for band in bands[metric].values():
            assert band["q50"] == pytest.approx(q)
            assert band["q90"] == pytest.approx(q)
        assert bands[metric]["agg"]["rows"] >= serving_bands.FEWEST


def test_rows_that_are_not_predicted_are_in_no_band(batch: Batch) -> None:
    logs = np.full((len(batch.recorded), 2), 0.1)
    logs[0] = math.nan
    every = serving_bands.factors(serving_bands.outcomes(batch, logs), "tpot")
    assert len(every["not calibrated"]) == len(logs) - 1


def test_limits_that_are_kept_as_often_as_said(batch: Batch) -> None:
    exact = serving_bands.outcomes(batch, np.zeros((len(batch.recorded), 2)))
    bins = serving_bands.reliability(exact, (15.0, 30.0, 50.0))
    assert sum(rows for _, _, rows, _, _ in bins) == 3 * len(exact)
    for low, high, _, said, kept in bins:
        assert low <= said <= high
        # Exact predictions keep what they are below of.
        assert kept == (said >= 0.5) or low < 0.5 < high

    hopeful = serving_bands.outcomes(batch, np.full((len(batch.recorded), 2), -1.0))
    (*_, last) = serving_bands.reliability(hopeful, (15.0, 30.0, 50.0))
    assert last[3] > 0.9 > last[4]


def test_a_sure_pick_has_the_most_throughput_of_those_that_are_sure(batch: Batch) -> None:
    found = serving_bands.outcomes(batch, np.zeros((len(batch.recorded), 2)))
    picks = serving_bands.sure_picks(found, 30.0)
    assert picks
    groups = [o.row.get("ranking_group") or o.row["model"] for o, _ in picks]
    assert len(set(groups)) == len(groups)
    assert all(p >= 0.9 and (o.tpot_ms or 99) < 30 for o, p in picks)
    assert serving_bands.sure_picks(found, 0.001) == []
