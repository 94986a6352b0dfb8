"""Measured training runs: the format in which people record them, and what each row means.

One row is one run; docs/accuracy.md lists the columns. A run names its GPU, fabric and framework in
words; ``presets/runs.toml`` says which presets these are.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.specs import presets, software
from meshplan.specs.base import suggest
from meshplan.specs.cluster import Cluster
from meshplan.specs.toml import parse
from meshplan.specs.training import Training
from meshplan.validate.cells import Cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshplan.hf import ModelSpec

MAX_BYTES = 256 << 20
"""Largest file of runs that is read."""

REQUIRED = ("run_id", "model", "gpu", "gpus", "seq_len", "global_batch", "framework")

DEFAULTS: dict[str, str] = {
    "source": "runs",
    "gpus_per_node": "8",
    "nvlink_domain": "8",
    "nic_gbps_per_gpu": "400",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "ep": "1",
    "etp": "1",
    "sharding": "none",
    "precision": "bf16",
    "recompute": "unknown",
    "trust": "A",
    "split": "dev",
}
"""What a missing or blank column stands for; other blanks stay blank."""


@functools.cache
def names() -> dict[str, Any]:
    """How runs name hardware and software."""
    text = resources.files("meshplan").joinpath("presets/runs.toml").read_text("utf-8")
    return dict(parse(text)[0])


@dataclass(frozen=True, eq=False)
class Run:
    """One measured run.

    Attributes
    ----------
    row
        The row as it was written, defaults filled in.
    model
        Its model.
    device, fabric, software
        Presets that it uses.
    gpus
        GPUs.
    cluster
        Facts of its cluster beside the presets.
    training
        Canonical workload.
    layouts
        Layouts to predict: one, or all that the row leaves open.
    """

    row: Mapping[str, str]
    model: str
    device: str
    fabric: str
    software: str
    gpus: int
    cluster: Mapping[str, Any]
    training: Mapping[str, Any]
    layouts: tuple[Mapping[str, Any], ...]
    assumptions: tuple[str, ...] = field(default=())

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.row["run_id"]


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Rows of a CSV or Parquet file, every value as text, defaults filled in.

    Raises
    ------
    InputError
        When the file cannot be read, is too large, or lacks a required column.
    """
    import polars as pl

    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError("is larger than 256 MiB", where=str(path))
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path).cast(pl.String)
        else:
            frame = pl.read_csv(path, infer_schema=False)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"is not a table of runs: {reason}", where=str(path)) from None
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise InputError(
            f"lacks the columns {', '.join(missing)}",
            where=str(path),
            hint="docs/accuracy.md lists the columns",
        )
    rows = []
    for values in frame.iter_rows(named=True):
        row = {k: (v or "").strip() for k, v in values.items()}
        rows.append(row | {k: v for k, v in DEFAULTS.items() if not row.get(k)})
    if not rows:
        raise InputError("holds no run", where=str(path))
    return rows


def interpret(row: Mapping[str, str], spec: ModelSpec, cluster: str | None = None) -> Run:
    """Find out what a row means.

    Parameters
    ----------
    row
        The row.
    spec
        Its model.
    cluster
        Preset of the cluster on which it ran, instead of what its columns say.

    Raises
    ------
    InputError
        With every problem of the row.
    """
    reader = _Row(row)
    if cluster is None:
        entry = names()["gpus"].get(row["gpu"])
        if entry is None:
            known = list(names()["gpus"])
            reader.problem("gpu", "is not a known GPU", suggest(row["gpu"], known))
            raise InputError.all_of(reader.problems)
        gpu, preset = entry["device"], entry["cluster"]
    else:
        gpu, preset = presets.raw("clusters", cluster, ("cluster",), {})["device"], cluster
    device = presets.raw("devices", gpu, ("gpu",), {})
    generation = reader.software()
    if generation is None:
        reader.problem("framework", "is not a known framework", "see presets/runs.toml")
        raise InputError.all_of(reader.problems)
    if cluster is None:
        fabric, facts = reader.network(device["architecture"]), reader.cluster(preset)
    else:
        fabric = presets.raw("clusters", cluster, (), {})["scale_out_fabric"]
        facts = {"preset": preset}
    training = reader.training(generation)
    layouts, assumptions = reader.layouts(spec)
    if reader.problems:
        raise InputError.all_of(reader.problems)
    kernels = tuple(device["training"]["attention_efficiency"])
    return Run(
        row=row,
        model=row["model"],
        device=gpu,
        fabric=fabric,
        software=generation,
        gpus=reader.whole("gpus"),
        cluster=facts,
        training=training.canonical(kernels),
        layouts=tuple(layouts),
        assumptions=tuple(assumptions),
    )


def link(run: Run) -> str:
    """Preset of the scale-up fabric of a run."""
    return str(presets.raw("clusters", run.cluster["preset"], (), {})["scale_up_fabric"])


def cluster_json(run: Run) -> str:
    """Canonical cluster of a run under the presets as they are now."""
    description = {
        "name": f"{run.device} {run.fabric}",
        "device": run.device,
        "scale_out_fabric": run.fabric,
        **run.cluster,
    }
    expanded = presets.expand(description, (), {})
    return json.dumps(Cluster.model_validate(expanded).canonical())


class _Row(Cells):
    """A row on its way to a run, with the problems met so far."""

    def __init__(self, row: Mapping[str, str]) -> None:
        super().__init__(row, f"run {row.get('run_id', '?')}")
        self.note = row.get("overlap_note", "")
        self.notes = row.get("notes", "")

    def attention(self) -> str:
        if "transformer-impl=local" in self.notes or self.flag("flash_attention") is False:
            return "unfused"
        return "flash" if self.flag("flash_attention") else ""

    def release(self) -> str:
        """Release of the framework: its column, or ``release 26.06`` in the notes."""
        found = re.search(r"release (\d[\d.]*)", self.notes)
        return self.row.get("framework_version") or (found.group(1) if found else "")

    def software(self) -> str | None:
        words = re.sub(r"\s*(\(.*|r?\d+\.\d.*)$", "", self.row["framework"].lower()).strip()
        release = _numbers(self.release())
        for rule in names()["software"]:
            if (
                rule["framework"] == words
                and rule.get("precision", self.row["precision"]) == self.row["precision"]
                and rule.get("attention", self.attention()) == self.attention()
                and _numbers(rule.get("release", "0")) <= (release or (0,))
                and rule.get("note", "") in self.note
            ):
                return str(rule["preset"])
        return words if words in software.names() else None

    def network(self, architecture: str) -> str:
        note = self.row.get("interconnect_note", "")
        nic = self.nic_gbps()
        for rule in names()["networks"]:
            if (
                rule.get("note", "") in note
                and rule.get("architecture", architecture) == architecture
                and rule.get("nic_gbps", 0) <= nic
            ):
                return str(rule["fabric"])
        raise AssertionError("the last rule matches everything")

    def nic_gbps(self) -> float:
        """NIC rate of a GPU, Gb/s."""
        try:
            rate = float(self.row["nic_gbps_per_gpu"])
        except ValueError:
            rate = 0.0
        if 0 < rate <= 1e6:
            return rate
        self.problem("nic_gbps_per_gpu", "must be a positive number of Gb/s")
        return 1.0

    def cluster(self, preset: str) -> dict[str, Any]:
        per_node = self.whole("gpus_per_node")
        return {
            "preset": preset,
            "gpus_per_node": per_node,
            "nvlink_domain": self.whole("nvlink_domain"),
            "nics_per_node": per_node,
            "nic": self.nic_gbps() * 1e9 / 8,
        }

    def training(self, generation: str) -> Training:
        defaults = software.resolve(generation, software.tables()).workload
        overlap = dict(defaults.get("overlap", {}))
        if re.search(r"async TP|TP comm|TP/", self.note):
            overlap["tp"] = True
        if re.search(r"^no |no DP overlap|no communication overlap|^none$|no gradient", self.note):
            overlap |= {"dp": False, "tp": False, "ep": False}
        precision = self.row["precision"]
        if precision not in ("fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
            self.problem("precision", "must be one of fp16, bf16, fp8, mxfp8, nvfp4")
            precision = "bf16"
        attention = self.attention()
        if attention in ("", "flash"):
            default = defaults.get("attention", "flash")
            attention = default if not attention or default != "unfused" else "flash"
        graphs = re.search(r"cuda_graph_scope=\['?\w", self.note) or "_cg" in self.notes
        return Training(
            **{
                **defaults,
                "seq_len": self.whole("seq_len"),
                "global_batch": self.whole("global_batch"),
                "precision": precision,
                "attention": attention,
                "cuda_graphs": bool(graphs),
                "overlap": overlap,
            }
        )

    def layouts(self, spec: ModelSpec) -> tuple[list[dict[str, Any]], list[str]]:
        """Layouts that the row allows, and what it leaves open."""
        tp, pp, cp = self.whole("tp"), self.whole("pp"), self.whole("cp")
        world, batch = self.whole("gpus"), self.whole("global_batch")
        dp = self.whole("dp", max(1, world // (tp * pp * cp)))
        open_axes = [
            axis
            for axis, blank in (
                ("micro_batch", not self.row.get("micro_batch")),
                ("vpp", not self.row.get("vpp")),
                ("recompute", self.row["recompute"] == "unknown"),
            )
            if blank
        ]
        chunks = len(spec.canonical["layers"])
        micro = [self.whole("micro_batch")]
        if "micro_batch" in open_axes:
            micro = [b for b in range(1, 17) if batch % (b * dp) == 0] or [1]
        vpp = [self.whole("vpp")]
        if "vpp" in open_axes:
            vpp = [v for v in range(1, 13) if pp > 1 or v == 1]
            vpp = [v for v in vpp if v == 1 or any((chunks + k) % (pp * v) == 0 for k in (0, 2))]
        recompute = [(self.row["recompute"], 0)]
        if "recompute" in open_axes:
            deepest = -(-chunks // pp)
            blocks = sorted({-(-deepest * quarter // 4) for quarter in (1, 2, 3)})
            recompute = [("none", 0), ("selective", 0), *(("block", n) for n in blocks)]
            recompute.append(("full", 0))
        if recompute[0][0] not in ("none", "selective", "block", "full"):
            self.problem("recompute", "must be none, selective, block, full or unknown")
        found = [
            self.layout((tp, pp, cp, dp), b, v, r) for r in recompute for v in vpp for b in micro
        ]
        return found, [f"{axis}: the planner's own best" for axis in open_axes]

    def layout(
        self,
        degrees: tuple[int, int, int, int],
        micro: int,
        vpp: int,
        recompute: tuple[str, int],
    ) -> dict[str, Any]:
        """Layout of given (tp, pp, cp, dp), micro-batch, chunks and (recompute, layers)."""
        tp, pp, cp, dp = degrees
        sharding = {"fsdp": "zero3"}.get(self.row["sharding"], self.row["sharding"])
        group = self.whole("shard_group", dp * cp)
        if sharding == "zero3" and group < dp * cp:
            sharding = "hsdp"
        scattered = self.flag("sequence_parallel")
        schedule = "interleaved" if vpp > 1 and pp > 1 else "1f1b"
        if "DualPipe" in self.note:
            schedule = "dualpipe"
        return {
            "tp": tp,
            "cp": cp,
            "ep": self.whole("ep"),
            "etp": self.whole("etp"),
            "pp": pp,
            "dp": dp,
            "vpp": vpp if pp > 1 else 1,
            "micro_batch": micro,
            "sequence_parallel": tp > 1 if scattered is None else scattered,
            "recompute": recompute[0],
            "recompute_layers": recompute[1],
            "sharding": sharding,
            "shard_group": 1 if sharding == "none" else group,
            "schedule": schedule,
        }


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def each(
    rows: list[dict[str, str]], models: Mapping[str, ModelSpec], cluster: str | None = None
) -> Iterator[tuple[dict[str, str], Run | InputError]]:
    """Interpret every row; a row that cannot be predicted comes with the reason."""
    for row in rows:
        spec = models.get(row["model"])
        if spec is None:
            yield row, InputError("has no config", field="model", value=row["model"])
            continue
        try:
            yield row, interpret(row, spec, cluster)
        except InputError as error:
            yield row, error
