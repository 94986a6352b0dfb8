"""Counts against published ones: our own table, and the shared one where it is at hand."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conftest import shared
from meshplan.hf import load_model, presets

TABLE = tomllib.loads((Path(__file__).parent / "published.toml").read_text())


def named(row: dict[str, Any]) -> str:
    return str(row.get("model") or row["config"]["model_type"])


def facts(row: dict[str, Any]) -> dict[str, Any]:
    return load_model(row.get("model") or row["config"]).summary()


@pytest.mark.parametrize("row", TABLE["exact"], ids=named)
def test_exact_counts_agree_to_the_parameter(row: dict[str, Any]) -> None:
    found = facts(row)
    counted = found["total_params"]
    if row.get("stored"):
        table = found["embedding_params"]
        counted += found["mtp_params"] + row.get("copies", 0) * table
    assert counted == row["params"]


@pytest.mark.parametrize("row", TABLE["rounded"], ids=named)
def test_rounded_counts_agree(row: dict[str, Any]) -> None:
    found = facts(row)
    assert found["total_params"] == pytest.approx(row["params"], rel=row.get("within", 0.005))
    if "active" in row:
        assert found["active_params"] == pytest.approx(row["active"], rel=row["active_within"])
    if "active_without_embedding" in row:
        without = found["active_params_without_embedding"]
        assert without == pytest.approx(row["active_without_embedding"], rel=0.005)


@pytest.mark.parametrize(
    ("model", "dtype", "expected"),
    [
        ("llama-2-7b", "bf16", 524_288),
        ("llama-3-70b", "bf16", 327_680),
        ("llama-3.1-405b", "bf16", 516_096),
        ("llama-3.1-405b", "fp8", 258_048),
        ("qwen3-30b-a3b", "bf16", 98_304),
        ("qwen3-235b-a22b", "bf16", 192_512),
        ("deepseek-v3", "bf16", 70_272),
        ("deepseek-v3", "fp8", 35_136),
        ("gpt-oss-20b", "bf16", 49_152),
    ],
)
def test_kv_bytes_per_token(model: str, dtype: str, expected: int) -> None:
    assert load_model(model).summary(kv_dtype=dtype)["kv_bytes_per_token"] == expected


def test_every_preset_loads_with_its_source() -> None:
    table = presets.table()
    assert len(table) >= 25
    for name, entry in table.items():
        assert entry["title"]
        assert entry["source"].startswith("http")
        spec = load_model(name)
        assert spec.assumptions == [], name


def test_every_shared_config_loads() -> None:
    files = sorted(shared("truth", "hf_configs").rglob("*.json"))
    files += sorted(shared("truth", "training", "models").glob("*.json"))
    assert len(files) >= 200
    for file in files:
        assert load_model(file).summary()["total_params"] > 0


EXPLAINED = {
    "Qwen3-0.6B": "the card rounds 0.596 B up",
    "Qwen3-1.7B": "the card rounds 1.72 B down",
    "GLM-4.5": "the card's 355 B lies between the counts with and without the MTP layer",
    "GLM-4.5-Air": "the card rounds 106.9 B down",
    "MiniMax-M2.5": "the card rounds 228.7 B up",
    "grok-1": "the released shapes give 315.7 B",
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "the name rounds 120.7 B down",
    "Nemotron-H-56B-Base-8K": "the name rounds 56.3 B down",
}
"""Rows that differ from what was published by more than half a percent (docs/models.md)."""


def test_shared_counts_agree() -> None:
    folder = shared("truth", "hf_configs")
    with (folder / "param_counts.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) >= 40
    exact = 0
    for row in rows:
        counted = load_model(folder / row["config_file"]).summary()["total_params"]
        published = int(row["total_params"])
        if row["source"].startswith("exact"):
            exact += 1
            assert counted == published, row["model"]
        elif row["model"] in EXPLAINED:
            assert counted == pytest.approx(published, rel=0.013), row["model"]
        else:
            assert counted == pytest.approx(published, rel=0.005), row["model"]
    assert exact >= 20
