"""Probability of meeting a limit, from how far predictions were from measurements.

``presets/serving_bands.toml`` holds, by kind of deployment (backend, mode, architecture), quantiles
of the error factor of TPOT and TTFT: half of the measured deployments lay within ×/÷ (1 + q50) of
the prediction, nine in ten within (1 + q90). The predictions were made with the whole (model, GPU,
backend) cell left out of the fit. A prediction takes the nearest kind that enough rows inform, and
says which.

The true value given a prediction is taken as log-normal about it, with a scale that matches both
quantiles: with x = abs(ln(limit / predicted)), a = ln(1 + q50), b = ln(1 + q90),

z = z50 · x / a where x ≤ a, else z50 + (z90 − z50) · (x − a) / (b − a),

P(true ≤ limit) = Φ(±z), + where the limit is above the prediction; z50 = 0.674, z90 = 1.645. The
second slope carries the heavy tail of the errors.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from importlib import resources
from statistics import NormalDist

from meshplan.bands import UNKNOWN, Band
from meshplan.specs.toml import parse

METRICS = ("tpot", "ttft")

Z50, Z90 = (NormalDist().inv_cdf((1 + q) / 2) for q in (0.5, 0.9))
"""Normal deviates that half and nine tenths of the errors stay within."""

VERSION_FACTOR = {"tpot": 0.105, "ttft": 0.145}
"""Median difference of one configuration between two versions of a backend: added, in squares, to
the band of a version that no measurement informs."""


def kinds(backend: str, mode: str, architecture: str) -> list[str]:
    """Kinds of a prediction, nearest first.

    >>> kinds("vllm", "agg", "hopper")
    ['vllm, agg, hopper', 'vllm, agg', 'agg', 'not calibrated']
    """
    return [f"{backend}, {mode}, {architecture}", f"{backend}, {mode}", mode, UNKNOWN]


def band(
    metric: str, backend: str, mode: str, architecture: str, *, known_version: bool = True
) -> Band:
    """Error band of a prediction.

    Parameters
    ----------
    metric
        ``tpot`` or ``ttft``.
    backend
        ``vllm``, ``sglang`` or ``trtllm``.
    mode
        ``agg`` or ``disagg``.
    architecture
        Architecture of the device.
    known_version
        Whether measurements of the backend's version are behind its parameters; a band that is
        not so is wider.

    Returns
    -------
    Band
        Its quantiles are of the error factor: within ×/÷ (1 + q50).
    """
    known = _bands()[metric]
    found = next(known[kind] for kind in kinds(backend, mode, architecture) if kind in known)
    if known_version:
        return found
    extra = VERSION_FACTOR[metric]
    return replace(
        found,
        q50=math.hypot(found.q50, extra),
        q90=math.hypot(found.q90, extra * Z90 / Z50),
        kind=f"{found.kind}, another version",
    )


def probability(limit: float, predicted: float, band: Band) -> float:
    """Probability that the true value is at most `limit`.

    Parameters
    ----------
    limit, predicted
        In the same unit.
    band
        Error band of the prediction.

    Examples
    --------
    A prediction on the limit is a coin toss; one band below it, three chances in four:

    >>> seven = Band(q50=0.07, q90=0.24, rows=100, kind="")
    >>> probability(50.0, 50.0, seven)
    0.5
    >>> round(probability(53.5, 50.0, seven), 3)
    0.75
    >>> round(probability(62.0, 50.0, seven), 3)
    0.95
    """
    if predicted <= 0 or limit <= 0:
        return float(predicted <= limit)
    distance = math.log(limit / predicted)
    return NormalDist().cdf(math.copysign(_deviate(abs(distance), band), distance))


def _deviate(size: float, band: Band) -> float:
    """Normal deviate of an error of this size (of the logarithm)."""
    inner, outer = math.log1p(band.q50), math.log1p(band.q90)
    if size <= inner:
        return Z50 * size / inner if inner else 0.0
    if outer <= inner:
        return math.inf
    return Z50 + (Z90 - Z50) * (size - inner) / (outer - inner)


@functools.cache
def _bands() -> dict[str, dict[str, Band]]:
    text = resources.files("meshplan").joinpath("presets/serving_bands.toml").read_text("utf-8")
    tables = parse(text)[0]
    return {
        metric: {kind: Band(kind=kind, **values) for kind, values in tables[metric].items()}
        for metric in METRICS
    }
