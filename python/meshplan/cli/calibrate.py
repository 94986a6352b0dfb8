"""``planner calibrate``: a cluster profile, or serving numbers, from your own measurements."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan import output
from meshplan.cli.models import print_table
from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from meshplan.calibrate.profile import Profile

app = typer.Typer(add_completion=False)


@app.command()
def calibrate(
    output_file: Annotated[Path, typer.Option("--output", help="File to write (.toml).")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Training: preset to start from.")
    ] = None,
    serving: Annotated[
        Path | None,
        typer.Option("--serving", help="Measured deployments (CSV): fit the numbers of serving."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Measured training runs (CSV or Parquet).")
    ] = None,
    models: Annotated[
        Path, typer.Option("--models", help="Folder with NAME.json for each model that rows name.")
    ] = Path("models"),
    nccl: Annotated[
        list[Path] | None,
        typer.Option("--nccl", help="nccl-tests output or busbw table (repeatable)."),
    ] = None,
    gemm: Annotated[Path | None, typer.Option("--gemm", help="GEMM table.")] = None,
    attention: Annotated[Path | None, typer.Option("--attention", help="Attention table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a cluster profile, or the numbers of serving, to your own measurements.

    Starts from a preset, uses its values as priors, and changes only what the measurements
    identify. The profile is a cluster file: give it to any command as --cluster.

    With --serving, the numbers of GPUs and backends under --workload serving are fitted instead:
    give the file to sweep, evaluate, explain, export and validate serving as --serving-params.
    """
    others = {"--cluster": cluster, "--runs": runs, "--nccl": nccl, "--gemm": gemm}
    _check_flags({**others, "--attention": attention}, serving is not None)
    if output_file.suffix != ".toml":
        raise InputError("must end in .toml", field="--output", value=f'"{output_file}"')
    if not output_file.parent.is_dir():
        raise InputError(
            f'the folder "{output_file.parent}" does not exist',
            field="--output",
            hint=f"mkdir -p {output_file.parent}",
        )
    if serving is not None:
        _serving(serving, models, output_file, as_json=as_json)
        return
    try:
        import scipy  # noqa: F401

        from meshplan.calibrate.profile import calibrate as fit
    except ImportError:
        raise InputError("needs SciPy", hint="pip install 'meshplan[calibrate]'") from None
    profile = fit(
        str(cluster), runs=runs, models=models, nccl=nccl or (), gemm=gemm, attention=attention
    )
    output.write_text(output_file, profile.to_toml(), field="--output")
    if as_json:
        found = [
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(f).items()}
            for f in profile.findings
        ]
        print(json.dumps({"findings": found, "refused": profile.refused}, indent=2))
        return
    _print(profile)
    print(f"wrote {output_file}", file=sys.stderr)


def _check_flags(others: dict[str, Any], serving: bool) -> None:
    """Refuse flags that contradict each other, all at once."""
    problems: list[Problem] = []
    if serving:
        problems = [
            Problem("is a flag of training profiles", field=name, hint="drop it, or --serving")
            for name, value in others.items()
            if value
        ]
    elif not others["--cluster"]:
        hint = "--cluster h100, or --serving DEPLOYMENTS.csv"
        problems = [Problem("must be given", field="--cluster", hint=hint)]
    if problems:
        raise InputError.all_of(problems)


def _serving(deployments: Path, models: Path, target: Path, *, as_json: bool) -> None:
    from meshplan.calibrate.serving_profile import METRICS, calibrate_serving

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    profile = calibrate_serving(deployments, models, on_step=say)
    output.write_text(target, profile.to_toml(), field="--output")
    if as_json:
        print(json.dumps(profile.as_dict(), indent=2))
        return
    lines = [("errors", *(f"{m.upper()} {q}" for m in METRICS for q in ("median", "p90")))]
    for f in profile.figures:
        lines.append((f.name, *map(_percent, (*f.tpot, *f.ttft))))
    print_table(lines, right=(1, 2, 3, 4))
    print(f"\n{len(profile.parameters)} numbers differ from the preset, {profile.rows} deployments")
    for what, why in profile.refused.items():
        print(f"kept from the preset: {what}: {why}")
    if profile.failed:
        rule = "could not be read: planner validate serving says why"
        say(f"{len(profile.failed)} deployments {rule}")
    say(f"wrote {target}")


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.1f} %"


def _print(profile: Profile) -> None:
    lines = [("fitted", "rows", "before", "after")]
    for f in profile.findings:
        lines.append((f.what, str(f.rows), _percent(f.before), _percent(f.after)))
    print_table(lines, right=(1, 2, 3))
    for f in profile.findings:
        if f.note.startswith("; "):
            print(f"\n{f.what}: {f.note[2:]}")
    if profile.refused:
        print("\nkept from the preset:")
        for why, what in profile.kept.items():
            print(f"  {why}: {', '.join(what)}")
