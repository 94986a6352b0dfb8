"""Serving numbers of one's own: the fit, the file, and the commands that read it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshplan.calibrate import serving_profile
from meshplan.errors import InputError
from meshplan.specs import serving_costs
from meshplan.validate.serving import validate_serving

PUBLISHED = Path(__file__).parents[1] / "validate" / "published_deployments.csv"


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(path: Path, slower: float) -> list[dict[str, str]]:
    """Rows of a backend, measured to be what the shipped numbers say, with TPOT times a factor."""
    with PUBLISHED.open(newline="", encoding="utf-8") as stream:
        rows = [r for r in csv.DictReader(stream) if r["backend"] == "vllm" and r["mode"] == "agg"]
    told = validate_serving(write(path, rows)).predictions.to_dicts()
    for row, p in zip(rows, told, strict=True):
        row["tpot_ms"], row["ttft_ms"] = f"{slower * p['tpot_ms']:.4f}", f"{p['ttft_ms']:.4f}"
    return rows


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    return write(folder / "own.csv", predicted(folder / "rows.csv", 1.25))


def test_a_slower_engine_is_learned_and_the_file_predicts_it(slow: Path) -> None:
    profile = serving_profile.calibrate_serving(slow)
    figures = {f.name: f for f in profile.figures}
    assert set(figures) == {"shipped", "fitted", "cell left out", "model left out"}
    assert figures["shipped"].tpot[0] == pytest.approx(0.2, abs=0.01)
    assert figures["fitted"].tpot[0] < 0.05
    assert figures["cell left out"].tpot[0] < 0.1
    assert profile.parameters
    assert not any(t.startswith("software.trtllm") for p in profile.parameters for t in p.targets)

    file = slow.with_name("mine.toml")
    file.write_text(profile.to_toml(), encoding="utf-8")
    found = validate_serving(slow, params=file).score["errors"]["all"]["all"]["tpot"]["median"]
    assert found == pytest.approx(figures["fitted"].tpot[0], abs=2e-3)


def test_numbers_that_predict_unseen_rows_no_better_are_kept(tmp_path: Path) -> None:
    rows = predicted(tmp_path / "rows.csv", 1.0)
    profile = serving_profile.calibrate_serving(write(tmp_path / "exact.csv", rows))
    assert profile.parameters == []
    assert "every number" in profile.refused
    assert [f.name for f in profile.figures] == ["shipped"]
    assert "stays at the preset" in profile.to_toml()


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    rows = predicted(tmp_path / "rows.csv", 1.0)[:3]
    with pytest.raises(InputError, match="holds 3 deployments"):
        serving_profile.calibrate_serving(write(tmp_path / "few.csv", rows))


def test_a_file_of_numbers_is_checked_whole(tmp_path: Path) -> None:
    file = tmp_path / "numbers.toml"
    file.write_text('["vllm.stepp"]\nvalue = 1\n["vllm.step"]\nvalue = -1\n["gemm_rate"]\nx = 1\n')
    with pytest.raises(InputError) as caught:
        serving_costs.read_values(file)
    told = str(caught.value)
    assert "numbers.toml:1" in told
    assert "is not a number of the serving model" in told
    assert told.count("must be a number in") == 2
    file.write_text("")
    with pytest.raises(InputError, match="names no number"):
        serving_costs.read_values(file)
    file.write_text('["vllm.step"]\nvalue = 0.002\n')
    assert serving_costs.read_values(file) == {"vllm.step": 0.002}


JOB = [
    *("evaluate", "--workload", "serving", "--model", "llama-3.1-8b", "--cluster", "h100"),
    *("--backend", "vllm", "--isl", "1024", "--osl", "128", "--concurrency", "4", "--json"),
]


def planner(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *words]
    env = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


def test_the_flag_replaces_shipped_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('["vllm.step"]\nvalue = 0.05\n')
    shipped, own = (
        json.loads(planner(*JOB, *flags, cwd=tmp_path).stdout)["tpot_s"]
        for flags in ((), ("--serving-params", "mine.toml"))
    )
    assert own - shipped == pytest.approx(0.05, rel=0.1)
    absent = planner(*JOB, "--serving-params", "none.toml", cwd=tmp_path)
    assert absent.returncode == 2
    assert "none.toml" in absent.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--output", "x.toml"), "--cluster"),
        (("--output", "x.toml", "--serving", "a.csv", "--cluster", "h100"), "training profiles"),
        (("--output", "x.csv", "--serving", "a.csv"), "must end in .toml"),
        (("--output", "x.toml", "--serving", "absent.csv"), "absent.csv"),
    ],
)
def test_bad_flags_of_calibrate(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    done = planner("calibrate", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
