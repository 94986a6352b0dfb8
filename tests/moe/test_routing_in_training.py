"""``--routing`` sets the hottest expert rank of the training estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshplan.cli.app import main
from meshplan.moe import imbalance

LAYOUT = (
    *("--model", "qwen3-30b-a3b", "--cluster", "h100", "--gpus", "64", "--global-batch", "256"),
    *("--seq-len", "4096", "--ep", "8", "--tp", "1", "--pp", "1", "--micro-batch", "1"),
    *("--sharding", "1", "--json"),
)


def step_time(capsys: pytest.CaptureFixture[str], *args: str) -> float:
    return figures(capsys, *args)["step_time_s"]


def figures(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, float]:
    with pytest.raises(SystemExit) as left:
        main(["evaluate", *LAYOUT, *args])
    out, err = capsys.readouterr()
    assert not left.value.code, err
    return dict(reversed(_leaves(json.loads(out))))


def _leaves(value: object) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        direct = [(k, v) for k, v in value.items() if isinstance(v, int | float)]
        return direct + [leaf for v in value.values() for leaf in _leaves(v)]
    if isinstance(value, list):
        return [leaf for v in value for leaf in _leaves(v)]
    return []


def test_skew_costs_time_as_its_ratio_does(capsys: pytest.CaptureFixture[str]) -> None:
    even = step_time(capsys)
    uniform = step_time(capsys, "--routing", "uniform")
    skewed = step_time(capsys, "--routing", "dirichlet:1.3")
    assert even < uniform < 1.02 * even < skewed
    ratio = imbalance("dirichlet:1.3", experts=128, top_k=8, ranks=8, tokens_per_rank=4096)
    stated = step_time(capsys, "--moe-imbalance", repr(ratio))
    assert skewed == pytest.approx(stated, rel=1e-9)


def test_skew_is_a_column_and_a_term(capsys: pytest.CaptureFixture[str]) -> None:
    even, skewed = figures(capsys), figures(capsys, "--routing", "dirichlet:1.3")
    ratio = imbalance("dirichlet:1.3", experts=128, top_k=8, ranks=8, tokens_per_rank=4096)
    assert (even["moe_imbalance_ratio"], even["imbalance_s"]) == (1.0, 0.0)
    assert skewed["moe_imbalance_ratio"] == pytest.approx(ratio, rel=1e-12)
    assert skewed["gemm_s"] == even["gemm_s"]
    assert skewed["ep_comm_s"] == even["ep_comm_s"]
    longer = skewed["step_time_s"] - even["step_time_s"]
    hidden = even["dp_comm_s"] - skewed["dp_comm_s"]
    assert skewed["imbalance_s"] == pytest.approx(longer + hidden, rel=1e-6)


def test_recorded_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loads.csv"
    hot = ["1.5"] * 16 + ["1"] * 112
    path.write_text(",".join(hot) + "\n", encoding="utf-8")
    assert step_time(capsys, "--routing", str(path)) > 1.02 * step_time(capsys)


@pytest.mark.parametrize("routing", ["magic", "dirichlet:-1", "dirichlet:x", "absent.csv"])
def test_routing_that_is_none(routing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["evaluate", *LAYOUT, "--routing", routing])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error:")
