"""Rows of counts out of CSV, Parquet and JSON files."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError, Problem
from meshplan.moe.tokens import choices_column, count_tokens

if TYPE_CHECKING:
    import polars as pl

MAX_BYTES = 1 << 30
"""Larger files are refused."""
MAX_CELLS = 50_000_000
"""Larger matrices are refused."""

_EXPERT = re.compile(r"^(?:e|expert|expert_|e_)?(\d+)$")
_NUMBERED = re.compile(r"^(\D*)(\d+)$")
_LONG = {"layer", "expert"}
_SYNONYMS = {
    **dict.fromkeys(("layer_id", "layer_idx", "layer_index"), "layer"),
    **dict.fromkeys(("expert_id", "expert_idx", "expert_index"), "expert"),
}
_VALUES = ("count", "load", "tokens")
_KEYS = ("loads", "logical_count", "counts", "load", "layers", "weight", "matrix")
_TOTALS = {"total_assignments", "total", "tokens"}


@dataclass(frozen=True)
class Row:
    """One layer of one snapshot."""

    counts: list[float]
    labels: dict[str, str] = field(default_factory=dict)
    layer: int | None = None
    line: int = 0
    words: dict[int, str] = field(default_factory=dict)
    """What stands where the count of an expert is due and is no number."""

    @property
    def snapshot(self) -> str:
        """Labels apart from totals, as a name."""
        return " ".join(v for k, v in self.labels.items() if k not in _TOTALS) or "all"


@dataclass(frozen=True)
class Table:
    """Rows and the labels that they carry."""

    rows: list[Row]
    labels: list[str]
    top_k: int | None = None
    """Experts per token, where single tokens were recorded."""
    problems: list[Problem] = field(default_factory=list)
    """Rows that could not be read."""


def read_table(path: str | Path) -> Table:
    """Read rows of counts.

    Raises
    ------
    InputError
        The file is absent, too large, of another kind, or has no counts in it.
    """
    file = Path(path)
    if not file.is_file():
        rule = "is a folder, not a file" if file.is_dir() else "no such file"
        raise InputError(rule, field="loads", value=str(path))
    if file.stat().st_size > MAX_BYTES:
        raise InputError("larger than 1 GiB", field="loads", value=str(path))
    kind = file.suffix.lower()
    if kind == ".json":
        return _from_json(file)
    if kind in (".parquet", ".pq"):
        return _from_parquet(file)
    if kind in (".csv", ".tsv", ".txt"):
        return _from_csv(file, "\t" if kind == ".tsv" else ",")
    if kind in (".jsonl", ".ndjson"):
        return _from_lines(file)
    raise InputError(
        "not a kind of file that holds loads",
        field="loads",
        value=str(path),
        hint="CSV (.csv), Parquet (.parquet), JSON (.json) or JSON lines (.jsonl)",
    )


def _from_csv(file: Path, delimiter: str) -> Table:
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            cells = [
                (reader.line_num, row)
                for reader in (csv.reader(handle, delimiter=delimiter),)
                for row in reader
                if row and any(cell.strip() for cell in row)
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a CSV file: {error}", field="loads", value=str(file)) from error
    if not cells:
        raise InputError("the file is empty", field="loads", value=str(file))
    _limit(sum(len(row) for _, row in cells), file)
    head = [cell.strip() for cell in cells[0][1]]
    if _all_numbers(head) and not _is_numbering(head, cells):
        return Table([_counted(row, line) for line, row in cells], [])
    return _with_header(head, cells[1:], file)


def _all_numbers(cells: list[str]) -> bool:
    try:
        for cell in cells:
            float(cell)
    except ValueError:
        return False
    return True


def _is_numbering(head: list[str], cells: list[tuple[int, list[str]]]) -> bool:
    """Whether a first row of numbers is 0, 1, 2, … over the experts, and no layer."""
    return len(cells) > 1 and len(head) > 1 and head == [str(i) for i in range(len(head))]


def _from_parquet(file: Path) -> Table:
    import polars as pl

    try:
        frame = pl.read_parquet(file)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"not a Parquet file: {error}", field="loads", value=str(file)) from error
    return _from_frame(frame, file)


def _from_lines(file: Path) -> Table:
    import polars as pl

    try:
        frame = pl.read_ndjson(file, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(f"not JSON lines: {error}", field="loads", value=str(file)) from error
    return _from_frame(frame, file)


def _from_frame(frame: pl.DataFrame, file: Path) -> Table:
    """Rows of a frame: tokens, or counts."""
    _limit(frame.width * frame.height, file)
    names = [_SYNONYMS.get(n, n) for n in (name.strip().lower() for name in frame.columns)]
    if choices_column(names) and len(set(names)) == len(names):
        return _from_tokens(frame.rename(dict(zip(frame.columns, names, strict=True))), file)
    cells = [
        (i + 1, ["" if v is None else str(v) for v in row]) for i, row in enumerate(frame.rows())
    ]
    return _with_header(list(frame.columns), cells, file)


def _text_frame(names: list[str], cells: list[tuple[int, list[str]]], file: Path) -> pl.DataFrame:
    """Cells of a CSV file as a frame of text."""
    import polars as pl

    for line, cell in cells:
        if len(cell) != len(names):
            raise InputError(
                f"has {len(cell)} cells, the header has {len(names)}", where=f"{file}:{line}"
            )
    rows = [cell for _, cell in cells]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def _with_header(head: list[str], cells: list[tuple[int, list[str]]], file: Path) -> Table:
    names = [name.strip().lower() for name in head]
    names = [_SYNONYMS.get(name, name) for name in names]
    if choices_column(names) and len(set(names)) == len(names):
        return _from_tokens(_text_frame(names, cells, file), file)
    if set(names) >= _LONG and any(v in names for v in _VALUES):
        return _from_long(names, cells, file)
    experts = {i: int(m.group(1)) for i, n in enumerate(names) if (m := _EXPERT.match(n))}
    experts = experts or _numbered(names)
    if not experts:
        raise InputError(
            "no column of counts",
            field="loads",
            value=str(file),
            hint="name the columns e0, e1, …; or layer, expert, count",
        )
    if sorted(experts.values()) != list(range(len(experts))):
        raise InputError(
            f"the columns of counts are not e0 … e{len(experts) - 1}, each once",
            field="loads",
            value=str(file),
        )
    rows, problems = [], []
    at = {e: i for i, e in experts.items()}
    for line, cell in cells:
        where = f"{file}:{line}"
        if len(cell) != len(names):
            rule = f"has {len(cell)} cells, the header has {len(names)}"
            problems.append(Problem(rule, where=where))
            continue
        row = _counted([cell[at[e]] for e in range(len(experts))], line)
        labels = {n: cell[i] for i, n in enumerate(names) if i not in experts}
        try:
            layer = _layer(labels.pop("layer", None), file, line)
        except InputError as error:
            problems += error.problems
            continue
        rows.append(replace(row, labels=labels, layer=layer))
    labels_of_file = [n for i, n in enumerate(names) if i not in experts and n != "layer"]
    return Table(rows, labels_of_file, problems=problems)


def _counted(cells: list[str], line: int) -> Row:
    """Counts of a row; words among them are kept for the message."""
    counts, words = [], {}
    for e, cell in enumerate(cells):
        try:
            counts.append(float(cell))
        except ValueError:
            counts.append(math.nan)
            words[e] = cell[:40]
    return Row(counts, line=line, words=words)


def _from_tokens(frame: pl.DataFrame, file: Path) -> Table:
    """Loads out of the choices of single tokens."""
    counted, experts, top_k = count_tokens(frame, file)
    labels = [c for c in counted.columns if c not in ("layer", "expert", "count")]
    found: dict[tuple[Any, ...], list[float]] = {}
    for *key, expert, count in counted.select(*labels, "layer", "expert", "count").iter_rows():
        if tuple(key) not in found:
            _limit(experts * (len(found) + 1), file)
        found.setdefault(tuple(key), [0.0] * experts)[expert] += count
    rows = [
        Row(counts, {n: str(v) for n, v in zip(labels, key, strict=False)}, key[-1])
        for key, counts in found.items()
    ]
    return Table(sorted(rows, key=lambda row: row.layer or 0), labels, top_k)


def _numbered(names: list[str]) -> dict[int, int]:
    """Columns of one prefix, numbered 0, 1, 2, … or 1, 2, 3, …: column → expert."""
    prefixes: dict[str, dict[int, int]] = {}
    for i, name in enumerate(names):
        if (match := _NUMBERED.match(name)) is not None:
            prefixes.setdefault(match[1], {})[i] = int(match[2])
    found = max(prefixes.values(), key=len, default={})
    first = min(found.values(), default=0)
    return {i: n - first for i, n in found.items()} if first in (0, 1) and len(found) > 1 else {}


def _from_long(names: list[str], cells: list[tuple[int, list[str]]], file: Path) -> Table:
    """One row per layer and expert."""
    value = next(v for v in _VALUES if v in names)
    at = {name: i for i, name in enumerate(names)}
    others = [n for n in names if n not in (*_LONG, value)]
    found: dict[tuple[tuple[str, ...], int], dict[int, float]] = {}
    for line, cell in cells:
        if len(cell) != len(names):
            raise InputError(
                f"has {len(cell)} cells, the header has {len(names)}", where=f"{file}:{line}"
            )
        key = (tuple(cell[at[n]] for n in others), _layer(cell[at["layer"]], file, line) or 0)
        number = _number(cell[at["expert"]], file, line, "expert")
        if not 0 <= number < 1 << 20 or number != int(number):
            raise InputError(
                "not an expert's number",
                field="expert",
                value=f"{number:g}",
                where=f"{file}:{line}",
            )
        expert = int(number)
        counts = found.setdefault(key, {})
        counts[expert] = counts.get(expert, 0.0) + _number(cell[at[value]], file, line, value)
    width = 1 + max((max(counts) for counts in found.values()), default=-1)
    _limit(width * len(found), file)
    rows = [
        Row([c.get(e, 0.0) for e in range(width)], dict(zip(others, k, strict=True)), layer)
        for (k, layer), c in found.items()
    ]
    return Table(rows, others)


def _from_json(file: Path) -> Table:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", field="loads", value=str(file)) from error
    if isinstance(data, dict):
        key = next((k for k in _KEYS if k in data), None)
        if key is None:
            raise InputError(
                f"has none of the keys {', '.join(_KEYS)}", field="loads", value=str(file)
            )
        data = data[key]
    depth = _depth(data)
    if depth == 1:
        data, depth = [data], 2
    if depth == 2:
        return Table(_matrix(data, file, ""), [])
    if depth == 3:
        rows = [r for i, m in enumerate(data) for r in _matrix(m, file, f"snapshot {i}")]
        return Table(rows, ["snapshot"])
    raise InputError(
        "not a matrix (layers × experts), nor a list of matrices", field="loads", value=str(file)
    )


def _depth(data: Any) -> int:
    depth = 0
    while isinstance(data, list) and depth < 4:
        depth += 1
        data = data[0] if data else None
    return depth


def _matrix(data: Any, file: Path, name: str) -> list[Row]:
    rows = []
    for layer, row in enumerate(data):
        bad = not isinstance(row, list) or not row
        if bad or any(isinstance(x, bool) or not isinstance(x, int | float) for x in row):
            raise InputError("not a row of numbers", field=f"layer {layer}", where=str(file))
        labels = {"snapshot": name} if name else {}
        rows.append(Row([float(x) for x in row], labels, layer))
    _limit(sum(len(r.counts) for r in rows), file)
    return rows


def _number(text: str, file: Path, line: int, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            "not a number", field=name, value=text[:40], where=f"{file}:{line}"
        ) from None


def _layer(text: str | None, file: Path, line: int) -> int | None:
    if text is None:
        return None
    number = _number(text, file, line, "layer")
    if number != int(number) if abs(number) < 1e9 else True:
        raise InputError(
            "not a layer's number", field="layer", value=text[:40], where=f"{file}:{line}"
        )
    return int(number)


def _limit(cells: int, file: Path) -> None:
    if cells > MAX_CELLS:
        raise InputError(f"more than {MAX_CELLS:,} numbers", field="loads", value=str(file))
