"""Error figures of serving predictions: counted by hand, and against the published scorer."""

from __future__ import annotations

import csv
import json
import math
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import shared
from meshplan.validate.serving_score import Outcome, Point, level, ranking, regret, score


def row(number: int, **changes: str) -> dict[str, str]:
    base = {
        "deployment_id": f"d{number}",
        "backend": "vllm",
        "model": "m",
        "gpu": "h200",
        "mode": "agg",
        "gpus": "8",
        "isl_nominal": "1000",
        "osl_nominal": "100",
        "length_range_low": "0.8",
        "concurrency": "4",
        "spec_tokens": "0",
        "ttft_ms": "100",
        "tpot_ms": str(number),
    }
    return {**base, **changes}


def test_uncovered_rows_are_infinite_in_the_median_of_all() -> None:
    assert level([0.1, 0.2, None])["median_all"] == pytest.approx(0.2)
    assert level([0.1, None])["median_all"] is None
    assert level([0.1, None])["covered"] == 1
    assert level([]) == {
        "n": 0,
        "covered": 0,
        "median": None,
        "p90": None,
        "signed": None,
        "median_all": None,
    }


def test_throughput_of_a_closed_loop() -> None:
    one = Outcome(row(10), None, None)
    # 90 tokens on average: 4 · 90 tokens in 100 + 89 · 10 ms, on 8 GPUs.
    assert one.throughput(100.0, 10.0) == pytest.approx(4 * 90 / 0.99 / 8)


def point(key: str, tpot: float, predicted: float | None, rate: float = 1.0) -> Point:
    return Point(key, tpot, rate, predicted, None if predicted is None else rate, rate)


def test_regret() -> None:
    # The fastest configuration is predicted to meet the limit, and does not.
    assert regret([point("a", 10, 10, 1), point("b", 40, 20, 2)], 30) == (1.0, "missed")
    # Five per cent are forgiven.
    found = regret([point("a", 10, 10, 1), point("b", 31, 20, 2)], 30)
    assert found == (0.0, "met")
    # It is left out by mistake: half of the throughput is lost.
    found = regret([point("a", 10, 10, 1), point("b", 20, 40, 2)], 30)
    assert found == (0.5, "met")
    assert regret([point("a", 10, None)], 30) == (1.0, "no pick")
    assert regret([point("a", 40, 10)], 30) is None


def test_repeats_of_a_configuration_are_one_point() -> None:
    rows = [row(i, config_key=str(i // 2)) for i in range(1, 9)]
    found = ranking([Outcome(r, 100.0, float(r["tpot_ms"])) for r in rows])
    assert found["tau_b tpot, group"]["groups"] == 1
    assert found["tau_b tpot, group"]["mean"] == pytest.approx(1.0)
    assert found["regret tpot<=none"]["mean"] == pytest.approx(0.0)


def test_rows_that_do_not_count() -> None:
    rows = [row(1), row(2, score_tpot="false"), row(3, tpot_ms=""), row(4, spec_tokens="")]
    found = score([Outcome(r, 110.0, 2.0) for r in rows])
    assert found["errors"]["all"]["all"]["tpot"]["n"] == 2
    assert found["errors"]["spec"]["unknown"]["tpot"]["n"] == 1
    assert found["errors"]["all"]["all"]["ttft"]["n"] == 4
    assert found["errors"]["all"]["all"]["ttft"]["median"] == pytest.approx(0.1)


def test_a_score_of_nothing() -> None:
    found = score([])
    assert found["errors"]["all"]["all"]["tpot"]["n"] == 0
    assert found["ranking"]["regret tpot<=15"]["groups"] == 0


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=12, unique=True))
def test_a_perfect_prediction(values: list[float]) -> None:
    rows = [row(i, tpot_ms=repr(v)) for i, v in enumerate(values)]
    found = score([Outcome(r, 100.0, float(r["tpot_ms"])) for r in rows])
    assert found["errors"]["all"]["all"]["tpot"]["p90"] == 0
    assert found["ranking"]["tau_b tpot, group"]["mean"] == pytest.approx(1.0)
    assert found["ranking"]["regret tpot<=none"]["mean"] == pytest.approx(0.0)


def guesses(rows: list[dict[str, str]]) -> dict[str, tuple[float | None, float | None]]:
    """Predictions with errors, ties, gaps and half-covered rows."""
    rng = random.Random(3)
    found: dict[str, tuple[float | None, float | None]] = {}
    for r in rows:
        draw = rng.random()
        ttft = float(r["ttft_ms"]) * rng.lognormvariate(0, 0.4)
        tpot = round(float(r["tpot_ms"]) * rng.lognormvariate(0, 0.2), 0 if draw > 0.9 else 6)
        if draw > 0.05:
            found[r["deployment_id"]] = (None if draw < 0.1 else ttft, max(tpot, 1.0))
    return found


def compare(mine: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> int:
    """Hold every number of a report against mine; returns how many there were."""
    checked = 0
    for key, value in other.items():
        if isinstance(value, dict):
            checked += compare(mine[key], value, f"{path}/{key}")
        elif key != "floor" or "per_gpu" in path:
            own = mine[key]
            close = own is value is None or math.isclose(own, value, rel_tol=1e-9, abs_tol=1e-9)
            assert close, (path, key, own, value)
            checked += 1
    return checked


@pytest.mark.parametrize("spec", ["all", "stp", "mtp"])
def test_the_published_scorer_says_the_same(tmp_path: Path, spec: str) -> None:
    table = shared("truth", "serving", "deployments.csv")
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    told = guesses(rows)
    predictions = tmp_path / "predictions.csv"
    with predictions.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["deployment_id", "ttft_ms", "tpot_ms"])
        for name, values in told.items():
            writer.writerow([name, *("" if v is None else repr(v) for v in values)])
    scorer = table.with_name("score_serving.py")
    options = ["--spec", spec, "--json", "-"]
    done = subprocess.run(
        [sys.executable, str(scorer), str(table), str(predictions), *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    other = json.loads(done.stdout)
    outcomes = [Outcome(r, *told.get(r["deployment_id"], (None, None))) for r in rows]
    mine = score(o for o in outcomes if spec in ("all", o.spec))
    compared = {part: other[part] for part in ("errors", "ranking")}
    assert compare(mine, compared) > 200
