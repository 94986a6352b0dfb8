"""Configs that make no sense: one clear message for each problem, and all of them at once."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.hf import load_model, presets
from meshplan.hf.source import MAX_BYTES, parse
from small_models import LLAMA


def problems(source: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_model(source)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", -1, "hidden_size = -1: must lie between 1 and"),
        ("hidden_size", 0, "hidden_size = 0: must lie between 1 and"),
        ("hidden_size", 10**30, "hidden_size = 1000000000000"),
        ("hidden_size", 10**400, "an integer of"),
        ("hidden_size", "1024", 'hidden_size = "1024": must be a whole number'),
        ("hidden_size", 1024.5, "hidden_size = 1024.5: must be a whole number"),
        ("hidden_size", True, "hidden_size = true: must be a whole number"),
        ("hidden_size", [1024], "hidden_size = [1024]: must be a whole number"),
        ("hidden_size", math.nan, "hidden_size = nan: must be a finite whole number"),
        ("num_hidden_layers", math.inf, "num_hidden_layers = inf: must be a finite whole number"),
        ("num_hidden_layers", 10**9, "num_hidden_layers = 1000000000: must lie between"),
        ("vocab_size", None, "vocab_size = null: must be given"),
        ("num_attention_heads", 17, "num_attention_heads = 17: must divide the hidden size 1024"),
        ("num_key_value_heads", 5, "num_key_value_heads = 5: must divide num_attention_heads = 16"),
        ("tie_word_embeddings", "yes", 'tie_word_embeddings = "yes": must be true or false'),
        ("model_type", 7, "model_type = 7: must be a string"),
        ("torch_dtype", "float3", 'torch_dtype = "float3": must be one of'),
        ("quantization_config", {"quant_method": "magic"}, "is not a known way to store weights"),
        ("quantization_config", "fp8", 'quantization_config = "fp8": must be an object'),
    ],
)
def test_one_field(field: str, value: Any, message: str) -> None:
    found = problems({**LLAMA, field: value})
    assert any(message in text for text in found), found


@pytest.mark.parametrize("field", [name for name in LLAMA if name != "num_key_value_heads"])
def test_a_missing_field_is_named(field: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != field}
    if field == "model_type":
        assert load_model(config).assumptions
    else:
        assert any(text.startswith(field) for text in problems(config))


def test_all_problems_come_at_once() -> None:
    bad = {"hidden_size": -1, "num_hidden_layers": "x", "vocab_size": 0, "num_attention_heads": 16}
    found = problems({**LLAMA, **bad})
    assert len(found) == 3
    assert {text.split(" ")[0] for text in found} == set(bad) - {"num_attention_heads"}


def test_experts() -> None:
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}
    assert problems(mixtral) == ["num_experts_per_tok = 9: must not exceed the 8 experts"]


def test_two_spellings_that_disagree() -> None:
    assert "must equal hidden_size = 1024" in problems({**LLAMA, "n_embd": 512})[0]


def test_lists_of_the_wrong_length() -> None:
    config = {**LLAMA, "model_type": "qwen3", "layer_types": ["full_attention"] * 3}
    assert "an entry for each of the 12 layers" in problems(config)[0]
    config["layer_types"] = ["full_attention"] * 11 + ["sideways_attention"]
    assert "sideways_attention" in problems(config)[0]


def test_sizes_that_only_together_are_absurd() -> None:
    huge = {
        **LLAMA, "model_type": "mixtral", "num_local_experts": 2**14, "num_experts_per_tok": 1,
        "hidden_size": 2**20, "intermediate_size": 2**20, "num_hidden_layers": 2048,
    }  # fmt: skip
    assert "total_params" in problems(huge)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("{", "must be JSON"),
        ('{"hidden_size": 1024, "num', "must be JSON"),
        ("not json", "must be JSON"),
        ("[1, 2]", "must be a JSON object at the top"),
        ("null", "must be a JSON object at the top"),
        ("[" * 100_000, "must nest at most 64 levels"),
        ("[" * 2_100_000, "must nest at most 64 levels"),
        ("[" + "[]," * 1_000_001 + "1]", "must hold at most 1000000 arrays"),
        ('{"a":' * 5_000, "must nest at most 64 levels"),
        ('{"hidden_size": ' + "9" * 10_000 + "}", "at most 4300 digits"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    assert message in problems(file)[0]
    assert message in problems(tmp_path)[0]


def test_a_truncated_file_says_where(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA, indent=1)[:-40])
    with pytest.raises(InputError) as caught:
        load_model(file)
    problem = caught.value.problems[0]
    assert problem.where.startswith(f"{file}:")
    assert "ends too early" in problem.hint


def test_another_kind_of_file_is_not_called_truncated(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("hidden_size: 4096")
    with pytest.raises(InputError) as caught:
        load_model(file)
    assert "another kind of file" in caught.value.problems[0].hint


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b'{"hidden_size": "\xff\xfe"}')
    assert "must be UTF-8" in problems(file)[0]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    assert "must be at most 50 MB" in problems(file)[0]


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    assert "no such file" in problems(str(tmp_path / "absent.json"))[0]
    assert "no such file" in problems(tmp_path)[0]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "must be a config.json" in problems(pipe)[0]
    assert problems("a\0b")
    assert problems("")
    assert problems("x" * 5000)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_model("lama-3.1-70b")
    assert "llama-3.1-70b" in caught.value.problems[0].hint
    with pytest.raises(InputError) as caught:
        load_model("meta-llama/Llama-3.1-70B-Instruct")
    assert "llama-3.1-70b" in caught.value.problems[0].hint


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["full_attention", "M*E-", "float32", "sparse"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
NAMES = sorted({key for name in presets.table() for key in presets.config(name)})


@settings(deadline=None)
@given(
    preset=st.sampled_from(sorted(presets.table())),
    changes=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=12), JSON, max_size=6),
    dropped=st.sets(st.sampled_from(NAMES), max_size=4),
)
def test_whatever_a_config_holds_only_input_errors_arise(
    preset: str, changes: dict[str, Any], dropped: set[str]
) -> None:
    config = {k: v for k, v in presets.config(preset).items() if k not in dropped}
    with contextlib.suppress(InputError):
        facts = load_model({**config, **changes}).summary()
        assert 0 < facts["active_params"] <= facts["language_params"] <= facts["total_params"]


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_whatever_a_file_holds_only_input_errors_arise(data: bytes) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(parse(data, "config.json"), dict)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=12), JSON, max_size=5))
def test_a_random_object_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        load_model(config)
