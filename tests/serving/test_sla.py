"""Probability of meeting a limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.bands import Band
from meshplan.serving import sla

SEVEN = Band(q50=0.07, q90=0.24, rows=100, kind="")

positive = st.floats(1e-3, 1e3)


def test_the_quantiles_of_the_band_come_back() -> None:
    for factor, share in ((1.07, 0.75), (1.24, 0.95), (1 / 1.07, 0.25), (1 / 1.24, 0.05)):
        assert sla.probability(50 * factor, 50, SEVEN) == pytest.approx(share)


def test_far_limits_are_certain() -> None:
    assert sla.probability(1e9, 1.0, SEVEN) == pytest.approx(1.0)
    assert sla.probability(1e-9, 1.0, SEVEN) == pytest.approx(0.0)


def test_a_band_without_width_decides() -> None:
    sharp = Band(q50=0.0, q90=0.0, rows=1, kind="")
    assert sla.probability(1.1, 1.0, sharp) == 1.0
    assert sla.probability(0.9, 1.0, sharp) == 0.0
    assert sla.probability(1.0, 1.0, sharp) == 0.5


@pytest.mark.parametrize(("limit", "predicted", "share"), [(0.0, 1.0, 0.0), (1.0, 0.0, 1.0)])
def test_limits_without_a_logarithm(limit: float, predicted: float, share: float) -> None:
    assert sla.probability(limit, predicted, SEVEN) == share


@given(positive, positive, positive)
def test_a_looser_limit_is_never_less_likely(predicted: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert sla.probability(low, predicted, SEVEN) <= sla.probability(high, predicted, SEVEN)


@given(positive, positive)
def test_above_and_below_are_mirrored(limit: float, predicted: float) -> None:
    above = sla.probability(limit, predicted, SEVEN)
    below = sla.probability(predicted, limit, SEVEN)
    assert above + below == pytest.approx(1.0)
    assert math.isfinite(above)


@pytest.mark.parametrize("metric", sla.METRICS)
def test_every_kind_has_a_band(metric: str) -> None:
    for backend in ("vllm", "sglang", "trtllm"):
        for mode in ("agg", "disagg"):
            for architecture in ("hopper", "blackwell", "cdna3"):
                found = sla.band(metric, backend, mode, architecture)
                assert 0 < found.q50 <= found.q90
                assert found.rows > 0


def test_an_unknown_version_widens_the_band() -> None:
    known = sla.band("tpot", "vllm", "agg", "hopper")
    other = sla.band("tpot", "vllm", "agg", "hopper", known_version=False)
    assert other.q50 > known.q50
    assert other.q90 > known.q90
    assert "another version" in other.kind
