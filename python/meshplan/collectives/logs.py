"""Read the output of nccl-tests and RCCL-tests as people paste it.

Text of every vintage: with and without ``redop`` and ``root`` columns, ``error`` or ``#wrong`` or
``N/A``, prefixes of mpirun and of schedulers, Markdown fences, columns added by hand, tables cut to
four columns with underscored sizes, missing headers, lines left out. JSON as ``-J`` writes it.

A line that looks like data and does not hold what its header promises is an error with its place;
everything else that is not data is passed over.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.collectives.measurement import MOST_RANKS, OPERATIONS, Measurement, ranks_of
from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 50_000_000
"""Bytes of the largest log that is read."""

_PREFIX = re.compile(
    r"^\s*(?:\[\d+(?:,\d+)?\]\s*<std(?:out|err)>:?|\[\d+\]:?|\d+:|\d{4}-\d\d-\d\dT\S+|[\w.-]+-\d+:)\s?"
)
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_TYPES = frozenset(
    (
        *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
        *("half", "float", "float16", "float32", "double", "bfloat16"),
        *("fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "float8_e4m3", "float8_e5m2"),
    )
)
_REDUCTIONS = frozenset(["sum", "prod", "max", "min", "avg", "mulsum", "all", "none"])
_PERF = re.compile(r"\b(\w+?)_perf\b")
_THREADS = re.compile(r"nThread\s+(\d+)\s+nGpus\s+(\d+)")


@dataclass(slots=True)
class _State:
    """What the lines so far say of the run."""

    operation: str
    header: list[str] = field(default_factory=list)
    ranks: set[tuple[int, int]] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    gpu: str = ""
    repeated: bool = False


def read(path: str | Path) -> list[Measurement]:
    """Read one log.

    Raises
    ------
    InputError
        With every bad line: its place, what was found and what was expected.
    """
    path = Path(path)
    text = read_text(path)
    if text.lstrip()[:1] == "{":
        return _json(text, path)
    problems: list[Problem] = []
    found = list(_lines(text, path, problems))
    if problems:
        raise InputError.all_of(problems)
    return with_ranks(found)


def read_text(path: Path) -> str:
    """Text of a file of bounded size.

    Raises
    ------
    InputError
        When it is missing, unreadable or too large.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(
                f"is larger than {LARGEST // 1_000_000} MB", field="log", value=str(path)
            )
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InputError(reason.lower(), field="log", value=str(path)) from error


def _operation_of_name(name: str) -> str:
    """Operation that a file name tells, longest spelling first."""
    lowered = name.lower().replace("-", "_")
    for spelling in sorted(OPERATIONS, key=len, reverse=True):
        if spelling in lowered:
            return OPERATIONS[spelling]
    return ""


def _lines(text: str, path: Path, problems: list[Problem]) -> Iterator[Measurement]:
    state = _State(_operation_of_name(path.stem))
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw
        while match := _PREFIX.match(line):
            line = line[match.end() :]
        tokens = line.split()
        if not tokens:
            continue
        if _notice(line, tokens, state):
            continue
        row = _row(tokens, state)
        if isinstance(row, str):
            problems.append(Problem(row, "line", raw.strip()[:80], where=f"{path}:{number}"))
        elif row is not None:
            size, time_us, algorithm, bus = row
            ranks, nodes = _counts(state)
            if size > 0 and time_us > 0:
                yield Measurement(
                    operation=state.operation,
                    size_bytes=size,
                    time_s=time_us * 1e-6,
                    bus_bytes_per_s=bus * 1e9,
                    ranks=ranks or ranks_of(state.operation, bus, algorithm),
                    nodes=nodes,
                    gpu=state.gpu,
                    where=f"{path}:{number}",
                )


def _counts(state: _State) -> tuple[int, int]:
    """Ranks and hosts that the header lists; a list cut to a few ranks tells the highest only."""
    if not state.ranks or state.repeated:
        return 0, 0
    ranks = max(rank for _, rank in state.ranks) + 1
    whole = len(state.ranks) == ranks
    return ranks, len(state.hosts) if whole else 0


def _notice(line: str, tokens: list[str], state: _State) -> bool:
    """Take what a line that is not data tells; true where it is not data."""
    if match := _RANK.search(line):
        key = (int(match[2] or 0), int(match[1]))
        state.repeated = state.repeated or (key in state.ranks)
        state.ranks.add(key)
        state.hosts.add(match[3])
        state.gpu = match[4].strip() or state.gpu
        return True
    if match := _PERF.search(line):
        state.operation = OPERATIONS.get(match[1].lower(), state.operation)
    names = [t.lstrip("#") for t in tokens if t != "#"]
    if "size" in names and "time" in names and "algbw" in names:
        state.header = names
        return True
    return tokens[0].startswith("#")


def _number(token: str) -> float | None:
    """A number, ``nan`` for N/A, or nothing."""
    if token in ("N/A", "-"):
        return float("nan")
    try:
        return float(token.replace("_", ""))
    except ValueError:
        return None


def _row(tokens: list[str], state: _State) -> tuple[float, float, float, float] | str | None:
    """Size, time (µs), algorithm and bus bandwidth (GB/s) of a data line; text where it is bad."""
    kind = next((i for i, t in enumerate(tokens) if t.lower() in _TYPES), None)
    if kind is None or kind < 2:
        return _short_row(tokens, state)
    size, count = _number(tokens[kind - 2]), _number(tokens[kind - 1])
    if size is None or count is None or not (size == size and 0 <= size < 1e18):
        return None
    rest = tokens[kind + 1 :]
    if rest and rest[0].lower() in _REDUCTIONS:
        rest = rest[1:]
    values = [_number(t) for t in rest]
    has_root = "root" in state.header if state.header else len(values) % 2 == 1
    if has_root and values:
        values = values[1:]
    if len(values) < 3:
        return "must have a time and two bandwidths after the type"
    if any(v is None for v in values[:3]):
        return "must have numbers for time, algbw and busbw"
    expected = _expected(state.header)
    if len(values) not in expected:
        wanted = " or ".join(map(str, expected))
        return f"must have {wanted} numbers after the type, has {len(values)}: cut short?"
    return _choose(size, [v if v is not None else float("nan") for v in values], state)


def _expected(header: list[str]) -> tuple[int, ...]:
    """Numbers after the reduction and root that the header promises."""
    if not header:
        return (3, 4, 6, 8)
    after = header[header.index("time") :]
    return (sum(name != "timestamp" for name in after), len(after))


def _choose(
    size: float, values: list[float], state: _State
) -> tuple[float, float, float, float] | str:
    """Out-of-place figures, or in-place ones where those are N/A."""
    if not state.operation:
        return "must follow a line that names the test, such as 'all_reduce_perf'"
    width = len(values) // 2 if len(values) >= 6 else len(values)
    for start in (0, width):
        part = values[start : start + 3]
        if len(part) == 3 and all(v == v and v >= 0 for v in part):
            return size, part[0], part[1], part[2]
    return "must have one set of time, algbw and busbw that is not N/A"


def _short_row(tokens: list[str], state: _State) -> tuple[float, float, float, float] | str | None:
    """A line of a table cut down to the columns ``size time algbw busbw``."""
    if not state.header or "type" in state.header or len(tokens) != len(state.header):
        return None
    values = [_number(t) for t in tokens]
    if any(v is None for v in values):
        return None
    row = dict(zip(state.header, (v for v in values if v is not None), strict=True))
    if not state.operation:
        return "must follow a line that names the test, such as 'all_reduce_perf -b 8'"
    return row["size"], row["time"], row["algbw"], row.get("busbw", float("nan"))


def with_ranks(found: list[Measurement]) -> list[Measurement]:
    """Give lines that cannot tell their ranks those of the other lines, where these agree."""
    from dataclasses import replace

    counts = [m.ranks for m in found if m.ranks]
    if not counts:
        return found
    usual = max(set(counts), key=counts.count)
    sure = counts.count(usual) > len(counts) // 2
    return [replace(m, ranks=usual) if sure and not m.ranks else m for m in found]


def _json(text: str, path: Path) -> list[Measurement]:
    """Measurements of a file that ``-J`` wrote."""
    try:
        document = json.loads(text)
        results = list(document["results"])
        devices = document.get("config", {}).get("devices") or document.get("devices") or []
        operation = _operation_of_name(f"{(document.get('args') or [''])[0]} {path.stem}")
        ranks = min(MOST_RANKS, 1 + max((int(d.get("rank", 0)) for d in devices), default=-1))
        hosts = {str(d.get("hostname", "")) for d in devices}
        gpu = str(devices[0].get("device_info", "")).strip() if devices else ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        rule = "must be JSON as nccl-tests -J writes it, with 'results'"
        raise InputError(rule, field="log", value=str(path)) from error
    found = []
    for index, result in enumerate(results):
        body = _json_body(result)
        if body is None or not operation:
            rule = "must have out_of_place or in_place with time, alg_bw and bus_bw"
            raise InputError(rule, field=f"results[{index}]", where=str(path))
        size, time_us, algorithm, bus = body
        if size > 0 and time_us > 0:
            found.append(
                Measurement(
                    operation,
                    size,
                    time_us * 1e-6,
                    bus * 1e9,
                    ranks or ranks_of(operation, bus, algorithm),
                    len(hosts),
                    gpu,
                    f"{path}:results[{index}]",
                )
            )
    return with_ranks(found)


def _json_body(result: Any) -> tuple[float, float, float, float] | None:
    """Size, time (µs), algorithm and bus bandwidth (GB/s) of one JSON result."""
    if not isinstance(result, dict):
        return None
    for place in ("out_of_place", "in_place"):
        part = result.get(place)
        if not isinstance(part, dict):
            continue
        time = part.get("time", part.get("cpu_time"))
        try:
            return (
                float(result["size"]),
                float(time),  # type: ignore[arg-type]
                float(part["alg_bw"]),
                float(part["bus_bw"]),
            )
        except (KeyError, TypeError, ValueError):
            continue
    return None
