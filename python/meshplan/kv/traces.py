"""Trace files: which format a file has, and Parquet turned into the generic CSV."""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from meshplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Format = Literal["mooncake", "azure", "tokens", "csv"]
"""Layout of a trace; see `docs/kv-traces.md`."""

_HEAD_BYTES = 1 << 20


def detect_format(path: Path) -> Format:
    """Tell the format of a trace from its first line.

    Parameters
    ----------
    path
        A trace, gzip or plain.

    Returns
    -------
    Format
        The format that the first line has.

    Raises
    ------
    InputError
        If the file cannot be read or its first line is of no known format.
    """
    line = _first_line(path)
    if line.startswith(b"{"):
        return "mooncake" if b'"hash_ids"' in line else "tokens"
    if line.startswith(b"TIMESTAMP,"):
        return "azure"
    if b"input_tokens" in line:
        return "csv"
    raise InputError(
        "the first line is of no known trace format",
        field="trace",
        value=str(path),
        hint=f"state it: --format {'|'.join(get_args(Format))}",
    )


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(reason, where=str(path)) from None
    if not head.strip():
        raise InputError("the file is empty: expected at least one request", where=f"{path}:1")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]


@contextmanager
def readable(path: Path, form: Format | None) -> Iterator[tuple[Path, Format]]:
    """Give a file that the core reads, and its format.

    Parquet (by its magic bytes) is written to a temporary CSV by a streaming query; columns are
    those of the generic CSV, ``block_ids`` may be a list.
    """
    if not _is_parquet(path):
        yield path, form or detect_format(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.csv"
        _write_csv(path, plain)
        yield plain, "csv"


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path)) from None


def _write_csv(path: Path, plain: Path) -> None:
    import polars as pl

    frame = pl.scan_parquet(path)
    schema = frame.collect_schema()
    ids = schema.get("block_ids")
    if isinstance(ids, pl.List):
        frame = frame.with_columns(pl.col("block_ids").cast(pl.List(pl.String)).list.join(" "))
    wanted = ["arrival_s", "arrival_ms", "timestamp", "input_tokens", "output_tokens"]
    wanted += ["request_id", "block_ids"]
    found = [name for name in wanted if name in schema]
    if not {"input_tokens", "output_tokens"} <= set(found):
        raise InputError(
            f"expected columns arrival_s, input_tokens, output_tokens; found {list(schema)}",
            where=str(path),
        )
    frame.select(found).sink_csv(plain)


def trace_options(
    form: Format,
    block_size: int,
    *,
    trace_block_size: int | None = None,
    skip_bad: int = 0,
    unordered: Literal["reject", "keep"] = "reject",
    regrid: bool = False,
) -> str:
    """Canonical JSON of the reader's options, checked."""
    for field, value, least in (
        ("block_size", block_size, 1),
        ("trace_block_size", trace_block_size, 1),
        ("skip_bad", skip_bad, 0),
    ):
        if value is not None and not least <= value <= 1 << 31:
            rule = f"must be between {least} and 2^31"
            raise InputError(rule, field=field, value=str(value))
    return json.dumps(
        {
            "format": form,
            "block_tokens": block_size,
            "trace_block_tokens": trace_block_size,
            "skip_bad": skip_bad,
            "unordered": unordered,
            "regrid": regrid,
        }
    )
