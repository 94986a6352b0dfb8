"""``planner moe loads``, ``dispatch`` and ``sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from conftest import shared
from meshplan.cli.app import main
from meshplan.moe import balance, describe, imbalance, read_loads, simulate


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["moe", *args])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def domains(tmp_path: Path) -> str:
    path = tmp_path / "loads.csv"
    path.write_text(
        "domain,layer,e0,e1,e2,e3\n"
        "web,0,10,20,30,40\nweb,1,40,30,20,10\n"
        "code,0,5,20,30,45\ncode,1,45,35,15,5\n",
        encoding="utf-8",
    )
    return str(path)


def test_loads_say_how_well_they_are_described(
    domains: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "loads", domains, "--top-k", "2", "--json")
    answer: dict[str, Any] = json.loads(out)
    assert status == 0
    assert [layer["layer"] for layer in answer["layers"]] == [0, 1]
    assert [s["name"] for s in answer["layers"][0]["snapshots"]] == ["web", "code"]
    assert answer["summary"]["held_out_error"] < answer["summary"]["unseen_error"]
    status, out, _ = run(capsys, "loads", domains, "--top-k", "2")
    assert status == 0
    assert "--routing dirichlet:" in out


def test_more_choices_than_experts(domains: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "loads", domains, "--top-k", "5")
    assert (status, out) == (2, "")
    assert "1 ≤ k ≤ E" in err


def test_one_placement_for_all_domains(domains: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "balance", domains, "--ranks", "2", "--robust", "--json")
    assert status == 0
    layer = json.loads(out)["layers"][0]
    assert layer["rank_max_over_mean"] == max(layer["snapshot_max_over_mean"])


def test_moving_is_charged(domains: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("balance", domains, "--ranks", "2", "--redundant", "2")
    every = ("--rebalance-every", "0,1")
    status, _, err = run(capsys, *shape, *every)
    assert status == 2
    assert "--expert-bytes" in err
    status, out, _ = run(capsys, *shape, *every, "--expert-bytes", "44 MB", "--json")
    answer = json.loads(out)
    assert status == 0
    assert [row["every"] for row in answer["rebalance"]] == [0, 1]
    assert answer["replica_bytes_per_rank"] == 2 / 2 * 44e6 * 2


def test_dispatch_meets_the_published_latency(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--experts", "256", "--top-k", "8", "--ranks", "64", "--nodes", "8")
    batch = ("--tokens", "128", "--hidden", "7168", "--nvlink", "200 GB/s")
    status, out, _ = run(
        capsys, "dispatch", *shape, *batch, "--kernel", "low-latency", "--matrix", "--json"
    )
    answer = json.loads(out)
    assert status == 0
    # The published run is balanced; ours has the sampling noise of 128 tokens.
    hot = answer["copies"]["rank_max_over_mean"]
    assert answer["dispatch"]["time_s"] / hot == pytest.approx(173e-6, rel=0.15)
    assert len(answer["matrix"]) == 64
    sent = sum(map(sum, answer["matrix"]))
    assert 64 * 128 < sent <= 64 * 128 * 8
    status, out, _ = run(capsys, "dispatch", *shape, *batch, "--expert-hidden", "2048")
    assert status == 0
    assert "exposed exchange" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--top-k", "9"), "1 ≤ k ≤ E"),
        (("--nodes", "3"), "must divide ranks"),
        (("--ranks", "3"), "must divide the 8 slots"),
        (("--routing", "magic"), "not a routing model"),
        (("--routing", "zipf:x"), "takes a number"),
        (("--routing", "absent.csv"), "nor a file of counts"),
        (("--group-limit", "8,1"), "groups kept hold k experts"),
        (("--group-limit", "8"), "two numbers"),
        (("--nic", "fast"), "--nic"),
    ],
)
def test_wrong_questions(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    given = dict(
        zip(
            ("--experts", "--top-k", "--ranks", "--tokens", "--hidden"),
            ("8", "2", "4", "16", "64"),
            strict=True,
        )
    )
    given[args[0]] = args[1]
    flags = [part for pair in given.items() for part in pair]
    status, out, err = run(capsys, "dispatch", *flags)
    assert (status, out) == (2, "")
    assert message in err


def test_sweep_to_a_file_and_to_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid.parquet"
    grid = ("--experts", "64", "--ranks", "8,48", "--tokens", "64,4096")
    status, out, _ = run(capsys, "sweep", *grid, "--output", str(path))
    assert (status, out) == (0, "")
    frame = pl.read_parquet(path)
    assert frame.height == 2 * 2 * 2 * 2
    assert set(frame["status"].cast(pl.String)) == {"ok", "experts"}
    status, out, _ = run(capsys, "sweep", *grid, "--json")
    rows = json.loads(out)
    assert rows[0]["rank_max_over_mean_ratio"] > 1
    assert any(row["rank_max_over_mean_ratio"] is None for row in rows)
    assert run(capsys, "sweep", "--ranks", "x")[0] == 2
    assert run(capsys, "sweep", "--alpha", "-1")[0] == 2


def test_sweep_is_the_closed_form() -> None:
    from meshplan.moe import sweep

    frame = sweep(experts=[256], top_k=[8], ranks=[32], tokens_per_rank=[128], alpha=[0, 1.3])
    for row in frame.to_dicts():
        routing = f"dirichlet:{row['alpha']}" if row["alpha"] else "uniform"
        alone = imbalance(routing, experts=256, top_k=8, ranks=32, tokens_per_rank=128)
        assert row["rank_max_over_mean_ratio"] == pytest.approx(alone)


def test_draws_are_seeded() -> None:
    shape = {"experts": 64, "top_k": 8, "ranks": 8, "tokens": 256, "trials": 40}
    one = simulate("dirichlet:1", **shape, seed=3, threads=1)  # type: ignore[arg-type]
    assert one == simulate("dirichlet:1", **shape, seed=3, threads=2)  # type: ignore[arg-type]
    assert one != simulate("dirichlet:1", **shape, seed=4)  # type: ignore[arg-type]


def test_recorded_once_per_data_parallel_rank(tmp_path: Path) -> None:
    loads = [[90.0, 20.0, 30.0, 7.0], [1.0, 2.0, 3.0, 4.0]]
    times_eight = [[8 * x for x in row] for row in loads]
    for policy in ("best", "eplb"):
        plain = balance(loads, ranks=2, redundant=2, policy=policy)  # type: ignore[arg-type]
        again = balance(times_eight, ranks=2, redundant=2, policy=policy)  # type: ignore[arg-type]
        assert plain == again
    path = tmp_path / "l.csv"
    path.write_text("tokens,e0,e1\n10,80,80\n", encoding="utf-8")
    with pytest.raises(Exception, match="tokens × 2") as caught:
        read_loads(path, top_k=2)
    assert "8 times as many" in caught.value.hint  # type: ignore[attr-defined]


def test_recorded_models_within_fifteen_percent() -> None:
    """Peak from the other domains, spread from the domain itself."""
    folder = shared("truth", "moe", "loads")
    files = {
        "olmoe/olmoe_1b_7b_expert_counts.csv": (8, {"kind": "expert_counts", "model": "olmoe"}),
        "olmoe/mixtral_8x7b_expert_counts.csv": (2, {"kind": "expert_counts"}),
        "gptoss20b/gptoss20b_expert_counts_by_dataset.csv": (4, {}),
    }
    for name, (top_k, where) in files.items():
        recorded = read_loads(folder / name, top_k=top_k, where=where)
        layers = describe(recorded.snapshots, top_k=top_k)
        errors = sorted(abs(x) for layer in layers for x in layer["held_out_error"])
        assert sum(errors) / len(errors) < 0.15, name
        assert errors[len(errors) // 2] < 0.135, name


def test_charts(domains: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert", reason="charts need the extra `plot`")
    pytest.importorskip("altair")
    commands = (
        ("loads", domains, "--top-k", "2"),
        ("balance", domains, "--ranks", "2"),
        ("sweep", "--experts", "64", "--ranks", "8", "--redundant", "0"),
    )
    for command in commands:
        path = tmp_path / f"{command[0]}.svg"
        assert run(capsys, *command, "--plot", str(path))[0] == 0
        assert path.read_text(encoding="utf-8").startswith("<svg")


def test_capacity_of_three_rules(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("sweep", "--experts", "64", "--top-k", "1", "--ranks", "8", "--tokens", "4096")
    axes = ("--redundant", "0", "--alpha", "0", "--capacity-factor", "1.1")
    rules = ("--capacity-rule", "megatron,switch,tutel")
    status, out, _ = run(capsys, *shape, *axes, *rules, "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["capacity_rule"] for row in rows] == ["megatron", "switch", "tutel"]
    assert [row["capacity_tokens"] for row in rows] == [71, 70, 70]
    for row in rows:
        kept = 4096 * (1 - row["dropped_ratio"]) / (64 * row["capacity_tokens"])
        assert row["padded_ratio"] == pytest.approx(1 - kept)
    status, _, err = run(capsys, *shape, *axes, "--capacity-rule", "foo")
    assert status == 2
    assert "--capacity-rule = foo: is not a rule of capacity" in err
    assert "hint: one of megatron" in err


def test_a_sweep_of_nothing_that_makes_sense(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "sweep", "--experts", "64", "--ranks", "7", "--redundant", "0")
    assert status == 1
    assert "--experts + --redundant is a multiple of --ranks" in err
    rule = ("--capacity-rule", "switch", "--capacity-factor", "1.1", "--ranks", "8")
    status, _, err = run(capsys, "sweep", "--experts", "64", "--redundant", "0", *rule)
    assert status == 1
    assert "Switch" in err


def test_more_choices_than_tokens_are_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loads.csv"
    path.write_text("kind,layer,e0,e1,e2,e3\ntop2,0,10,20,30,40\ntop1,0,90,2,4,4\n")
    status, _, err = run(capsys, "loads", str(path), "--top-k", "2")
    assert status == 0
    assert "top1: an expert has more than E/k = 2 times the mean" in err


@pytest.mark.parametrize(
    ("args", "first"),
    [
        (("--routing", "dirichlet:1.3*2"), "--routing = 2: a share in [0, 1]"),
        (("--nvlink", "0 GB/s"), "--nvlink = 0: must be above 0 bytes per second"),
        (("--nic", "nan GB/s"), "--nic = nan GB/s: must be a number with a unit"),
        (
            ("--expert-hidden", "8", "--weight-bytes", "nan"),
            "--weight-bytes = nan: must be a finite",
        ),
        (("--expert-hidden", "8", "--flops", "0 TFLOP/s"), "--flops = 0: must be above 0"),
    ],
)
def test_numbers_of_a_dispatch_that_make_no_sense(
    args: tuple[str, ...], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ("--experts", "8", "--top-k", "2", "--ranks", "4", "--tokens", "64", "--hidden", "64")
    status, out, err = run(capsys, "dispatch", *shape, *args)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {first}")
    assert "\nhint: " in err


def test_weights_of_an_unknown_format(domains: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "mixtral-8x7b", "--weight-dtype", "foo")
    status, _, err = run(capsys, "balance", domains, "--ranks", "2", *model)
    assert status == 2
    assert "--weight-dtype = foo: is not a format of weights" in err
