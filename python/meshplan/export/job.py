"""A layout with everything that a launch needs to know about its job."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from meshplan._core import chunk_sizes
from meshplan.errors import Infeasible, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class NotExpressible(Infeasible):
    """The layout is sound, but the framework has no way to say it."""

    def __init__(self, framework: str, reasons: Sequence[str]) -> None:
        self._framework, self._reasons = framework, tuple(reasons)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Each thing that the framework cannot say."""
        return tuple(
            Problem(f"not expressible for {self._framework}: {reason}") for reason in self._reasons
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout, as a row of the training table names it."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    vpp: int
    micro_batch: int
    sequence_parallel: bool
    recompute: str
    recompute_layers: int
    sharding: str
    shard_group: int
    schedule: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Layout:
        """Take the columns of a layout out of a row."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Job:
    """A layout, and the canonical model, workload and cluster that it is for."""

    layout: Layout
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    cluster: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the model, fit for a comment in any file."""
        return re.sub(r"[^A-Za-z0-9._+/ -]+", "-", str(self.model["name"])).strip("-") or "model"

    @property
    def gpus(self) -> int:
        """GPUs that the layout occupies."""
        at = self.layout
        return at.dp * at.tp * at.pp * at.cp

    @property
    def gpus_per_node(self) -> int:
        """GPUs used in a node: all of them, unless the job is smaller than a node."""
        return min(int(self.cluster["gpus_per_node"]), self.gpus)

    @property
    def nodes(self) -> int:
        """Nodes that the job occupies."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step and data-parallel rank."""
        return int(self.training["global_batch"]) // (self.layout.dp * self.layout.micro_batch)

    @property
    def layers(self) -> int:
        """Decoder layers, multi-token-prediction heads apart."""
        return len(self.model["layers"])

    @property
    def mtp_layers(self) -> int:
        """Multi-token-prediction heads that are trained."""
        return len(self.model.get("mtp", ())) if self.training["mtp"] else 0

    @property
    def experts(self) -> int:
        """Routed experts of the widest layer; 0 for a dense model."""
        forwards = (kind.get("feed_forward") or {} for kind in self.model["kinds"])
        return max((int(forward.get("experts", 0)) for forward in forwards), default=0)

    @property
    def is_mla(self) -> bool:
        """Whether a layer has multi-head latent attention."""
        mixers = (kind.get("mixer") or {} for kind in self.model["kinds"])
        return any(mixer.get("kind") == "mla" for mixer in mixers)

    @property
    def before_blackwell(self) -> bool:
        """Whether the device is an NVIDIA GPU older than Blackwell."""
        return self.cluster["device"]["architecture"] in {"volta", "ampere", "ada", "hopper"}

    @property
    def replicas(self) -> int:
        """Shard groups that hold the same shards."""
        return self.layout.dp * self.layout.cp // self.layout.shard_group

    def chunk_sizes(self) -> list[int]:
        """Layers of each pipeline chunk; chunk c sits on stage c mod pp."""
        return chunk_sizes(self.layers, self.layout.pp * self.layout.vpp)


@dataclass(frozen=True, slots=True)
class Launch:
    """Files that start a job, and what they leave to the reader."""

    framework: str
    tested_with: str
    """Release whose own parser or configuration classes accept these files; see the docs."""
    files: Mapping[str, str]
    """Name → text."""
    notes: tuple[str, ...] = ()
