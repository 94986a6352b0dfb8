"""``planner validate collectives`` and ``kernels``, and the bars on published measurements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from meshplan.errors import InputError
from meshplan.validate import collectives, kernels

from ..conftest import shared

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
op,size_bytes,gpus,nodes,gpu,busbw,algbw
all_reduce,8589934592,8,1,H100,480.2,274.4
all_reduce,8589934592,16,2,H100,467.5,249.3
all_gather,17179869184,8,1,H200,361.4,
all_to_all,8589934592,8,1,MI355X,360.7,412.2
all_reduce,8589934592,8,1,abacus,1.0,0.6
"""


def test_by_operation_size_and_span(tmp_path: Path) -> None:
    """Large messages on known machines come within a tenth or so; unknown machines are counted."""
    path = tmp_path / "published.csv"
    path.write_text(TABLE, encoding="utf-8")
    report = collectives.validate([path])
    assert report.skipped == {"no preset for its hardware": 1}
    assert len(report.compared) == 4
    assert max(abs(row.error) for row in report.compared) < 0.15
    assert {row.span for row in report.compared} == {"one domain", "several domains"}
    facts = report.as_dict()
    assert facts["from_1_mib"]["n"] == 4
    assert json.dumps(facts)


def test_unknown_cluster_and_empty_folder(tmp_path: Path) -> None:
    """A preset that does not exist, a folder without files, a path that is not there."""
    path = tmp_path / "published.csv"
    path.write_text(TABLE, encoding="utf-8")
    with pytest.raises(InputError, match="not a known preset"):
        collectives.validate([path], ["h1000"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no file"):
        collectives.validate([tmp_path / "empty"])
    with pytest.raises(InputError, match="no such file"):
        collectives.validate([tmp_path / "none.txt"])


def test_bars_on_published_collectives() -> None:
    """Median and p90 of the error from 1 MiB up."""
    facts = collectives.validate([shared() / "truth" / "collectives"]).as_dict()
    assert facts["from_1_mib"]["n"] > 200
    assert facts["from_1_mib"]["median"] <= 0.12
    assert facts["from_1_mib"]["p90"] <= 0.35
    assert facts["from_1_mib_several_domains"]["median"] <= 0.12
    assert facts["from_1_mib_several_domains"]["p90"] <= 0.35


def test_bars_on_published_gemms() -> None:
    """Median error per device: bf16 7 %, fp8 and fp4 12 %."""
    groups = list(kernels.gemm(shared() / "truth" / "kernels" / "gemm_measured.csv"))
    bars = {"bfloat16": 0.0725, "fp8": 0.12, "fp8_block": 0.12, "nvfp4": 0.12}
    checked = [g for g in groups if g.what in bars]
    assert len(checked) > 25
    assert {f"{g.device} {g.what}" for g in checked if g.median > bars[g.what]} == set()


def test_table_of_another_kind(tmp_path: Path) -> None:
    """Missing columns are named."""
    path = tmp_path / "gemm.csv"
    path.write_text("m,n,k\n1,2,3\n", encoding="utf-8")
    with pytest.raises(InputError, match="lacks the columns system, dtype, latency_us"):
        list(kernels.gemm(path))
