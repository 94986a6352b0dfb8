"""How should a large model be laid out on a GPU cluster?

Names are loaded when they are first used, so that ``import meshplan`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshplan import _core as _core
from meshplan.errors import Infeasible, InputError, PlannerError

if TYPE_CHECKING:
    from meshplan.api import Job, clusters, columns, evaluate, explain, models, plan, sweep
    from meshplan.estimate import Estimate, Explanation
    from meshplan.hf import ModelSpec, load_model
    from meshplan.result import Result
    from meshplan.serving.result import ServingResult
    from meshplan.specs.cluster import Cluster
    from meshplan.specs.plan import Plan
    from meshplan.specs.reading import load_cluster
    from meshplan.specs.serving import Serving
    from meshplan.specs.space import Space
    from meshplan.specs.training import Training

__version__ = _core.VERSION

_LAZY: dict[str, str] = {
    "Cluster": "meshplan.specs.cluster",
    "Estimate": "meshplan.estimate",
    "Explanation": "meshplan.estimate",
    "Job": "meshplan.api",
    "Plan": "meshplan.specs.plan",
    "Result": "meshplan.result",
    "Serving": "meshplan.specs.serving",
    "ServingResult": "meshplan.serving.result",
    "Space": "meshplan.specs.space",
    "Training": "meshplan.specs.training",
    "clusters": "meshplan.api",
    "columns": "meshplan.api",
    "evaluate": "meshplan.api",
    "explain": "meshplan.api",
    "load_cluster": "meshplan.specs.reading",
    "models": "meshplan.api",
    "plan": "meshplan.api",
    "sweep": "meshplan.api",
    "ModelSpec": "meshplan.hf",
    "load_model": "meshplan.hf",
}
"""Public name → module that defines it."""

__all__ = [
    "Cluster",
    "Estimate",
    "Explanation",
    "Infeasible",
    "InputError",
    "Job",
    "ModelSpec",
    "Plan",
    "PlannerError",
    "Result",
    "Serving",
    "ServingResult",
    "Space",
    "Training",
    "__version__",
    "clusters",
    "columns",
    "evaluate",
    "explain",
    "load_cluster",
    "load_model",
    "models",
    "plan",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
