"""Error figures on outcomes that can be counted by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.validate.score import Outcome, quantile, score, tau_b


def outcome(predicted: float, measured: float, fits: bool = True, **row: str) -> Outcome:
    base: Mapping[str, str] = {
        "run_id": row.get("run_id", f"{measured}"),
        "source": "lab",
        "global_batch": "8",
        "seq_len": "4",
        "step_time_s": str(measured),
    }
    return Outcome({**base, **row}, predicted, 0.0, fits)


def test_repeats_of_one_configuration_are_one_point() -> None:
    same = [outcome(1.1, m, run_id=str(m), config_key="a") for m in (0.9, 1.0, 5.0)]
    found = score([*same, outcome(2.0, 1.0, run_id="b")])
    assert found.step_time["lab"].n == 2
    assert found.step_time["lab"].median == pytest.approx((0.1 + 1.0) / 2)


def test_macro_needs_three_points() -> None:
    two = [outcome(1.0, m, run_id=str(m)) for m in (1.0, 2.0)]
    assert score(two).macro["step_time_median"] is None
    three = [*two, outcome(4.0, 4.0)]
    assert score(three).macro["step_time_median"] == pytest.approx(0.0)


def test_ranking_counts_the_layouts_that_are_said_to_fit() -> None:
    group = [
        outcome(p, m, fits, run_id=str(i), ranking_group="g")
        for i, (p, m, fits) in enumerate(
            [(1, 4, True), (2, 3, True), (3, 2, True), (4, 1, True), (0.1, 0.5, False)]
        )
    ]
    ranking = score(group).ranking["lab"]
    assert ranking.tau_b == -1.0
    assert ranking.regret == pytest.approx(4 / 0.5 - 1)  # the best of the whole group is the misfit
    assert ranking.best_of_three_regret == pytest.approx(2 / 0.5 - 1)


def test_fits() -> None:
    rows = [
        outcome(1, 1, fits=False),
        outcome(1, 2, fits=True),
        outcome(1, 3, fits=True, oom="true"),
    ]
    assert score(rows).fits == {
        "measured_oom": 1,
        "false_fit": 1,
        "measured_ran": 2,
        "false_misfit": 1,
    }


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20, unique=True))
def test_tau_of_a_ranking_with_itself_is_one(values: list[float]) -> None:
    assert tau_b(values, values) == pytest.approx(1.0)
    assert tau_b(values, [-v for v in values]) == pytest.approx(-1.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0, 1))
def test_quantiles_lie_between_the_ends(values: list[float], q: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, q) * (1 + 1e-12)
    assert quantile(ordered, q) <= ordered[-1] * (1 + 1e-12) or math.isclose(
        quantile(ordered, q), ordered[-1]
    )
