"""Scheduler replay against a real engine, and its command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from conftest import shared
from meshplan.cli.app import main
from meshplan.errors import InputError
from meshplan.kv import Engine, StepTime, fit_step_time, schedule
from meshplan.kv.schedule import read_measured

if TYPE_CHECKING:
    from pathlib import Path

CSV = "arrival_s,input_tokens,output_tokens\n0,1000,50\n0.1,2000,100\n0.2,500,400\n"
OTHER_RUN = StepTime(
    base_s=0.0283, prefill_token_s=29.2e-6, decode_s=8.42e-6, context_token_s=4.6e-9
)
"""Fitted on the RTX PRO 6000 run; see `test_a_run_is_fitted`."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(CSV)
    return path


def test_a_published_run() -> None:
    """RTX 4090, 2,588 blocks: peaks within 10 % with a step time fitted on another run."""
    out = schedule(
        shared("truth", "traces", "vllm_runs", "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"),
        Engine(blocks=2588, max_num_seqs=256, max_num_batched_tokens=2048, step=OTHER_RUN),
    )
    assert out.finished == 300
    assert out.peak_running == pytest.approx(49, rel=0.1)
    assert out.peak_occupancy_ratio == pytest.approx(1.0, rel=0.1)
    assert out.mean_occupancy_ratio == pytest.approx(0.927, rel=0.1)
    assert out.makespan_s == pytest.approx(183.6, rel=0.1)
    assert out.ttft_s["mean"] == pytest.approx(65.46, rel=0.1)


@pytest.mark.slow
def test_a_run_is_fitted() -> None:
    runs = ("truth", "traces", "vllm_runs")
    trace = shared(*runs, "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz")
    measured = read_measured(shared(*runs, "RTXPRO6000_Llama-3.1-8B_requests.jsonl"))
    engine = Engine(blocks=100_000, max_num_seqs=128, step=StepTime(context_token_s=1e-8))
    fit = fit_step_time(trace, measured, engine, rounds=40)
    assert fit.error < 0.12


def test_frames(trace: Path) -> None:
    out = schedule(trace, Engine(blocks=300))
    frame = pl.DataFrame(out.requests)
    assert frame["preemptions"].sum() == out.preemptions
    assert (frame["ttft_s"] > frame["queue_s"]).all()
    over_time = pl.DataFrame(out.timeline)
    assert over_time["occupancy_ratio"].max() == pytest.approx(out.peak_occupancy_ratio)
    assert over_time["time_s"].is_sorted()


def test_a_request_longer_than_the_pool(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["kv", "schedule", str(trace), "--blocks", "101", "--json"])
    out, err = capsys.readouterr()
    assert left.value.code == 0
    data = json.loads(out)
    assert (data["rejected"], data["finished"]) == (1, 2)
    assert data["first_rejected"] == {"request": 1, "blocks": 132, "shortfall_blocks": 32}
    assert "132 blocks" in err


def test_files_and_text(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, over_time = tmp_path / "rows.parquet", tmp_path / "time.csv"
    with pytest.raises(SystemExit):
        main(["kv", "schedule", str(trace), "--blocks", "200", "--policy", "sglang",
              "--output", str(rows), "--timeline", str(over_time)])  # fmt: skip
    assert "3 requests in" in capsys.readouterr().out
    assert pl.read_parquet(rows).height == 3
    assert pl.read_csv(over_time).height > 3


@pytest.mark.parametrize(
    "engine",
    [
        {"blocks": -1},
        {"blocks": 10, "block_size": 0},
        {"blocks": 10, "watermark": 1.5},
        {"blocks": 10, "step": StepTime(base_s=-1.0)},
    ],
)
def test_bad_engines(trace: Path, engine: dict[str, object]) -> None:
    with pytest.raises(InputError):
        schedule(trace, Engine(**engine))  # type: ignore[arg-type]


def test_a_bad_measurement(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"queued_ts": 1, "first_token_ts": 2}\n')
    with pytest.raises(InputError, match=r"run\.jsonl:1"):
        read_measured(path)
