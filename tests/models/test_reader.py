"""How families are read: layer kinds, wrappers, unknown types, unknown fields."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meshplan.errors import InputError
from meshplan.hf import load_model
from small_models import LLAMA


def kinds(config: dict[str, Any] | str) -> Counter[str]:
    canonical = load_model(config).canonical
    return Counter(canonical["kinds"][index]["name"] for index in canonical["layers"])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3.1-8b", {"gqa+dense": 32}),
        ("llama-2-7b", {"mha+dense": 32}),
        ("mistral-7b", {"gqa-w4096+dense": 32}),
        ("mixtral-8x7b", {"gqa+moe": 32}),
        ("deepseek-v3", {"mla+dense": 3, "mla+moe": 58}),
        ("deepseek-v3.2", {"mla-top2048+dense": 3, "mla-top2048+moe": 58}),
        ("gpt-oss-20b", {"gqa-w128+moe": 12, "gqa+moe": 12}),
        ("gemma-3-27b", {"gqa-w1024+dense": 52, "gqa+dense": 10}),
        ("qwen3-next-80b-a3b", {"linear+moe": 36, "gqa+moe": 12}),
        (
            "llama-4-maverick",
            {"gqa-chunk8192+dense": 24, "gqa-chunk8192+moe": 12, "gqa+moe": 12},
        ),
        ("nemotron-3-nano-30b-a3b", {"mamba2": 23, "moe": 23, "gqa": 6}),
        ("falcon-40b", {"gqa+dense": 60}),
    ],
)
def test_layer_kinds(model: str, expected: dict[str, int]) -> None:
    assert kinds(model) == expected


def test_a_sliding_window_that_is_switched_off_is_no_window() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert kinds(qwen) == {"gqa+dense": 12}
    assert kinds({**qwen, "use_sliding_window": True, "max_window_layers": 8}) == {
        "gqa+dense": 8,
        "gqa-w4096+dense": 4,
    }


def test_a_wrapper_owns_the_head() -> None:
    text = {**LLAMA, "model_type": "qwen3_vl_text", "tie_word_embeddings": True, "head_dim": 64}
    wrapper = {"model_type": "qwen3_vl", "text_config": text, "tie_word_embeddings": False}
    assert load_model(wrapper).canonical["tied_embeddings"] is False
    assert load_model({**wrapper, "tie_word_embeddings": None}).canonical["tied_embeddings"] is True


def test_what_transformers_leaves_out_is_its_default() -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
    }  # fmt: skip
    spec = load_model({"model_type": "gemma3", "text_config": text})
    # 4,300,079,472 parameters of google/gemma-3-4b-it without its tower and projector.
    assert spec.summary()["language_params"] == 4_300_079_472 - 416_866_032 - 2560 * 1152 - 1152
    assert any("num_attention_heads is not given: 8" in text for text in spec.assumptions)


def test_towers_count_in_the_total_only() -> None:
    text = {**LLAMA, "model_type": "gemma3_text"}
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "image_size": 896, "patch_size": 14,
    }  # fmt: skip
    wrapper = {"model_type": "gemma3", "text_config": text, "vision_config": vision}
    facts = load_model(wrapper).summary()
    assert facts["tower_params"] == 416_866_032 + 1152 * 1024 + 1152
    assert facts["total_params"] - facts["tower_params"] == facts["language_params"]
    assert facts["active_params"] == facts["language_params"]


def test_an_unknown_type_is_a_generic_decoder_with_named_assumptions() -> None:
    spec = load_model({**LLAMA, "model_type": "no_such_model"})
    assert spec.summary()["total_params"] == load_model(LLAMA).summary()["total_params"]
    assert "no_such_model" in spec.assumptions[0]
    near = load_model({**LLAMA, "model_type": "lama"}).assumptions[0]
    assert "nearest: llama" in near
    for word in ("norms", "feed-forward", "attention_bias", "tie_word_embeddings"):
        assert any(word in text for text in spec.assumptions), word


def test_an_unknown_type_follows_its_architecture() -> None:
    config = {**LLAMA, "model_type": "mystery", "architectures": ["Qwen2ForCausalLM"]}
    spec = load_model(config)
    assert spec.canonical["kinds"][0]["mixer"]["bias_params"] == (16 + 2 * 4) * 64
    assert "qwen2" in spec.assumptions[0]


def test_a_field_that_may_cost_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="num_memory_tokens = 16") as caught:
        load_model({**LLAMA, "num_memory_tokens": 16})
    assert caught.value.problems[0].field == "num_memory_tokens"
    assert caught.value.problems[0].hint


@pytest.mark.parametrize("value", [None, False, 0, [], {}, ""])
def test_a_field_that_is_off_is_no_cost(value: object) -> None:
    assert load_model({**LLAMA, "num_memory_tokens": value}).assumptions == []


def test_a_field_without_a_telling_name_is_noted() -> None:
    assert load_model({**LLAMA, "favourite_colour": "blue"}).assumptions == [
        "favourite_colour is not known and is taken to cost nothing"
    ]


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_stored_formats(quantization: dict[str, Any] | None, dtype: str) -> None:
    spec = load_model({**LLAMA, "quantization_config": quantization})
    assert spec.canonical["weight_dtype"] == dtype


def test_searched_blocks_may_lack_parts() -> None:
    whole = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}}
    blocks = [
        whole,
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.3125}},
        {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}},
        {"attention": {"no_op": True}, "ffn": {"no_op": True}},
    ]
    config = {
        "model_type": "nemotron-nas", "hidden_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 16, "vocab_size": 1000, "block_configs": blocks,
    }  # fmt: skip
    facts = load_model(config).summary()
    params = {kind["name"]: kind["params"] for kind in facts["kinds"]}
    assert params["gqa+dense"] == 2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 1792 + 2048
    assert params["dense"] == 3 * 1024 * 1024 + 1024
    assert params["linear+dense"] == 2 * 1024 * 1024 + 2048
    assert params["identity"] == 0


def test_a_preset_is_not_changed_by_its_likes() -> None:
    first = load_model("llama-3.1-8b").summary()["total_params"]
    load_model("llama-3.1-405b")
    assert load_model("LLAMA-3.1-8B").summary()["total_params"] == first
    assert load_model("llama3.1_8b").name == "llama-3.1-8b"
