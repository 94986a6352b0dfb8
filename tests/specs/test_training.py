"""The workload: recipes, batches in tokens, and bad numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.specs.base import build
from meshplan.specs.space import Space
from meshplan.specs.training import Training, sequences


def test_recipes() -> None:
    canonical = Training(precision="fp8").canonical(("flash2", "flash3"))
    assert canonical["compute_dtype"] == "fp8"
    assert canonical["optimizer_bytes_per_param"] == 12.0
    assert canonical["attention_kernel"] == "flash3"
    assert Training(attention="flash").canonical(("flash2",))["attention_kernel"] == "flash2"
    assert Training(precision="fp16").canonical(())["grad_dtype"] == "fp16"
    assert Training(optimizer="adam8bit").canonical(())["optimizer_bytes_per_param"] == 6.03125
    assert Training(rank_order="tp-cp-ep-pp-dp").canonical(())["pipeline_outermost"] is False


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(1024, 1024), ("1k", 1000), ("4M tokens", 512), ("8192 tokens", 1), ("4194304 tokens", 512)],
)
def test_batches(batch: int | str, expected: int) -> None:
    assert build(Training, {"seq_len": 8192, "global_batch": batch}).global_batch == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_batch", 0),
        ("global_batch", -4),
        ("global_batch", 1.5),
        ("global_batch", True),
        ("global_batch", "4M GB"),
        ("global_batch", "100 tokens"),
        ("global_batch", float("nan")),
        ("global_batch", 10**30),
        ("seq_len", 0),
        ("seq_len", "8 Gb"),
        ("seq_len", 2**40),
        ("seq_len", float("inf")),
        ("seq_len", [1]),
        ("moe_imbalance", 0.5),
        ("moe_imbalance", float("nan")),
        ("dropout", "maybe"),
        ("overlap", {"tpp": True}),
    ],
)
def test_bad_values_name_the_field(field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        build(Training, {field: value})
    assert field in caught.value.problems[0].field


@given(st.integers(1, 10**8), st.sampled_from([512, 2048, 4096, 8192, 131072]))
def test_a_batch_in_tokens_is_near_what_was_said(tokens: int, seq_len: int) -> None:
    count = sequences(max(tokens, seq_len), seq_len)
    assert count >= 1
    assert abs(count * seq_len - max(tokens, seq_len)) <= max(
        0.05 * max(tokens, seq_len) + 1, seq_len / 2
    )


def test_axes_cross_to_the_core() -> None:
    space = build(Space, {"tp": "1..8", "pp": 4, "cp": "2..", "sharding": "fsdp,1", "vpp": "any"})
    canonical = space.canonical()
    assert canonical["tp"] == {"min": 1, "max": 8}
    assert canonical["cp"] == {"min": 2, "max": None}
    assert canonical["pp"] == [4]
    assert canonical["sharding"] == ["zero1", "zero3"]
    assert canonical["vpp"] is None
    assert (space.pinned("pp"), space.pinned("tp")) == (4, None)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("tp", 0),
        ("tp", "8..2"),
        ("tp", ""),
        ("tp", []),
        ("tp", "1,,2"),
        ("tp", 1.5),
        ("tp", "9" * 40),
        ("tp", True),
        ("sharding", "zero4"),
        ("sharding", []),
        ("schedule", 7),
        ("sequence_parallel", "perhaps"),
        ("shard_group", "1..100000"),
        ("recompute_layers", {}),
    ],
)
def test_bad_axes(axis: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        build(Space, {axis: value})
    assert caught.value.problems[0].field.split(".")[0] == axis
