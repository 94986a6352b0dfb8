"""A whole job: what ``plan.toml``, the command line and ``meshplan.sweep`` describe alike."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from meshplan.specs.base import Spec
from meshplan.specs.cluster import Cluster
from meshplan.specs.fields import Count, Switch
from meshplan.specs.space import Space
from meshplan.specs.toml import Path
from meshplan.specs.training import Training

DEFAULT_MODEL = "llama-3.1-70b"
DEFAULT_CLUSTER = "h100"

Framework = Literal["generic", "megatron", "torchtitan", "deepspeed"]


class Plan(Spec):
    """A job to be laid out, and the space of its layouts."""

    model: str = DEFAULT_MODEL
    """Preset, path of a ``config.json`` or of the folder that holds it."""
    cluster: Cluster
    """The cluster; in a file, also the name of a preset or the path of a TOML file."""
    gpus: Annotated[Count, Field(le=2**24)]
    """GPUs of the job."""
    framework: Framework = "generic"
    """Whose rules layouts must obey."""
    framework_version: str | None = None
    """Release whose costs are assumed; the newest known one unless given."""
    workload: Training = Training()
    """What is trained."""
    space: Space = Space()
    """Axes of the search."""
    top: Annotated[Count, Field(le=100_000)] = 10
    """Best layouts to keep."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the search; 0: one per core."""
    exhaustive: Switch = False
    """Evaluate every feasible layout instead of skipping what bounds rule out."""
    rank: Literal["time", "upper"] = "time"
    """Order of the best layouts: by step time, or by its upper band (time · (1 + error q90))."""
    output: str | None = None
    """File for all evaluated layouts: ``.parquet``, ``.csv`` or ``.arrow``."""

    _origins: dict[Path, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> dict[Path, str]:
        """Where values came from, for complaints that are made later."""
        return self._origins
