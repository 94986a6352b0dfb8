"""Writing of fitted parameters: the one form in which ``presets/parameters.toml`` is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshplan.calibrate.training import Fit
    from meshplan.specs.overlay import Parameter

HEAD = """\
# Parameters of training that were fitted to measured runs: one table each.
#
# `targets` are the values of the presets that the parameter sets. `prior` and `spread` (a factor)
# say what was believed before the fit; `value` and `sigma` (of the logarithm, from the Gauss-Newton
# covariance) what the runs say; `rows` how many runs it moves by more than 1 % when it moves
# by its spread. Written by `planner calibrate`; docs/accuracy.md tells what the runs are.
"""


def fitted(parameters: Iterable[Parameter], fit: Fit) -> list[Parameter]:
    """Parameters with the values of a fit, to four digits."""
    found = []
    values = zip(fit.names, fit.values, fit.sigmas, fit.rows, strict=True)
    for parameter, (name, value, sigma, rows) in zip(parameters, values, strict=True):
        assert parameter.name == name
        found.append(
            replace(parameter, value=float(f"{value:.4g}"), sigma=float(f"{sigma:.2g}"), rows=rows)
        )
    return found


def to_toml(parameters: Iterable[Parameter]) -> str:
    """Text of ``presets/parameters.toml``."""
    tables = [HEAD]
    for p in parameters:
        targets = "".join(f'\n    "{target}",' for target in p.targets)
        tables.append(
            f'["{p.name}"]\ntargets = [{targets}\n]\nunit = "{p.unit}"\n'
            f"prior = {p.prior!r}\nspread = {p.spread!r}\n"
            f"value = {p.value!r}\nsigma = {p.sigma!r}\nrows = {p.rows}\n"
        )
    return "\n".join(tables)
