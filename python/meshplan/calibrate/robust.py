"""Robust fits of positive parameters to positive times, with honest error figures.

Times span six decades, so residuals are logarithms of ratios; tables hold outliers (another kernel
was picked, a window was set), so the loss is robust; parameters are positive, so the fit runs on
their logarithms and the uncertainty is relative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Model = Callable[[Array, slice | Array], Array]


@dataclass(frozen=True)
class Parameter:
    """One positive parameter: its name, where the fit starts, and how far it may go."""

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """A fitted curve and what is known of its error."""

    values: dict[str, float]
    """Parameters by name, in SI units."""
    relative_error: dict[str, float]
    """Relative standard deviation of each parameter, from the Gauss-Newton covariance."""
    rows: int
    """Rows that the fit saw."""
    median: float
    """Median absolute relative error on those rows."""
    p90: float
    """Ninth decile of the same."""
    held_out_median: float
    """Median on rows that the fit did not see (mean over folds)."""
    held_out_p90: float
    """Ninth decile on rows that the fit did not see (mean over folds)."""
    note: str = field(default="")
    """Choices that were made beside the parameters."""

    def provenance(self) -> str:
        """One line for a preset."""
        return (
            f"{self.rows} rows, median error {100 * self.median:.1f} %, held out "
            f"{100 * self.held_out_median:.1f} % (p90 {100 * self.held_out_p90:.0f} %)"
        )


def fit(
    model: Callable[[Array, Any], Array],
    parameters: list[Parameter],
    measured: Array,
    *,
    loss: str = "soft_l1",
    scale: float = 0.03,
    folds: int = 2,
    seed: int = 0,
) -> Fit:
    """Fit a model of times to measured times.

    Parameters
    ----------
    model
        Takes parameters and a boolean mask of rows; returns times in seconds.
    parameters
        The free parameters, in the order that the model takes them.
    measured
        Times in seconds.
    loss, scale
        Robust loss of `scipy.optimize.least_squares` and the log-ratio at which it bends.
    folds
        Folds of the cross-validation.
    seed
        Seed of the folds.
    """
    import numpy as np

    start = np.log([p.start for p in parameters])
    bounds = (np.log([p.low for p in parameters]), np.log([p.high for p in parameters]))
    every = np.ones(len(measured), dtype=bool)
    fold = np.random.default_rng(seed).integers(0, folds, len(measured))

    def solve(rows: Any) -> Any:
        from scipy.optimize import least_squares

        def residual(z: Array) -> Array:
            out: Array = np.log(model(np.exp(z), rows) / measured[rows])
            return out

        wide = least_squares(
            residual, start, bounds=bounds, loss="soft_l1", f_scale=max(scale, 0.1), max_nfev=80
        )
        return least_squares(residual, wide.x, bounds=bounds, loss=loss, f_scale=scale, max_nfev=80)

    def errors(z: Array, rows: Any) -> Array:
        out: Array = np.abs(model(np.exp(z), rows) / measured[rows] - 1.0)
        return out

    held = [errors(solve(fold != i).x, fold == i) for i in range(folds)]
    result = solve(every)
    own = errors(result.x, every)
    return Fit(
        values={p.name: float(v) for p, v in zip(parameters, np.exp(result.x), strict=True)},
        relative_error=_relative_error(result, parameters),
        rows=len(measured),
        median=float(np.median(own)),
        p90=float(np.quantile(own, 0.9)),
        held_out_median=float(np.mean([np.median(e) for e in held])),
        held_out_p90=float(np.mean([np.quantile(e, 0.9) for e in held])),
    )


def _relative_error(result: Any, parameters: list[Parameter]) -> dict[str, float]:
    """Standard deviation of each log-parameter; infinite where the data do not identify it."""
    import numpy as np

    jacobian, residual = result.jac, result.fun
    freedom = max(1, len(residual) - len(parameters))
    variance = float(residual @ residual) / freedom
    try:
        covariance = variance * np.linalg.inv(jacobian.T @ jacobian)
        spread = np.sqrt(np.clip(np.diag(covariance), 0.0, None))
    except np.linalg.LinAlgError:
        spread = np.full(len(parameters), np.inf)
    return {p.name: float(s) for p, s in zip(parameters, spread, strict=True)}
