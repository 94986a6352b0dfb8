"""Exit statuses and refusals of ``planner kv`` that a stranger meets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshplan.cli.app import main

SWEEP = ("sweep", "--model", "llama-3.1-8b", "--lengths", "fixed:10,1", "--block-size", "16")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["kv", *args])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,block_ids\n0,600,5,1 2\n1,600,5,1 3\n")
    return str(path)


def test_no_request_fits(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(
        capsys, "schedule", trace, "--blocks", "0", "--block-size", "512", "--json"
    )
    assert status == 1
    assert json.loads(out)["rejected"] == 2
    assert "no request fits 0 blocks" in err


def test_no_row_fits(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *SWEEP, "--available-memory", "-3GiB", "--json")
    assert status == 1
    assert json.loads(out)["points"][0]["status"] == "memory"
    assert "hint: less of --max-model-len" in err


def test_more_stages_than_layers_are_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *SWEEP, "--gpu", "h100", "--pp", "2,100", "--json")
    rows = json.loads(out)["points"]
    assert status == 0
    assert [(row["status"], row["num_blocks"] > 0) for row in rows] == [
        ("ok", True),
        ("layers", False),
    ]


@pytest.mark.parametrize(
    ("args", "first"),
    [
        (("replay", "--sample", "nan"), "--sample = nan: must be a finite number"),
        (("replay", "--plot", "x.gif"), "--plot = x.gif: must end in .png, .svg or .html"),
        (("schedule", "--blocks", "9", "--watermark", "nan"), "--watermark = nan"),
        (("schedule", "--blocks", "9", "--conservativeness", "inf"), "--conservativeness = inf"),
    ],
)
def test_numbers_that_are_none(
    trace: str, args: tuple[str, ...], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, args[0], trace, *args[1:])
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {first}")


def test_a_chart_of_other_policies_shows_the_capacities(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = tmp_path / "hits.svg"
    given = ("--policy", "fifo", "--capacity", "1,2", "--plot", str(chart))
    assert run(capsys, "replay", trace, *given)[0] == 0
    assert chart.read_text().startswith("<svg")


def test_a_link_of_no_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("transfer", "--model", "llama-3.1-8b", "--prompt", "100", "--link", "0 GB/s")
    status, _, err = run(capsys, *args)
    assert status == 2
    assert "--link = 0: must be above 0" in err
