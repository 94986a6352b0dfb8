"""From files and flags to a validated plan, with every problem reported where it was written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from meshplan.errors import InputError
from meshplan.specs import presets
from meshplan.specs.base import Spec, build, problem_at, suggest
from meshplan.specs.cluster import Cluster
from meshplan.specs.conflicts import conflicts
from meshplan.specs.plan import DEFAULT_CLUSTER, Plan
from meshplan.specs.software import NEWEST, load_software
from meshplan.specs.software import names as software_names
from meshplan.specs.toml import Path, TomlSyntaxError, parse

MAX_BYTES = 1 << 20
"""Largest TOML file that is read."""


@dataclass
class Draft:
    """Raw values of a plan and where each came from."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)

    def put(self, path: Path, value: Any, origin: str = "") -> None:
        """Set a value, making the tables above it."""
        table = self.data
        for part in path[:-1]:
            inner = table.get(str(part))
            table[str(part)] = dict(inner) if isinstance(inner, dict) else {}
            table = table[str(part)]
        table[str(path[-1])] = value
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]
        if origin:
            self.origins[path] = origin


def read_toml(path: str | os.PathLike[str]) -> Draft:
    """Values of a TOML file with ``file:line:column`` for each.

    Raises
    ------
    InputError
        When the file cannot be read or is not TOML.
    """
    name = os.fspath(path)
    try:
        with FilePath(name).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        rule = f"cannot be read: {reason.lower()}"
        raise InputError(rule, where=name, hint="check the path") from None
    if len(raw) > MAX_BYTES:
        raise InputError("is larger than 1 MiB", where=name, hint="is it the right file?")
    try:
        data, places = parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", where=name, hint="is it a TOML file?") from None
    except TomlSyntaxError as error:
        where = name if error.place is None else f"{name}:{error.place[0]}:{error.place[1]}"
        message = str(error)
        rule = "is not TOML: " + message[:1].lower() + message[1:]
        raise InputError(rule, where=where, hint='write key = "value" under [tables]') from None
    origins: dict[Path, str] = {(): name}
    origins |= {p: f"{name}:{line}:{column}" for p, (line, column) in places.items()}
    return Draft(data, origins)


def draft_of(
    config: str | os.PathLike[str] | None,
    given: Mapping[Path, tuple[Any, str]] | None,
    axes: Mapping[str, Any] | None,
) -> Draft:
    """Draft of a plan: its file, then what is given over it, then axes that neither mentions.

    The cluster is read, and files that the plan names are looked for beside it.
    """
    draft = Draft() if config is None else read_toml(config)
    if config is not None:
        relative_to(draft, FilePath(config).parent)
    draft.data.setdefault("workload", {})
    for path, (value, origin) in (given or {}).items():
        draft.put(path, value, origin)
    if isinstance(draft.data.get("space", {}), dict):
        draft.data["space"] = {**(axes or {}), **draft.data.get("space", {})}
    read_cluster(draft)
    return draft


def read_plan(
    config: str | os.PathLike[str] | None = None,
    given: Mapping[Path, tuple[Any, str]] | None = None,
    axes: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan from a file and from flags or arguments, which override the file.

    Parameters
    ----------
    config
        Path of a ``plan.toml``.
    given
        Path of a value → the value and its origin (a flag such as ``--tp``).
    axes
        Values of axes that neither the file nor `given` mentions.

    Raises
    ------
    InputError
        With every problem of the plan.
    """
    draft = draft_of(config, given, axes)
    _generation(draft)
    plan = build(Plan, draft.data, draft.origins)
    plan.origins.update(draft.origins)
    problems = [problem_at(c.path, c.value, c.rule, c.hint, draft.origins) for c in conflicts(plan)]
    if problems:
        raise InputError.all_of(problems)
    return plan


def relative_to(draft: Draft, folder: FilePath) -> None:
    """Files named in a plan are looked for beside it."""
    for key in ("model", "cluster", "serving_params"):
        value = draft.data.get(key)
        if isinstance(value, str) and len(value) < 4096 and "\0" not in value:
            beside = folder / value
            if ("/" in value or value.endswith((".toml", ".json"))) and beside.exists():
                draft.data[key] = str(beside)


def _generation(draft: Draft) -> None:
    """Lay the workload over the defaults of the framework generation."""
    framework = str(draft.data.get("framework", "generic"))
    version = draft.data.get("framework_version")
    given = draft.data.get("workload", {})
    if framework not in NEWEST or not isinstance(given, dict):
        return
    if version is not None and version not in software_names():
        rule, hint = "is not a known generation", suggest(str(version), software_names())
        problem = problem_at(("framework_version",), version, rule, hint, draft.origins)
        raise InputError.all_of([problem])
    defaults = load_software(framework, version).workload
    overlap = given.get("overlap", {})
    if isinstance(overlap, dict):
        overlap = {**defaults.get("overlap", {}), **overlap}
    draft.data["workload"] = {**defaults, **given, "overlap": overlap}


def read_cluster(draft: Draft) -> None:
    """Replace a cluster's name or path by its description, presets put in."""
    reference = draft.data.get("cluster", DEFAULT_CLUSTER)
    if isinstance(reference, Spec):
        return
    if isinstance(reference, str) and is_path(reference):
        inner = read_toml(reference)
        skip = 1 if isinstance(inner.data.get("cluster"), dict) else 0
        reference = inner.data["cluster"] if skip else inner.data
        for path, origin in inner.origins.items():
            if not skip or path[:1] == ("cluster",) or not path:
                draft.origins["cluster", *path[skip:]] = origin
    draft.data["cluster"] = presets.expand(reference, ("cluster",), draft.origins)


def is_path(reference: str) -> bool:
    """Whether a reference is a file rather than the name of a preset."""
    return reference.endswith(".toml") or "/" in reference or os.sep in reference


def load_cluster(reference: str | Mapping[str, Any] | Cluster) -> Cluster:
    """Cluster from the name of a preset, the path of a TOML file or a description.

    Raises
    ------
    InputError
        With every problem of the description.
    """
    if isinstance(reference, Cluster):
        return reference
    draft = Draft({"cluster": dict(reference) if isinstance(reference, Mapping) else reference})
    read_cluster(draft)
    description = draft.data["cluster"]
    if not isinstance(description, dict):
        rule, hint = "must be a name, a path or a table", suggest("", presets.names())
        raise InputError.all_of([problem_at(("cluster",), description, rule, hint)])
    origins = {path[1:]: origin for path, origin in draft.origins.items()}
    return build(Cluster, description, origins)
