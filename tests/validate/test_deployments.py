"""What rows of measured deployments mean, and what happens to those that make no sense."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.hf import load_model
from meshplan.validate import deployments

MODEL = load_model("gpt-oss-120b")


def row(**changes: str) -> dict[str, str]:
    base = {
        "deployment_id": "mine",
        "backend": "vllm",
        "model": "gpt-oss-120b",
        "hf_config_quantized": "gpt-oss-120b",
        "gpu": "h200-141gb-sxm",
        "isl_nominal": "1024",
        "osl_nominal": "512",
        "length_range_low": "0.8",
        "concurrency": "16",
        "weight_precision": "mxfp4",
        "attn_precision": "bf16",
        "moe_precision": "mxfp4",
        "kv_dtype": "bf16",
        "tp": "4",
        "spec_tokens": "0",
    }
    return {**base, **changes}


def split(**changes: str) -> dict[str, str]:
    """A disaggregated row."""
    sides = {
        "mode": "disagg",
        "tp": "",
        "prefill_workers": "2",
        "prefill_tp": "4",
        "prefill_attention_dp": "4",
        "prefill_ep": "4",
        "decode_workers": "1",
        "decode_tp": "8",
        "decode_attention_dp": "8",
        "decode_ep": "1",
        "decode_max_batch": "256",
        "gpus": "16",
    }
    return row(**{**sides, **changes})


def meaning(found: dict[str, str]) -> deployments.Recorded:
    return deployments.interpret("mine.csv:2", found, MODEL)


def engine(found: dict[str, str], side: str = "decode") -> dict[str, object]:
    return dict(meaning(found).deployment[side]["engine"])


def test_an_aggregated_row() -> None:
    found = meaning(row(num_prompts="160", max_num_batched_tokens="20000", ep="2", gpus="4"))
    assert (found.device, found.cluster, found.backend) == ("h200-sxm", "h200", "vllm")
    assert found.deployment["prefill"] is None
    assert found.deployment["precision"] == {
        "attention": "bf16",
        "dense": "bf16",
        "experts": "mxfp4",
        "kv": "bf16",
    }
    one = found.deployment["decode"]["engine"]
    assert (one["tp"], one["ep"], one["moe_tp"]) == (4, 2, 2)
    assert one["max_batched_tokens"] == 20000
    assert found.load["arrivals"] == {"kind": "closed", "concurrency": 16}
    assert found.load["input"] == {"tokens": 1024, "low": 0.8}
    assert found.load["requests"] == 160
    assert found.assumptions == ()


def test_a_disaggregated_row() -> None:
    found = meaning(split(kv_dtype=""))
    prefill, decode = found.deployment["prefill"], found.deployment["decode"]
    assert (prefill["workers"], decode["workers"]) == (2, 1)
    assert decode["engine"]["max_batch"] == 256
    assert decode["engine"]["ep"] == 8
    assert any("decode ep" in words for words in found.assumptions)
    assert found.deployment["precision"]["kv"] == "fp8"


def test_expert_ranks_hold_as_many_experts_each() -> None:
    wide = split(decode_tp="24", decode_attention_dp="24", decode_ep="24", gpus="32")
    assert engine(wide)["redundant_experts"] == 16
    assert any("16 redundant experts" in words for words in meaning(wide).assumptions)


def test_blank_lengths_are_nominal() -> None:
    assert meaning(row(length_range_low="")).load["output"] == {"tokens": 512, "low": 1.0}


def test_equal_engines_share_the_gpus() -> None:
    assert meaning(row(gpus="16")).deployment["decode"]["workers"] == 4


def test_a_rate_is_an_open_load() -> None:
    found = meaning(row(request_rate="2.5"))
    assert found.load["arrivals"] == {"kind": "open", "rate_per_s": 2.5, "cv": 1.0}


@pytest.mark.parametrize(
    ("changes", "kv"),
    [
        ({"kv_dtype": "fp8"}, "fp8"),
        ({"kv_dtype": ""}, "bf16"),
        ({"kv_dtype": "", "gpu": "b200-180gb"}, "fp8"),
        ({"kv_dtype": "", "backend": "trtllm"}, "fp8"),
        ({"kv_dtype": "", "backend": "trtllm", "weight_precision": "bf16"}, "bf16"),
        ({"kv_dtype": "", "hf_config_quantized": "Kimi-K2.5-NVFP4"}, "fp8"),
    ],
)
def test_the_format_of_the_cache(changes: dict[str, str], kv: str) -> None:
    assert meaning(row(**changes)).deployment["precision"]["kv"] == kv


@pytest.mark.parametrize(
    ("version", "nearest"),
    [("0.18.0", ""), ("0.5.1", "0.11"), ("v1.0", "0.11"), ("nightly-2026", ""), ("", "")],
)
def test_versions_that_were_not_measured_are_said(version: str, nearest: str) -> None:
    assert deployments.nearest_version("vllm", version) == nearest
    found = meaning(row(backend_version=version))
    assert bool(nearest) == any("nearest" in words for words in found.assumptions)


def test_budgets_of_silent_rows() -> None:
    assert engine(row())["max_batched_tokens"] == 8192
    assert engine(row(backend="sglang"))["max_batched_tokens"] == 16384
    long = row(backend="TensorRT-LLM", isl_nominal="8192", concurrency="128")
    assert engine(long)["max_batched_tokens"] == 8320


def test_budgets_are_those_of_attention_replicas() -> None:
    ranks = {"attention_dp": "4", "max_num_batched_tokens": "8192"}
    assert engine(row(backend="trtllm", **ranks))["max_batched_tokens"] == 4 * 8192
    assert engine(row(backend="sglang", **ranks))["max_batched_tokens"] == 8192
    assert engine(split(backend="sglang"), "prefill")["max_batched_tokens"] == 4 * 16384


def test_a_dense_model_has_one_format() -> None:
    dense = row(weight_precision="nvfp4", attn_precision="", moe_precision="")
    assert set(meaning(dense).deployment["precision"].values()) == {"nvfp4", "bf16"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpu": "h1000"}, "gpu"),
        ({"backend": "mybackend"}, "backend"),
        ({"mode": "both"}, "mode"),
        ({"isl_nominal": "0"}, "isl_nominal"),
        ({"osl_nominal": ""}, "osl_nominal"),
        ({"osl_nominal": "many"}, "osl_nominal"),
        ({"concurrency": ""}, "concurrency"),
        ({"concurrency": "1e99"}, "concurrency"),
        ({"tp": ""}, "tp"),
        ({"tp": "-4"}, "tp"),
        ({"tp": "2.5"}, "tp"),
        ({"attention_dp": "3"}, "attention_dp"),
        ({"ep": "3"}, "ep"),
        ({"ep": "2", "moe_tp": "4"}, "ep"),
        ({"gpus": "6"}, "gpus"),
        ({"ttft_ms": "-5"}, "ttft_ms"),
        ({"tpot_ms": "nan"}, "tpot_ms"),
        ({"length_range_low": "1.2"}, "length_range_low"),
        ({"weight_precision": "fp3"}, "weight_precision"),
        ({"kv_dtype": "fp5"}, "kv_dtype"),
        ({"request_rate": "-1"}, "request_rate"),
        ({"spec_tokens": "-1"}, "spec_tokens"),
    ],
)
def test_rows_that_make_no_sense_name_place_and_column(changes: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        meaning(row(**changes))
    problems = {problem.field: problem for problem in caught.value.problems}
    assert field in problems
    assert problems[field].where == "mine.csv:2"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prefill_workers": ""}, "prefill_workers"),
        ({"decode_tp": ""}, "decode_tp"),
        ({"decode_attention_dp": "3"}, "decode_attention_dp"),
        ({"prefill_ep": "3"}, "prefill_ep"),
    ],
)
def test_disaggregated_rows_that_make_no_sense(changes: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        meaning(split(**changes))
    assert field in {problem.field for problem in caught.value.problems}


def test_every_problem_of_a_row_at_once() -> None:
    with pytest.raises(InputError) as caught:
        deployments.interpret("x:2", row(gpu="h1000", isl_nominal="0", tp="0"), None)
    fields = {problem.field for problem in caught.value.problems}
    assert fields >= {"model", "gpu", "isl_nominal", "tp"}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_rows_know_their_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.csv", [row(notes="two\nlines"), row(deployment_id="b", notes="")])
    places = [where for where, _ in deployments.read_rows(file)]
    assert places == ["mine.csv:3", "mine.csv:4"]


def test_unknown_columns_are_tolerated(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.csv", [row(colour="green")])
    assert deployments.read_rows(file)[0][1]["colour"] == "green"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the columns"),
        ("deployment_id,backend\n", "lacks the columns model"),
        ("deployment_id,backend,model,gpu,isl_nominal,osl_nominal,tp\n", "holds no deployment"),
        ("deployment_id,backend,model,gpu,isl_nominal,osl_nominal,tp\na,b\n", "2 cells"),
        ("deployment_id,backend,model,gpu,isl_nominal,osl_nominal,tp,tp\n", "twice"),
        ('deployment_id,"backend\n', "not a table"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        deployments.read_rows(path)
    assert words in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(b"deployment_id\xff\xfe\n")
    with pytest.raises(InputError, match="not a table"):
        deployments.read_rows(path)


def test_names_are_unique_and_given(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.csv", [row(), row(), row(deployment_id="")])
    with pytest.raises(InputError) as caught:
        deployments.read_rows(file)
    assert [problem.where for problem in caught.value.problems] == ["mine.csv:3", "mine.csv:4"]


@given(st.dictionaries(st.sampled_from(sorted(split())), st.text(max_size=12), max_size=6))
def test_hostile_cells_never_crash(changes: dict[str, str]) -> None:
    try:
        found = meaning(split(**changes))
    except InputError:
        return
    assert found.deployment["decode"]["engine"]["tp"] >= 1
