"""Files of results, written beside their final name and renamed: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import polars as pl

ROWS_PER_GROUP = 1 << 18
"""Rows of a Parquet row group: large enough to compress, small enough to hold in memory."""


def _sink_parquet(frames: pl.LazyFrame, path: Path) -> None:
    frames.sink_parquet(
        path, compression="zstd", compression_level=1, row_group_size=ROWS_PER_GROUP
    )


def _sink_csv(frames: pl.LazyFrame, path: Path) -> None:
    frames.sink_csv(path)


def _sink_arrow(frames: pl.LazyFrame, path: Path) -> None:
    frames.sink_ipc(path)


WRITERS: dict[str, Callable[[pl.LazyFrame, Path], None]] = {
    ".parquet": _sink_parquet,
    ".csv": _sink_csv,
    ".arrow": _sink_arrow,
}
"""Writer of each kind of file."""


def check(path: str | os.PathLike[str], *, field: str = "--output") -> Path:
    """Refuse, before any work is done, a file that could not be written.

    Raises
    ------
    InputError
        When the ending is unknown, or the folder is missing or cannot be written to.
    """
    target = Path(path)

    def refuse(rule: str, hint: str) -> InputError:
        return InputError(rule, field=field, value=f'"{path}"', hint=hint)

    if target.suffix not in WRITERS:
        raise refuse("must end in " + ", ".join(WRITERS), "choose one of these kinds of file")
    try:
        if not target.parent.is_dir():
            raise refuse(
                f'the folder "{target.parent}" does not exist', f"mkdir -p {target.parent}"
            )
        if target.is_dir():
            raise refuse("is a folder", "name a file in it")
    except (OSError, ValueError) as error:
        raise refuse(_reason(error), "choose another path") from None
    try:
        with _beside(target):
            pass
    except OSError as error:
        raise refuse(
            f'the folder "{target.parent}" cannot be written to: {_reason(error)}',
            "choose another folder",
        ) from None
    return target


def write(batches: Iterable[Any], path: str | os.PathLike[str], *, field: str = "--output") -> int:
    """Write batches of rows to a file, one batch in memory at a time.

    Parameters
    ----------
    batches
        Frames with ``__arrow_c_stream__``, all with the same columns; at least one.
    path
        File to write; its ending chooses the format.
    field
        What an error calls the path.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    InputError
        When the file cannot be written; nothing is left behind.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    target = check(path, field=field)
    rest = iter(batches)
    first = pl.DataFrame(next(rest))
    rows = 0

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        nonlocal rows
        frame = first
        while True:
            rows += frame.height
            yield frame if with_columns is None else frame.select(with_columns)
            following = next(rest, None)
            if following is None:
                return
            frame = pl.DataFrame(following)

    try:
        with _beside(target) as temporary:
            WRITERS[target.suffix](register_io_source(read, schema=first.schema), temporary)
            temporary.replace(target)
    except (OSError, pl.exceptions.ComputeError) as error:
        raise InputError(
            f"cannot be written: {_reason(error)}",
            field=field,
            value=f'"{path}"',
            hint="free some space or choose another folder",
        ) from None
    return rows


def write_text(path: str | os.PathLike[str], text: str, *, field: str) -> None:
    """Write a small text file, whole or not at all.

    Raises
    ------
    InputError
        When it cannot be written; nothing is left behind.
    """
    target = Path(path)
    try:
        with _beside(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(target)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be written: {_reason(error)}",
            field=field,
            value=f'"{path}"',
            hint="choose another folder",
        ) from None


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Make a temporary file in the folder of the target, and remove it unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        temporary.chmod(0o666 & ~_umask())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
