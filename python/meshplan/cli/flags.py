"""The flags that describe a job, declared once; ``sweep``, ``evaluate`` and ``explain`` share them.

Typer reads a command's flags from its signature. `takes` writes that signature from declarations,
so that a command takes one argument, `Given`, however many flags it has. Values reach the specs as
text, with the flag as their origin: one reader and one kind of message, wherever a value came from.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshplan.specs.toml import Path


@dataclass(frozen=True)
class Flag:
    """A flag and the value of a plan that it sets."""

    name: str
    path: Path
    text: str
    metavar: str = ""
    switch: bool = False
    panel: str = "Job"

    @property
    def parameter(self) -> str:
        """Name of the Python parameter."""
        return self.name.removeprefix("--").replace("-", "_")


Given = dict[str, Any]
"""Flag without dashes → value, for the flags that were given."""

_TRAINING = "Workload"
_SPACE = "Space: pin (8), list (1,2,4), bound (1..8) or leave open"
_OUTPUT = "Output"


def _training(name: str, text: str, metavar: str) -> Flag:
    return Flag(f"--{name}", ("workload", name.replace("-", "_")), text, metavar, panel=_TRAINING)


def _axis(name: str, text: str, metavar: str = "N") -> Flag:
    return Flag(f"--{name}", ("space", name.replace("-", "_")), text, metavar, panel=_SPACE)


JOB = (
    Flag("--gpus", ("gpus",), "GPUs of the job.", "N"),
    Flag("--model", ("model",), "Preset or path of a config.json.", "NAME|PATH"),
    Flag("--cluster", ("cluster",), "Preset or path of a TOML file.", "NAME|PATH"),
    Flag("--config", (), "File that describes the whole job; flags override it.", "plan.toml"),
    Flag("--framework", ("framework",), "Whose rules hold: generic, megatron, …", "NAME"),
    Flag("--framework-version", ("framework_version",), "Release whose costs hold.", "VERSION"),
    _training("seq-len", "Tokens in a sequence.", "TOKENS"),
    _training("global-batch", 'Sequences in a step, or "4M tokens".', "BATCH"),
    _training("precision", "bf16, fp16, fp8, mxfp8 or nvfp4.", "RECIPE"),
    _training("optimizer", "adam, adam8bit, muon or sgd.", "NAME"),
    _training("attention", "flash, flash2, flash3 or unfused.", "KERNEL"),
    _training("cp-comm", "p2p, all_gather or all_to_all.", "KIND"),
    _training("rank-order", "tp-cp-ep-dp-pp or tp-cp-ep-pp-dp.", "ORDER"),
    _training("moe-imbalance", "Hottest expert rank over the mean.", "RATIO"),
    _training("routing", "uniform, dirichlet:A, zipf:S, or a file of counts.", "MODEL"),
)
"""Flags of the job itself."""

AXES = (
    _axis("tp", "Tensor parallelism."),
    _axis("pp", "Pipeline stages."),
    _axis("dp", "Data parallelism; otherwise what the other degrees leave."),
    _axis("cp", "Context parallelism."),
    _axis("ep", "Expert parallelism."),
    _axis("etp", "Tensor parallelism inside an expert."),
    _axis("vpp", "Virtual chunks per stage."),
    _axis("micro-batch", "Sequences in a micro-batch."),
    _axis("sharding", "none, zero1, zero2, zero3 (fsdp), hsdp.", "KIND"),
    _axis("shard-group", "Ranks in an HSDP shard group."),
    _axis("recompute", "none, selective, block, full.", "KIND"),
    _axis("recompute-layers", "Layers per stage under block recomputation."),
    _axis("schedule", "1f1b, interleaved, zb-h1, gpipe, dualpipe.", "KIND"),
    _axis("sequence-parallel", "on or off; on if nothing follows.", "on|off"),
)
"""Flags of the axes of the space."""

JSON = Flag("--json", (), "Print one JSON object.", switch=True, panel=_OUTPUT)

SEARCH = (
    Flag("--top", ("top",), "Best layouts to print (10).", "K", panel=_OUTPUT),
    Flag("--output", ("output",), "Write all that run: .parquet, .csv, .arrow.", "FILE",
         panel=_OUTPUT),
    JSON,
    Flag("--threads", ("threads",), "Threads (one per core).", "N", panel=_OUTPUT),
    Flag("--rank", ("rank",), "Order: time, or upper (time · (1 + error q90)).", "HOW",
         panel=_OUTPUT),
    Flag("--exhaustive", ("exhaustive",), "Skip nothing by bounds.", switch=True, panel=_OUTPUT),
)  # fmt: skip
"""Flags of a search."""


class JobCommand(TyperCommand):
    """A command with the flags of a job; ``--sequence-parallel`` alone means on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, switches spelled out."""
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: list[str]) -> list[str]:
    """Arguments with ``on`` after a switch axis that has no value.

    >>> spelled_out(["--sequence-parallel", "--tp", "8"]), spelled_out([])
    (['--sequence-parallel', 'on', '--tp', '8'], [])
    """
    out: list[str] = []
    for arg, following in zip_longest(args, args[1:], fillvalue="--"):
        out.append(arg)
        if arg == "--sequence-parallel" and following.startswith("--"):
            out.append("on")
    return out


def takes(*flags: Flag) -> Callable[[Callable[[Given], None]], Callable[..., None]]:
    """Give a command these flags; it receives those that were used."""

    def wrap(command: Callable[[Given], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            command({name: value for name, value in values.items() if value not in (None, False)})

        signature = inspect.Signature([_parameter(flag) for flag in flags])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return wrap


def _parameter(flag: Flag) -> inspect.Parameter:
    option = typer.Option(
        flag.name, help=flag.text, metavar=flag.metavar or None, rich_help_panel=flag.panel
    )
    kind: Any = bool if flag.switch else str | None
    return inspect.Parameter(
        flag.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if flag.switch else None,
        annotation=Annotated[kind, option],
    )


def plan_values(given: Given, *flags: Flag) -> dict[Path, tuple[Any, str]]:
    """Values of a plan that the flags set, with the flags as their origins."""
    return {
        flag.path: (given[flag.parameter], flag.name)
        for flag in flags
        if flag.path and flag.parameter in given
    }
