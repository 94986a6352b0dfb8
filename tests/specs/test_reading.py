"""Plans from files and flags: values, origins, and every problem at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshplan.errors import InputError
from meshplan.specs.reading import load_cluster, read_plan

if TYPE_CHECKING:
    from pathlib import Path

    from meshplan.specs.plan import Plan


def plan(**flags: Any) -> Plan:
    given = {
        tuple(name.split("__")): (value, "--" + name.split("__")[-1].replace("_", "-"))
        for name, value in flags.items()
    }
    return read_plan(None, given)  # type: ignore[arg-type]


def complaints(**flags: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        plan(**flags)
    return [str(problem) for problem in caught.value.problems]


def test_defaults() -> None:
    job = plan(gpus="1024")
    assert (job.model, job.gpus, job.workload.precision) == ("llama-3.1-70b", 1024, "bf16")
    assert job.cluster.name == "H100 NDR"
    assert job.cluster.nic == 50e9
    assert job.cluster.scale_up_fabric == {"base_s": 1e-6}


def test_a_file_and_flags_that_override_it(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'gpus = 64\nmodel = "qwen3-8b"\n[cluster]\npreset = "h200"\nnic = "200 Gb/s"\n'
        '[workload]\nseq_len = 4096\nglobal_batch = "4M tokens"\n'
        '[space]\ntp = "1..8"\npp = [1, 2]\n'
    )
    job = read_plan(file, {("space", "tp"): ("4", "--tp"), ("gpus",): ("128", "--gpus")})
    assert (job.gpus, job.model, job.space.tp, job.space.pp) == (128, "qwen3-8b", (4,), (1, 2))
    assert job.cluster.nic == 25e9
    assert job.cluster.device.memory == 141e9
    assert job.workload.global_batch == 1024


def test_every_problem_at_once_each_at_its_place(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        "gpus = 0\n"
        "[cluster]\n"
        'preset = "h100"\n'
        "\n"
        'nic = "400 Gbit"\n'
        "[cluster.device]\n"
        'memory = "80 Gb"\n'
        "[workload]\n"
        "seq_len = -1\n"
        'precison = "fp8"\n'
        "moe_imbalance = nan\n"
        'optimizer = "adm"\n'
    )
    with pytest.raises(InputError) as caught:
        read_plan(file, {("space", "tp"): ("1,x", "--tp")})
    found = {p.field: p for p in caught.value.problems}
    assert len(found) == 8
    assert found["gpus"].where == f"{file}:1:8"
    assert "at least 1" in found["gpus"].rule
    assert found["cluster.nic"].where == f"{file}:5:7"
    assert found["cluster.device.memory"].rule == "is in bits (Gb) where bytes are due"
    assert found["cluster.device.memory"].where == f"{file}:7:10"
    assert found["workload.seq_len"].value == "-1"
    assert found["workload.precison"].hint == "did you mean precision?"
    assert "moe_imbalance" in str(found["workload.moe_imbalance"])
    assert found["workload.optimizer"].hint == "did you mean adam?"
    assert found["--tp"].value == '"1,x"'
    assert all(p.rule for p in found.values())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"gpus = [", "is not TOML"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"a = '" + b"x" * (1 << 20) + b"'", "is larger than 1 MiB"),
        (b"model = 3\ngpus = 8", "must be a text"),
        (b"cluster = 3\ngpus = 8", "must be a table"),
        (b"gpus = 1e999", "must be a"),
        (b"gpus = " + b"9" * 4000, "every sensible range"),
        (b"", "is required"),
    ],
)
def test_broken_files(tmp_path: Path, text: bytes, rule: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_bytes(text)
    with pytest.raises(InputError, match=rule):
        read_plan(file)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "no.toml")
    with pytest.raises(InputError, match="is a directory"):
        read_plan(tmp_path)


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r'--cluster = "h101": is not a known preset') as caught:
        plan(gpus="8", cluster="h101")
    assert caught.value.hint == "did you mean h100 or h200?"


def test_cluster_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "h100"\nname = "mine"\nprice_per_gpu_hour = 2\n')
    assert load_cluster(str(file)).price_per_gpu_hour == 2
    assert plan(gpus="8", cluster=str(file)).cluster.name == "mine"
    file.write_text('[cluster]\npreset = "h100"\nnics_per_node = "none"\n')
    with pytest.raises(InputError, match=rf"^{file}:3:17: cluster.nics_per_node"):
        plan(gpus="8", cluster=str(file))


@pytest.mark.parametrize(("domain", "fits"), [(4, True), (8, True), (72, True), (5, False)])
def test_domains_are_whole_parts_or_multiples_of_a_node(domain: int, fits: bool) -> None:
    description = {"preset": "h100", "nvlink_domain": domain}
    if fits:
        assert load_cluster(description).nvlink_domain == domain
    else:
        with pytest.raises(InputError, match="must divide the node's 8 GPUs, or be a multiple"):
            load_cluster(description)


def test_a_device_without_curves_says_how_to_borrow_them() -> None:
    with pytest.raises(InputError, match=r"device.gemm: is required") as caught:
        load_cluster({"device": {"name": "x"}, "gpus_per_node": 8})
    hints = {p.field: p.hint for p in caught.value.problems}
    assert (
        hints["device.gemm"] == "add it, or borrow it: preset = a device or cluster that is like it"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gpus": "12"}, "--gpus = 12: must be a multiple of the node's 8 GPUs"),
        ({"gpus": "64", "space__tp": "3"}, "--tp = 3: must divide the 64 GPUs"),
        (
            {"gpus": "64", "space__tp": "16", "space__pp": "8"},
            "--pp = 8: tp · pp = 128 must divide gpus = 64",
        ),
        (
            {"gpus": "64", "space__tp": "8", "space__pp": "1", "space__cp": "1"}
            | {"workload__global_batch": "12"},
            "--global-batch = 12: must be a multiple of micro_batch · dp = 8",
        ),
        (
            {"gpus": "64", "space__pp": "1", "space__vpp": "2"},
            "--vpp = 2: virtual chunks need pp above 1",
        ),
        (
            {"gpus": "64", "space__schedule": "1f1b", "space__vpp": "2"},
            "--vpp = 2: virtual chunks need the interleaved schedule",
        ),
        (
            {"gpus": "64", "space__tp": "1", "space__sequence_parallel": "on"},
            "--sequence-parallel = true: sequence parallelism needs tp above 1",
        ),
        (
            {"gpus": "64", "space__recompute": "full", "space__recompute_layers": "2"},
            '--recompute-layers = "2": means something only with recompute block',
        ),
        (
            {"gpus": "64", "framework_version": "megatron-20"},
            '--framework-version = "megatron-20": is not a known generation',
        ),
        (
            {"gpus": "64", "framework": "torchtitan", "framework_version": "megatron-2021"},
            '--framework-version = "megatron-2021": is a generation of megatron-lm, '
            "not of torchtitan",
        ),
        (
            {"gpus": "64", "workload__precision": "nvfp4"},
            '--precision = "nvfp4": H100 has no nvfp4 peak and GEMM curve',
        ),
    ],
)
def test_contradictions(flags: dict[str, str], message: str) -> None:
    assert message in complaints(**flags)


def test_a_batch_that_some_layout_divides_is_fine() -> None:
    assert plan(gpus="64", workload__global_batch="7").workload.global_batch == 7
