"""``planner calibrate``: a cluster profile from your own measurements."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan import output
from meshplan.cli.models import print_table
from meshplan.errors import InputError

if TYPE_CHECKING:
    from meshplan.calibrate.profile import Profile

app = typer.Typer(add_completion=False)


@app.command()
def calibrate(
    cluster: Annotated[str, typer.Option("--cluster", help="Preset to start from.")],
    output_file: Annotated[Path, typer.Option("--output", help="Cluster file to write (.toml).")],
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Measured training runs (CSV or Parquet).")
    ] = None,
    models: Annotated[
        Path, typer.Option("--models", help="Folder with NAME.json for each model of the runs.")
    ] = Path("models"),
    nccl: Annotated[
        list[Path] | None,
        typer.Option("--nccl", help="nccl-tests output or busbw table (repeatable)."),
    ] = None,
    gemm: Annotated[Path | None, typer.Option("--gemm", help="GEMM table.")] = None,
    attention: Annotated[Path | None, typer.Option("--attention", help="Attention table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a cluster profile to your own measurements.

    Starts from a preset, uses its values as priors, and changes only what the measurements
    identify. The profile is a cluster file: give it to any command as --cluster.
    """
    if output_file.suffix != ".toml":
        raise InputError("must end in .toml", field="--output", value=f'"{output_file}"')
    if not output_file.parent.is_dir():
        raise InputError(
            f'the folder "{output_file.parent}" does not exist',
            field="--output",
            hint=f"mkdir -p {output_file.parent}",
        )
    try:
        import scipy  # noqa: F401

        from meshplan.calibrate.profile import calibrate as fit
    except ImportError:
        raise InputError("needs SciPy", hint="pip install 'meshplan[calibrate]'") from None
    profile = fit(
        cluster, runs=runs, models=models, nccl=nccl or (), gemm=gemm, attention=attention
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


def _print(profile: Profile) -> None:
    def percent(value: float) -> str:
        return "" if math.isnan(value) else f"{100 * value:.1f} %"

    lines = [("fitted", "rows", "before", "after")]
    for f in profile.findings:
        lines.append((f.what, str(f.rows), percent(f.before), percent(f.after)))
    print_table(lines, right=(1, 2, 3))
    for f in profile.findings:
        if f.note.startswith("; "):
            print(f"\n{f.what}: {f.note[2:]}")
    if profile.refused:
        print("\nkept from the preset:")
        for why, what in profile.kept.items():
            print(f"  {why}: {', '.join(what)}")
