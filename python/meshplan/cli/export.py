"""``planner export``: the best layout of a job, in the words of a training framework."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from meshplan.cli.asking import read
from meshplan.cli.flags import AXES, JOB, JSON, Flag, Given, takes
from meshplan.cli.serving_flags import ONLY, WORKLOAD
from meshplan.errors import Infeasible, InputError
from meshplan.export import EXPORTERS, Job, Launch, Layout
from meshplan.export import export as write_for

app = typer.Typer()

RULES = {"megatron-bridge": "megatron"}
"""Target → framework whose rules a layout must obey, where the names differ."""

EXPORT = (
    Flag("--to", (), "One of " + ", ".join(EXPORTERS) + "; serving: vllm, sglang or trtllm.",
         "TARGET", panel="Output"),
    Flag("--rank", (), "Which of the best layouts (1).", "K", panel="Output"),
    Flag("--folder", (), "Write the files there instead of printing them.", "DIR", panel="Output"),
    JSON,
)  # fmt: skip


@app.command()
@takes(WORKLOAD, *JOB, *AXES, *EXPORT, *ONLY)
def export(given: Given) -> None:
    """Write launch arguments for the best layout; pin the axes to export a layout of your own."""
    from meshplan.cli import serving

    if serving.asked(given):
        serving.export(given, _rank(given), _folder(given))
        return
    from meshplan import search
    from meshplan.request import job as canonical

    target, rank = _target(given), _rank(given)
    folder = _folder(given)
    asked = {name: value for name, value in given.items() if name != "rank"}  # sweep's is another
    plan, model = read({"framework": RULES.get(target, target), **asked, "top": str(rank)})
    result = search.run(plan, model)
    rows = result.rows("top")
    if len(rows) < rank:
        raise Infeasible(result.nearest if not rows else f"only {len(rows)} layouts are feasible")
    spec = canonical(plan, model)
    job = Job(Layout.of(rows[-1]), spec["model"], spec["training"], spec["cluster"])
    launch = write_for(job, target)
    layout = {name: rows[-1][name] for name in Layout.__slots__}
    hand_over(launch, layout, folder, as_json="json" in given)


def hand_over(
    launch: Launch, layout: dict[str, object], folder: Path | None, *, as_json: bool
) -> None:
    """Print or write the files of a launch, and say its notes."""
    from meshplan.output import write_text

    if as_json:
        print(json.dumps(_object(launch, layout), indent=2))
    elif folder is None:
        print("\n".join(_titled(launch)), end="")
    for note in launch.notes:
        print(f"note: {note}", file=sys.stderr)
    if folder is not None:
        for name, text in launch.files.items():
            write_text(folder / name, text, field="--folder")
            print(f"wrote {folder / name}", file=sys.stderr)


def _titled(launch: Launch) -> list[str]:
    """Texts of the files; a name above each where there are several."""
    if len(launch.files) == 1:
        return list(launch.files.values())
    return [f"==> {name} <==\n{text}" for name, text in launch.files.items()]


def _object(launch: Launch, layout: dict[str, object]) -> dict[str, object]:
    return {
        "framework": launch.framework,
        "tested_with": launch.tested_with,
        "layout": layout,
        "files": dict(launch.files),
        "notes": list(launch.notes),
    }


def _target(given: Given) -> str:
    target = str(given.get("to") or given.get("framework") or "")
    if target not in EXPORTERS:
        hint = "planner export --to megatron ..."
        rule = "must be one of " + ", ".join(EXPORTERS)
        raise InputError(rule, field="--to", value=target or "nothing", hint=hint)
    return target


def _rank(given: Given) -> int:
    text = str(given.get("rank", "1"))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1000:
        raise InputError("must be a whole number from 1 to 1000", field="--rank", value=text)
    return int(text)


def _folder(given: Given) -> Path | None:
    if "folder" not in given:
        return None
    folder = Path(given["folder"])
    if not folder.is_dir():
        hint = f"mkdir -p {folder}"
        raise InputError("is not a folder", field="--folder", value=f'"{folder}"', hint=hint)
    return folder
