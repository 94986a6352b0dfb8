"""Quantities: values, errors, and that what is printed reads back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan import units

Parser = Callable[[Any], float]

VALUES = [
    (units.parse_bytes, "80 GiB", 80 * 2**30),
    (units.parse_bytes, "80GB", 80e9),
    (units.parse_bytes, "1.5 TiB", 1.5 * 2**40),
    (units.parse_bytes, "512", 512),
    (units.parse_bytes, 85_899_345_920, 85_899_345_920),
    (units.parse_bytes, "1 kB", 1000),
    (units.parse_bytes_per_s, "400 Gb/s", 50e9),
    (units.parse_bytes_per_s, "400 Gbps", 50e9),
    (units.parse_bytes_per_s, "200 Gbit/s", 25e9),
    (units.parse_bytes_per_s, "450 GB/s", 450e9),
    (units.parse_bytes_per_s, "1 GiB/s", 2**30),
    (units.parse_bytes_per_s, 50e9, 50e9),
    (units.parse_seconds, "2.5 ms", 2.5e-3),
    (units.parse_seconds, "30 µs", 30e-6),
    (units.parse_seconds, "3 h", 10_800),
    (units.parse_flops, "989 TFLOP/s", 989e12),
    (units.parse_count, "1_024", 1024),
    (units.parse_count, "70B", 70_000_000_000),
    (units.parse_count, "8k", 8000),
    (units.parse_count, 8.0, 8),
    (units.parse_number, "1.3", 1.3),
    (units.parse_ratio, "40%", 0.4),
]


@pytest.mark.parametrize(("parse", "text", "value"), VALUES)
def test_value(parse: Parser, text: units.Quantity, value: float) -> None:
    assert parse(text) == value


WRONG = [
    (units.parse_bytes, "80 Gb", "bits"),
    (units.parse_bytes, "80 Gib", "bits"),
    (units.parse_bytes, "80 gb", "wrong case"),
    (units.parse_bytes, "80 gib", "wrong case"),
    (units.parse_bytes, "80 GB/s", "does not fit"),
    (units.parse_bytes, "80b", "wrong case"),
    (units.parse_bytes, "GiB", "number"),
    (units.parse_bytes, "", "number"),
    (units.parse_bytes, "-1 GiB", "negative"),
    (units.parse_bytes, "nan", "number"),
    (units.parse_bytes, math.nan, "number"),
    (units.parse_bytes, math.inf, "number"),
    (units.parse_bytes, "1e99 B", "range"),
    (units.parse_bytes, "1e999999999 B", "number"),
    (units.parse_bytes, "1" * 100, "number"),
    (units.parse_bytes, 10**400, "range"),
    (units.parse_bytes, True, "number"),
    (units.parse_bytes, None, "number"),
    (units.parse_bytes, "1,024 GiB", "number"),
    (units.parse_bytes, "٣ GiB", "number"),
    (units.parse_bytes_per_s, "400 Gb", "does not fit"),
    (units.parse_bytes_per_s, "400 gb/s", "wrong case"),
    (units.parse_bytes_per_s, "400 GBps", "wrong case"),
    (units.parse_seconds, "3 S", "wrong case"),
    (units.parse_count, "1.5", "whole"),
    (units.parse_count, "8 GiB", "does not fit"),
    (units.parse_count, "-8", "negative"),
]


@pytest.mark.parametrize(("parse", "text", "word"), WRONG)
def test_error_says_what_is_wrong(parse: Parser, text: Any, word: str) -> None:
    with pytest.raises(units.UnitError) as caught:
        parse(text)
    assert word in caught.value.rule
    assert caught.value.hint
    assert len(str(caught.value)) < 300


positive = st.floats(min_value=1e-9, max_value=1e20)


@given(positive)
def test_round_trip(value: float) -> None:
    pairs: list[tuple[Callable[[float], str], Parser]] = [
        (lambda v: units.format_bytes(v, digits=17), units.parse_bytes),
        (lambda v: units.format_bytes(v, digits=17, binary=False), units.parse_bytes),
        (lambda v: units.format_bytes_per_s(v, digits=17), units.parse_bytes_per_s),
        (lambda v: units.format_bytes_per_s(v, digits=17, bits=True), units.parse_bytes_per_s),
        (lambda v: units.format_seconds(v, digits=17), units.parse_seconds),
        (lambda v: units.format_flops(v, digits=17), units.parse_flops),
    ]
    for write, read in pairs:
        assert read(write(value)) == pytest.approx(value, rel=1e-14)


@given(st.integers(min_value=0, max_value=999_999))
def test_counts_round_trip(value: int) -> None:
    assert units.parse_count(units.format_count(value).replace(",", "_")) == value


@given(positive)
def test_four_digits_never_read_as_another_magnitude(value: float) -> None:
    assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=1e-3)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in units.PARSERS.values():
        try:
            result = parse(text)
        except units.UnitError:
            continue
        assert math.isfinite(result)
        assert result >= 0
