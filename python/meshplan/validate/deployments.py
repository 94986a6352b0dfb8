"""Measured deployments: the format in which people record them, and what each row means.

One row is one measured serving run; docs/inputs.md lists the columns. ``presets/deployments.toml``
says how rows name models and backends and which flags an engine takes where the row is silent;
``presets/runs.toml`` names the GPUs.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError, Problem
from meshplan.specs import presets
from meshplan.specs.base import suggest
from meshplan.specs.toml import parse
from meshplan.validate import runs
from meshplan.validate.cells import Cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshplan.hf import ModelSpec

MAX_BYTES = 64 << 20
"""Largest file of deployments that is read."""

MAX_TEXT = 1 << 16
"""Longest text of one cell."""

REQUIRED = ("deployment_id", "backend", "model", "gpu", "isl_nominal", "osl_nominal", "tp")

FORMATS = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4", "int8")
"""Labels of weight formats."""

CACHE_FORMATS = ("bf16", "fp16", "fp8", "nvfp4")

WIDE = ("bf16", "fp16")

MODES = {
    "agg": "agg",
    "aggregated": "agg",
    "disagg": "disagg",
    "disaggregated": "disagg",
    "": "agg",
}


@functools.cache
def names() -> dict[str, Any]:
    """How rows name models and backends, and the engines' own defaults."""
    text = resources.files("meshplan").joinpath("presets/deployments.toml").read_text("utf-8")
    return dict(parse(text)[0])


def nearest_version(backend: str, version: str) -> str:
    """Measured version nearest to one that was not; empty where it was, or where none is told.

    >>> nearest_version("vllm", "0.21.3"), nearest_version("vllm", "0.18.0")
    ('0.19', '')
    """
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if not numbers:
        return ""
    own = (int(numbers[1]), int(numbers[2]))
    ends: dict[tuple[int, ...], str] = {}
    for oldest, newest in names()["backends"][backend]["measured"]:
        first, last = (tuple(map(int, end.split("."))) for end in (oldest, newest))
        if first <= own <= last:
            return ""
        ends |= {first: oldest, last: newest}
    return str(ends[min(ends, key=lambda e: (abs(e[0] - own[0]), abs(e[1] - own[1])))])


@dataclass(frozen=True, eq=False)
class Recorded:
    """One measured deployment that can be predicted.

    Attributes
    ----------
    row
        The row as it was written.
    where
        Its place.
    model
        Its model, as named in the row.
    device, cluster
        Presets of its GPU.
    backend, version
        Software; the version is blank where it is not known.
    deployment, load
        What the core is asked.
    assumptions
        What the row left open, a phrase each.
    """

    row: Mapping[str, str]
    where: str
    model: str
    device: str
    cluster: str
    backend: str
    version: str
    deployment: Mapping[str, Any]
    load: Mapping[str, Any]
    assumptions: tuple[str, ...]

    @property
    def name(self) -> str:
        """Key of the row."""
        return self.row["deployment_id"]


def read_rows(path: str | Path) -> list[tuple[str, dict[str, str]]]:
    """Rows of a CSV file with their places, every value as text.

    Raises
    ------
    InputError
        When the file cannot be read, is too large, is no table, lacks a required column, holds no
        row, or names a deployment twice.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"is larger than {MAX_BYTES >> 20} MiB", where=str(path))
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            table = [
                (reader.line_num, [cell.strip() for cell in cells]) for cells in reader if cells
            ]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None
    except (csv.Error, ValueError) as error:
        raise InputError(f"is not a table of deployments: {error}", where=str(path)) from None
    header = table[0][1] if table else []
    _check_header(header, path)
    rows = []
    problems = []
    for line, cells in table[1:]:
        where = f"{path.name}:{line}"
        if len(cells) != len(header):
            rule = f"has {len(cells)} cells where the header has {len(header)}"
            problems.append(Problem(rule, where=where))
        rows.append((where, dict(zip(header, cells, strict=False))))
    problems += _repeated(rows)
    if problems:
        raise InputError.all_of(problems)
    if not rows:
        raise InputError("holds no deployment", where=str(path))
    return rows


def _check_header(header: list[str], path: Path) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise InputError(
            f"lacks the columns {', '.join(missing)}",
            where=str(path),
            hint="docs/inputs.md lists the columns",
        )
    twice = [name for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        raise InputError(f"has the columns {', '.join(twice)} twice", where=f"{path.name}:1")


def _repeated(rows: list[tuple[str, dict[str, str]]]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for where, row in rows:
        name = row.get("deployment_id", "")
        if not name:
            yield Problem("must name the deployment", "deployment_id", where=where)
        elif name in seen:
            rule = f"must be unique, and is that of {seen[name]} too"
            yield Problem(rule, "deployment_id", name[:60], where=where)
        seen.setdefault(name, where)


def interpret(where: str, row: Mapping[str, str], spec: ModelSpec | None) -> Recorded:
    """Find out what a row means.

    Parameters
    ----------
    where
        Place of the row.
    row
        The row.
    spec
        Its model, if one is known.

    Raises
    ------
    InputError
        With every problem of the row.
    """
    reader = _Row(row, where, spec)
    if spec is None:
        hint = "put its config.json as NAME.json into the folder of --models"
        reader.problem("model", "has no config and is no preset", hint)
    device, cluster = reader.gpu()
    backend = reader.backend()
    deployment, load = reader.deployment(backend, device), reader.load()
    version = reader.text("backend_version")
    if nearest := nearest_version(backend, version):
        reader.assume(f"{backend} {version[:20]} as {nearest}, the nearest that was measured")
    reader.number("ttft_ms", "ms")
    reader.number("tpot_ms", "ms")
    if reader.problems:
        raise InputError.all_of(reader.problems)
    return Recorded(
        row=row,
        where=where,
        model=row["model"],
        device=device,
        cluster=cluster,
        backend=backend,
        version=version,
        deployment=deployment,
        load=load,
        assumptions=tuple(reader.assumptions),
    )


class _Row(Cells):
    """A row on its way to a deployment, with the problems met and the assumptions made so far."""

    def __init__(self, row: Mapping[str, str], where: str, spec: ModelSpec | None) -> None:
        super().__init__(row, where)
        self.assumptions: list[str] = []
        blocks = [kind["feed_forward"] for kind in spec.canonical["kinds"]] if spec else []
        self.experts = max((block["experts"] for block in blocks if _routed(block)), default=0)

    def assume(self, words: str) -> None:
        if words not in self.assumptions:
            self.assumptions.append(words)

    def gpu(self) -> tuple[str, str]:
        """Presets of device and cluster; a preset of clusters may stand for the GPU."""
        name = self.text("gpu")
        known = runs.names()["gpus"]
        if name in known:
            return known[name]["device"], known[name]["cluster"]
        if name in presets.names("clusters"):
            return presets.raw("clusters", name, ("gpu",), {})["device"], name
        self.problem("gpu", "is not a known GPU", suggest(name, [*known, *presets.names()]))
        return "h200-sxm", "h200"

    def backend(self) -> str:
        name = self.text("backend").lower()
        known = names()["backends"]
        for backend, facts in known.items():
            if name == backend or name in facts["also"]:
                return str(backend)
        self.problem("backend", f"must be one of {', '.join(known)}", suggest(name, list(known)))
        return "vllm"

    def mode(self) -> str:
        mode = MODES.get(self.text("mode").lower())
        if mode is None:
            self.problem("mode", "must be agg or disagg")
        return mode or "agg"

    def deployment(self, backend: str, device: str) -> dict[str, Any]:
        """Engines, layouts and flags."""
        clients = self.whole("concurrency")
        pools: dict[str, Any] = {"prefill": None}
        if self.mode() == "agg":
            engine = self.engine("", backend, clients)
            # A flag of SGLang is for the engine, those of others for each attention replica.
            ranks = 1 if backend == "sglang" else engine["attention_dp"]
            stated = ranks * self.whole("max_num_batched_tokens")
            engine["max_batched_tokens"] = stated or engine["max_batched_tokens"]
            pools["decode"] = {"workers": self.replicas(engine), "engine": engine}
        else:
            for side in ("prefill", "decode"):
                workers = self.whole(f"{side}_workers")
                if not self.text(f"{side}_workers"):
                    self.problem(f"{side}_workers", "must be known for a disaggregated deployment")
                    continue
                pools[side] = {"workers": workers, "engine": self.engine(side, backend, clients)}
        return {"backend": backend, "precision": self.precision(backend, device), **pools}

    def engine(self, side: str, backend: str, clients: int) -> dict[str, Any]:
        """Engine of one side, or of an aggregated deployment where the side is empty."""
        prefix = f"{side}_" if side else ""
        tp, pp = self.whole(f"{prefix}tp"), self.whole("pp", 1) if not side else 1
        if not self.text(f"{prefix}tp"):
            self.problem(f"{prefix}tp", "must be given")
            tp = 1
        replicas = self.whole(f"{prefix}attention_dp", 1)
        if tp % replicas:
            self.problem(f"{prefix}attention_dp", f"must divide {prefix}tp = {tp}")
        ep = self.whole(f"{prefix}ep", 1)
        if side and replicas > 1 and ep == 1 and tp > 1:
            self.assume(f"{side} ep = {side} tp: a 1 beside attention DP is taken for unset")
            ep = tp
        inside = self.whole("moe_tp", max(tp // ep, 1)) if not side else max(tp // ep, 1)
        if ep * inside != tp:
            rule = f"must divide {prefix}tp = {tp}" if side else f"ep · moe_tp must be tp = {tp}"
            self.problem(f"{prefix}ep", rule)
        facts = names()["backends"][backend]
        slots = self.whole("decode_max_batch", clients) if side == "decode" else clients
        return {
            "tp": tp,
            "pp": pp,
            "attention_dp": replicas,
            "ep": ep,
            "moe_tp": inside,
            "dcp": 1,
            "max_batch": max(slots, 1),
            "max_batched_tokens": replicas * self.budget(backend, clients),
            "block_tokens": facts["block_tokens"],
            "recv_interval": self.whole("scheduler_recv_interval", 1),
            "memory_share": facts["memory_share"],
            "spec_tokens": self.drafts(),
            "redundant_experts": self.copies(ep),
        }

    def copies(self, ep: int) -> int:
        """Fewest copies of experts with which every expert rank holds as many."""
        copies = -self.experts % ep
        if copies:
            self.assume(f"{copies} redundant experts over {ep} ranks")
        return copies

    def budget(self, backend: str, clients: int) -> int:
        """Prompt tokens of a step of an attention replica where the row states none."""
        default = int(names()["backends"][backend]["max_batched_tokens"])
        if backend == "trtllm":
            return max(default, -(-(self.whole("isl_nominal", 1) + clients) // 64) * 64)
        return default

    def replicas(self, engine: Mapping[str, Any]) -> int:
        """Engines of an aggregated deployment: its GPUs over those of one."""
        own = int(engine["tp"]) * int(engine["pp"])
        gpus = self.whole("gpus", own)
        if gpus % own:
            self.problem("gpus", f"must be a multiple of tp · pp = {own}")
        return max(gpus // own, 1)

    def drafts(self) -> int:
        if not self.text("spec_tokens"):
            self.assume("no speculative decoding")
        return self.whole("spec_tokens", 0, least=0)

    def precision(self, backend: str, device: str) -> dict[str, str]:
        """Formats: the labels of the row, and what they leave open."""
        weights = self.format("weight_precision", "")
        if not weights:
            self.assume("bf16 weights")
            weights = "bf16"
        facts = names()["checkpoints"].get(self.text("hf_config_quantized"), {})
        # Four-bit checkpoints keep their attention projections in 16 bits.
        usual = "bf16" if weights in ("int4", "mxfp4", "nvfp4") else weights
        if not self.text("moe_precision"):
            usual = weights  # a dense model: one format throughout
        attention = self.format("attn_precision", usual)
        # Formats that only experts have leave the dense MLPs as the attention.
        dense = attention if weights in ("int4", "mxfp4") else weights
        return {
            "attention": attention,
            "dense": facts.get("dense", dense),
            "experts": self.format("moe_precision", weights),
            "kv": self.cache(weights, facts.get("kv"), backend, device),
        }

    def format(self, column: str, blank: str) -> str:
        label = self.text(column).lower()
        if label and label not in FORMATS:
            self.problem(column, f"must be one of {', '.join(FORMATS)}")
            return "bf16"
        return label or blank

    def cache(self, weights: str, asked: str | None, backend: str, device: str) -> str:
        """Format of keys and values.

        Where the row is silent: what the checkpoint asks for; 16 bits beside 16-bit weights; else
        fp8 in disaggregated deployments, on Blackwell and with TensorRT-LLM, 16 bits elsewhere.
        """
        label = self.text("kv_dtype").lower()
        if label and label not in CACHE_FORMATS:
            self.problem("kv_dtype", f"must be one of {', '.join(CACHE_FORMATS)}")
        if label:
            return label
        architecture = presets.raw("devices", device, ("gpu",), {})["architecture"]
        small = asked == "fp8" or self.mode() == "disagg" or backend == "trtllm"
        small = weights not in WIDE and (small or architecture == "blackwell")
        self.assume(f"{'fp8' if small else 'bf16'} KV cache")
        return "fp8" if small else "bf16"

    def load(self) -> dict[str, Any]:
        """Requests: a closed loop of clients, or open where the row states a rate."""
        low = self.number("length_range_low", "the nominal length") or 1.0
        if low > 1:
            self.problem("length_range_low", "must be at most 1")
        lengths = {}
        for side, column in (("input", "isl_nominal"), ("output", "osl_nominal")):
            if not self.text(column):
                self.problem(column, "must be given")
            lengths[side] = {"tokens": self.whole(column, 1), "low": min(low, 1.0)}
        if self.flag("prefix_caching"):
            self.assume("no prefix hits")
        return {
            "arrivals": self.arrivals(),
            **lengths,
            "requests": self.whole("num_prompts") or None,
            "prefix_hit_ratio": 0.0,
            "acceptance": None,
            "seed": 0,
        }

    def arrivals(self) -> dict[str, Any]:
        if self.text("request_rate").lower() not in ("", "inf"):
            rate = self.number("request_rate", "requests/s") or 1.0
            self.assume("Poisson arrivals")
            return {"kind": "open", "rate_per_s": rate, "cv": 1.0}
        if not self.text("concurrency"):
            self.problem("concurrency", "must be given where there is no request_rate")
        return {"kind": "closed", "concurrency": self.whole("concurrency", 1)}


def _routed(block: Mapping[str, Any] | None) -> bool:
    return block is not None and block["kind"] == "moe"
