"""A cluster profile from a user's own measurements: ``planner calibrate``.

Starts from a preset and replaces what the measurements identify: GEMM and attention curves by
kernel tables, fabrics by collective logs, training ratios and software costs by runs. What they do
not identify stays at the preset and is named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError
from meshplan.specs import overlay, presets, software

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from meshplan.calibrate.robust import Fit
    from meshplan.calibrate.training import Array
    from meshplan.specs.overlay import Parameter
    from meshplan.validate.predict import Batch

IDENTIFIED = 0.8
"""A parameter is identified when the runs shrink its spread to this share of what was believed."""

FEWEST_ROWS = 20
"""Fewest rows of a table that a curve is fitted to."""

KERNEL_COLUMNS = {
    "gemm": ("dtype", "m", "n", "k", "latency_us"),
    "attention": ("fw", "phase", "kernel", "batch", "isl", "step", "num_heads", "latency_us"),
}


@dataclass
class Finding:
    """One part of a profile: what it was fitted to, and the error before and after.

    Attributes
    ----------
    what
        Part of the profile, such as ``gemm.bf16``.
    rows
        Measurements.
    before, after
        Median absolute relative error under the preset, and cross-validated after the fit.
    note
        Anything else.
    """

    what: str
    rows: int
    before: float
    after: float
    note: str = ""


@dataclass
class Profile:
    """A calibrated cluster.

    Attributes
    ----------
    cluster
        Preset that it builds on.
    changes
        Values that differ from the preset, as a cluster file holds them.
    findings
        What was fitted.
    refused
        What could not be fitted, and why.
    """

    cluster: str
    changes: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> dict[str, list[str]]:
        """Reason → what stays at the preset for it."""
        found: dict[str, list[str]] = {}
        for what, why in self.refused.items():
            found.setdefault(why, []).append(what)
        return found

    def accept(self, finding: Finding) -> bool:
        """Whether a fit is taken up: one that predicts unseen rows no better than the preset is not."""
        if finding.after >= finding.before:
            why = "its error of {:.1f} % is no worse than that of a fit, {:.1f} % cross-validated"
            self.refused[finding.what] = why.format(100 * finding.before, 100 * finding.after)
            return False
        self.findings.append(finding)
        return True

    def to_toml(self) -> str:
        """Text of a cluster file that every command accepts."""
        import tomlkit

        document = tomlkit.document()
        document.add(tomlkit.comment(f"{self.cluster}, calibrated by planner calibrate"))
        for f in self.findings:
            figures = f"{100 * f.before:.1f} % before, {100 * f.after:.1f} % cross-validated after"
            document.add(tomlkit.comment(f"{f.what}: {f.rows} rows, {figures}{f.note}"))
        for why, what in self.kept.items():
            document.add(tomlkit.comment(f"kept from the preset, {why}: {', '.join(what)}"))
        document["preset"] = self.cluster
        document["name"] = f"{self.cluster}, calibrated"
        for key, value in self.changes.items():
            document[key] = value
        return tomlkit.dumps(document)


def calibrate(
    cluster: str,
    *,
    runs: str | Path | None = None,
    models: str | Path = "models",
    nccl: Sequence[str | Path] = (),
    gemm: str | Path | None = None,
    attention: str | Path | None = None,
) -> Profile:
    """Fit a cluster profile to measurements.

    Parameters
    ----------
    cluster
        Preset to start from.
    runs, models
        Measured training runs on this cluster, and the folder of their models' configs.
    nccl
        Output of nccl-tests or RCCL-tests, or tables of bus bandwidth.
    gemm, attention
        Kernel tables, as `planner measure` writes them.

    Returns
    -------
    Profile
        The profile and the errors before and after.

    Raises
    ------
    InputError
        When an input cannot be read, or nothing was given.
    """
    if runs is None and gemm is None and attention is None and not nccl:
        raise InputError("needs measurements", hint="give --runs, --nccl, --gemm or --attention")
    presets.raw("clusters", cluster, ("cluster",), {("cluster",): "--cluster"})
    profile = Profile(cluster)
    if gemm is not None:
        _gemm(profile, _table(gemm, "gemm"))
    if attention is not None:
        _attention(profile, _table(attention, "attention"))
    if nccl:
        _fabrics(profile, nccl)
    if runs is not None:
        _runs(profile, runs, models)
    return profile


def _table(path: str | Path, kind: str) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_parquet(path) if str(path).endswith(".parquet") else pl.read_csv(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"is not a table: {reason}", where=str(path)) from None
    missing = [c for c in KERNEL_COLUMNS[kind] if c not in frame.columns]
    if missing:
        raise InputError(
            f"lacks the columns {', '.join(missing)}",
            where=str(path),
            hint="docs/kernels.md lists the columns of kernel tables",
        )
    return frame


def _device(profile: Profile) -> dict[str, Any]:
    name = presets.raw("clusters", profile.cluster, (), {})["device"]
    device = presets.raw("devices", name, (), {})
    profile.changes.setdefault("device", {"preset": name})
    return device


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {k: v if v == int(v) else float(f"{v:.4g}") for k, v in values.items()}


def _gemm(profile: Profile, table: pl.DataFrame) -> None:
    import polars as pl

    from meshplan.calibrate import gemm
    from meshplan.calibrate.presets import peaks_of

    device = _device(profile)
    peaks = peaks_of(device)
    for dtype in sorted(table["dtype"].unique()):
        rows = table.filter(pl.col("dtype") == dtype)
        if rows.height < FEWEST_ROWS:
            profile.refused[f"gemm.{dtype}"] = f"{rows.height} rows, {FEWEST_ROWS} are needed"
            continue
        for key, fit in gemm.fit_table(rows, peaks).items():
            before = _gemm_error(device["gemm"].get(key), rows, peaks)
            if profile.accept(_finding(f"gemm.{key}", fit, before)):
                profile.changes["device"].setdefault("gemm", dict(device["gemm"]))
                profile.changes["device"]["gemm"][key] = _rounded(fit.values)


def _gemm_error(curve: dict[str, float] | None, rows: pl.DataFrame, peaks: Any) -> float:
    """Median error of the preset's curve on the rows of one format."""
    import numpy as np

    from meshplan.calibrate import gemm

    if curve is None:
        return math.nan
    _, peak, a_bytes, b_bytes, _ = gemm.FORMATS[rows["dtype"][0]]
    m, n, k, measured = (rows[c].cast(float).to_numpy() for c in ("m", "n", "k", "latency_us"))
    shapes = gemm.Shapes(m, n, k, a_bytes, b_bytes)
    found = gemm.predict(curve, shapes, peaks.flops[peak], peaks.memory_bytes_per_s, peaks.sms)
    return float(np.median(np.abs(found / (measured * 1e-6) - 1)))


def _finding(what: str, fit: Fit, before: float) -> Finding:
    return Finding(what, fit.rows, before, fit.held_out_median)


def _attention(profile: Profile, table: pl.DataFrame) -> None:
    from meshplan.calibrate import attention
    from meshplan.calibrate.presets import peaks_of

    device = _device(profile)
    if table.height < FEWEST_ROWS:
        profile.refused["attention"] = f"{table.height} rows, {FEWEST_ROWS} are needed"
        return
    for (kind, library, kv), fit in attention.fit_table(table, peaks_of(device)).items():
        known = device.get(kind, {}).get(library, {}).get(kv)
        curves = profile.changes["device"].setdefault(kind, dict(device.get(kind, {})))
        values = ({"fp8_ratio": 1.0} | fit.values) if kind.endswith("prefill") else fit.values
        curves[library] = {**curves.get(library, {}), kv: _rounded(values)}
        note = "" if known else ", no such curve in the preset"
        name = f"{kind}.{library}.{kv}"
        profile.findings.append(Finding(name, fit.rows, math.nan, fit.held_out_median, note))


def _fabrics(profile: Profile, logs: Sequence[str | Path]) -> None:
    import numpy as np

    from meshplan.calibrate import collectives
    from meshplan.collectives import span
    from meshplan.specs.reading import load_cluster
    from meshplan.validate import collectives as validated

    names = presets.names("clusters")
    rules = span.rules_of([profile.cluster], names)
    files = validated.files_of([_path(log) for log in logs])
    placed = [span.place(m, rules) for m in validated.read(files)]
    placed = [p for p in placed if p.ranks > 1 and p.measurement.size_bytes > 0]
    cluster = load_cluster(profile.cluster)
    wires = collectives.Wires(
        cluster.nvlink,
        cluster.nic * cluster.nics_per_node / cluster.gpus_per_node,
        cluster.in_switch_reduction,
    )
    fabrics = {"scale_up_fabric": cluster.scale_up_fabric}
    for key, across in (("scale_up_fabric", False), ("scale_out_fabric", True)):
        mine = [p for p in placed if (p.ranks > cluster.nvlink_domain) == across]
        if len(mine) < FEWEST_ROWS:
            profile.refused[key] = f"{len(mine)} measurements, {FEWEST_ROWS} are needed"
            continue
        domain = cluster.nvlink_domain
        rows = collectives.Rows(
            np.array([collectives.OPERATIONS.index(p.measurement.operation) for p in mine]),
            np.array([float(p.ranks) for p in mine]),
            np.array([max(1.0, math.ceil(p.ranks / domain)) for p in mine]),
            np.array([p.measurement.size_bytes for p in mine]),
        )
        measured = np.array([p.measurement.time_s for p in mine])
        inside, kept = dict(fabrics["scale_up_fabric"]), dict(getattr(cluster, key))
        if across:
            fit = collectives.fit_across(rows, measured, wires, inside)
            preset = collectives.predict_across(inside, kept, rows, wires)
        else:
            fit = collectives.fit_inside(rows, measured, wires)
            preset = collectives.predict_inside(kept, rows, wires)
        before = float(np.median(np.abs(preset / measured - 1)))
        if profile.accept(_finding(key, fit, before)):
            fabrics[key] = {**kept, **_rounded(fit.values)}
            profile.changes[key] = fabrics[key]


def _path(log: str | Path) -> Path:
    from pathlib import Path

    return Path(log)


def _runs(profile: Profile, runs: str | Path, models: str | Path) -> None:
    import numpy as np

    from meshplan.calibrate.training import Problem
    from meshplan.validate import predict
    from meshplan.validate import runs as recorded

    rows = recorded.read_rows(runs)
    batch = predict.Batch.of(rows, predict.load_models(rows, models), profile.cluster)
    if not batch.runs:
        reason = next((str(error) for _, error in batch.failed), "no rows")
        raise InputError(f"holds no run that can be predicted: {reason}", where=str(runs))
    for row, error in batch.failed:
        profile.refused[f"run {row['run_id']}"] = str(error)
    everyone = range(len(batch.runs))
    free = _free(batch, _of_cluster(profile.cluster, batch))
    whole = Problem(batch, boost=list(everyone), parameters=free)
    if not whole.seen:
        raise InputError("holds neither step times nor memory", where=str(runs))
    before = float(np.median(np.abs(np.expm1(whole.logs(whole.start())))))
    first = whole.solve(max_steps=12)
    spreads = np.log([p.spread for p in free])
    known = [p for p, s, w in zip(free, first.sigmas, spreads, strict=True) if s < IDENTIFIED * w]
    for p in free:
        if p not in known:
            profile.refused[p.name] = "the runs do not identify it"
    if not known:
        profile.refused["runs"] = "they identify no parameter"
        return
    fit = Problem(batch, boost=list(everyone), parameters=known).solve(max_steps=12)
    after = _left_one_out(batch, known)
    values = dict(zip(fit.names, fit.values, strict=True))
    _store(profile, known, values, batch)
    names = ", ".join(f"{p.name} = {values[p.name]:.4g} {p.unit}".rstrip() for p in known)
    profile.findings.append(Finding("runs", len(batch.runs), before, after, f"; {names}"))


def _of_cluster(cluster: str, batch: Batch) -> list[Parameter]:
    """Fitted parameters of the presets, and training ratios of this cluster's own fabrics."""
    table = presets.raw("clusters", cluster, (), {})
    found = list(overlay.parameters())
    targets = {target for p in found for target in p.targets}
    for key in ("scale_up_fabric", "scale_out_fabric"):
        target = f"fabrics.{table[key]}.training_ratio"
        if target not in targets:
            value = presets.raw("fabrics", table[key], (), {}).get("training_ratio", 1.0)
            name = f"{table[key]}.training_ratio"
            found.append(overlay.Parameter(name, (target,), "1", value, 1.6, value, 0.0, 0))
    return found


def _free(batch: Batch, parameters: list[Parameter]) -> list[Parameter]:
    """Parameters that these runs can move, believed to be what the presets say."""
    from dataclasses import replace

    from meshplan.calibrate.training import Problem

    problem = Problem(batch, parameters=parameters)
    moved = problem.moved
    return [replace(p, prior=p.value) for p, m in zip(parameters, moved, strict=True) if m]


def _left_one_out(batch: Batch, parameters: list[Parameter], most: int = 12) -> float:
    """Median error of runs that the fit has not seen; NaN with a single run."""
    import numpy as np

    from meshplan.calibrate.crossval import spread
    from meshplan.calibrate.training import Problem

    everyone = list(range(len(batch.runs)))
    if len(everyone) < 2:
        return math.nan
    errors: list[float] = []
    for out in spread(everyone, most):
        rest = [i for i in everyone if i != out]
        fit = Problem(batch, rest, boost=rest, parameters=parameters).solve(max_steps=6)
        theta: Array = np.log(fit.values)
        alone = Problem(batch, [out], parameters=parameters)
        errors += [abs(math.expm1(e)) for e in alone.logs(theta)]
    return float(np.median(errors))


def _store(
    profile: Profile, parameters: list[Parameter], values: dict[str, float], batch: Batch
) -> None:
    """Put fitted values where a cluster file holds them."""
    table = presets.raw("clusters", profile.cluster, (), {})
    device = _device(profile)
    for p in parameters:
        value = float(f"{values[p.name]:.4g}")
        for target in p.targets:
            kind, name, *path = target.split(".")
            if kind == "devices" and name == table["device"]:
                training = profile.changes["device"].setdefault(
                    "training", dict(device["training"])
                )
                overlay.assign({"training": training}, path, value)
            for key in ("scale_up_fabric", "scale_out_fabric"):
                if kind == "fabrics" and name == table[key]:
                    fabric = profile.changes.setdefault(key, _fabric(table[key]))
                    fabric[path[0]] = value
            if kind == "software":
                _store_software(profile, name, path, value, batch)


def _store_software(
    profile: Profile, name: str, path: list[str], value: float, batch: Batch
) -> None:
    tables = software.raw_tables()
    for generation in batch.softwares:
        if name in software.ancestry(generation, tables):
            costs = profile.changes.setdefault("software", {}).setdefault(generation, {})
            if len(path) > 1:
                known = software.resolve(generation, software.tables()).costs[path[0]]
                costs.setdefault(path[0], list(known))
            overlay.assign(costs, path, value)


def _fabric(name: str) -> dict[str, Any]:
    fabric = presets.raw("fabrics", name, (), {})
    return {k: v for k, v in fabric.items() if k not in ("source", "date", "fit")}
