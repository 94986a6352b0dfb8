"""Records of single tokens: which experts each of them chose, counted into loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

CHOICES = ("experts", "topk_ids", "expert_ids", "topk_idx")
"""Names of the column that holds a token's experts."""
NOT_LABELS = frozenset(
    {"token", "token_id", "position", "pos", "request", "request_id", "weights", "topk_weights"}
    | {"expert", "count", "#", *CHOICES}
)
"""Columns of a token that name no snapshot."""
MAX_EXPERTS = 1 << 16
MAX_GROUPS = 100_000


def choices_column(names: list[str]) -> str | None:
    """Column with the experts of a token, if the file records tokens."""
    return next((name for name in CHOICES if name in names), None)


def count_tokens(frame: pl.DataFrame, file: Path) -> tuple[pl.DataFrame, int, int]:
    """Count the tokens of each layer and snapshot on every expert.

    Parameters
    ----------
    frame
        One row per token and layer: a column of `CHOICES` (a list of experts, or text such as
        ``3 17 40``), perhaps ``layer`` and ``num_experts``; other columns are labels.
    file
        For messages.

    Returns
    -------
    tuple
        A frame of labels, ``layer``, ``expert`` and ``count``; the number of experts; and k.
    """
    import polars as pl

    name = choices_column(frame.columns)
    if name is None or frame.height == 0:
        raise InputError("records no token", field="loads", value=str(file))
    tokens = frame.drop("#", strict=False).with_row_index("#")
    tokens = tokens.with_columns(_as_lists(frame.schema[name], name, file))
    top_k = _check_choices(tokens, name, file)
    if "layer" not in tokens.columns:
        tokens = tokens.with_columns(layer=pl.lit(0))
    labels = [
        c for c in frame.columns if c not in {name, "layer", "num_experts"} and c not in NOT_LABELS
    ]
    layer = pl.col("layer").cast(pl.Int64, strict=False)
    counted = (
        tokens.select([*labels, layer, pl.col(name).alias("expert")])
        .explode("expert")
        .group_by([*labels, "layer", "expert"], maintain_order=True)
        .len("count")
    )
    if counted["layer"].null_count():
        raise InputError("not a layer's number", field="layer", where=str(file))
    if counted.select([*labels, "layer"]).n_unique() > MAX_GROUPS:
        raise InputError(
            f"more than {MAX_GROUPS:,} layers and snapshots",
            field="loads",
            value=str(file),
            hint=f"columns {', '.join(labels)} are read as labels of snapshots; drop those that "
            "differ from token to token",
        )
    return counted, _experts(frame, counted, file), top_k


def _as_lists(dtype: pl.DataType, name: str, file: Path) -> pl.Expr:
    """Lists of numbers out of lists or text."""
    import polars as pl

    column = pl.col(name)
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype
    if inner.is_nested():
        raise InputError(
            "not a list of whole numbers", field=name, value=str(dtype)[:60], where=str(file)
        )
    if dtype == pl.String:
        parts = column.str.strip_chars(" []()").str.replace_all(r"[\s;,]+", " ").str.split(" ")
        return parts.cast(pl.List(pl.Int64), strict=False)
    if isinstance(dtype, pl.List | pl.Array):
        return column.cast(pl.List(pl.Int64), strict=False)
    return pl.concat_list(column.cast(pl.Int64, strict=False)).alias(name)


def _check_choices(tokens: pl.DataFrame, name: str, file: Path) -> int:
    """Every token chose the same number of different experts; returns it."""
    import polars as pl

    chosen = pl.col(name).list
    length = tokens[name].list.len()
    top_k = int(length[0] or 0)
    bad = tokens.filter(
        pl.col(name).is_null()
        | (chosen.len() != top_k)
        | (chosen.len() == 0)
        | chosen.eval(pl.element().is_null()).list.any()
        | (chosen.min() < 0)
        | (chosen.max() >= MAX_EXPERTS)
        | (chosen.n_unique() != chosen.len())
    )
    if bad.height:
        row = bad.row(0, named=True)
        raise InputError(
            f"{bad.height:,} tokens do not choose {top_k or 'any'} different experts "
            f"below {MAX_EXPERTS:,}, as whole numbers",
            field=name,
            value=str(row[name])[:60],
            where=f"{file}: record {row['#'] + 1}",
            hint="drop padding and masked tokens; a token chooses an expert at most once",
        )
    return top_k


def _experts(frame: pl.DataFrame, counted: pl.DataFrame, file: Path) -> int:
    """Experts of a layer: as stated in ``num_experts``, else one more than the highest chosen."""
    import polars as pl

    chosen = int(counted["expert"].max()) + 1  # type: ignore[arg-type]
    if "num_experts" not in frame.columns:
        return chosen
    stated = frame["num_experts"].cast(pl.Int64, strict=False).unique().to_list()
    if len(stated) != 1 or stated[0] is None or not chosen <= stated[0] <= MAX_EXPERTS:
        raise InputError(
            f"is one whole number from {chosen} (the highest choice is {chosen - 1}) to "
            f"{MAX_EXPERTS:,}",
            field="num_experts",
            value=str(stated[0] if stated else None),
            where=str(file),
        )
    return int(stated[0])
