"""Dispatch and combine against measured times: quantiles of the error."""

from __future__ import annotations

import polars as pl
import pytest

from conftest import shared
from meshplan.moe import dispatch, dispatch_question

SHAPE = ("node_num", "hidden_size", "topk", "num_experts", "tokens")


def errors(backend: str, kernel: str) -> pl.DataFrame:
    """Prediction over measurement, less 1, of every row that the fit speaks of."""
    table = pl.read_csv(shared("truth/kernels/moe_a2a_measured.csv"), infer_schema_length=None)
    rows = table.filter(
        pl.col("note").is_null()
        & pl.col("system").is_in(["h100_sxm", "h200_sxm"])
        & pl.col("fw").str.starts_with("sglang")
        & (pl.col("backend") == backend)
        & pl.col("sms").is_null().or_(pl.col("sms") == 20)
        & (pl.col("hidden_size") >= 4096)
        & (pl.col("tokens") <= 16384)
        & (pl.col("num_experts") % (8 * pl.col("node_num")) == 0)
        & ~((pl.col("backend") == "deepep_normal") & (pl.col("node_num") == 8))
    )
    found = []
    for shape, same in rows.group_by(SHAPE, maintain_order=True):
        nodes, hidden, top_k, experts, tokens = (int(x) for x in shape)
        answer = dispatch(
            dispatch_question(
                routing={"kind": "uniform"},
                experts=experts,
                top_k=top_k,
                ranks=8 * nodes,
                nodes=nodes,
                tokens=tokens,
                hidden=hidden,
                kernel=kernel,
                nvlink_bytes_per_s=450e9,
                nic_bytes_per_s=50e9,
                trials=8,
                fit="hopper",
            )
        )
        for row in same.iter_rows(named=True):
            error = answer[row["phase"]]["time_s"] * 1e6 / row["latency_us"] - 1
            found.append({"phase": row["phase"], "error": error})
    return pl.DataFrame(found)


@pytest.mark.parametrize(
    ("backend", "kernel", "rows", "median", "ninth"),
    [
        ("deepep_ll", "low_latency", 700, 0.10, 0.35),
        ("deepep_normal", "normal", 1200, 0.10, 0.20),
    ],
)
def test_hopper_fit(backend: str, kernel: str, rows: int, median: float, ninth: float) -> None:
    found = errors(backend, kernel)
    assert found.height >= rows
    for (phase,), part in found.group_by("phase", maintain_order=True):
        off = part["error"].abs()
        told = f"{backend} {phase}: {part.height} rows, median {off.median()}, {off.quantile(0.9)}"
        assert float(off.median()) < median, told  # type: ignore[arg-type]
        assert float(off.quantile(0.9)) < ninth, told  # type: ignore[arg-type]
        assert abs(float(part["error"].median())) < 0.06, told  # type: ignore[arg-type]
