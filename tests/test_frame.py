"""Columns leave the core without a copy, with their names, units and docs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

import meshplan as mp

if TYPE_CHECKING:
    from meshplan._core import Frame


@pytest.fixture(scope="module")
def frame() -> Frame:
    result = mp.sweep(model="llama-3.1-8b", cluster="h100", gpus=16, tp="1..4", pp="1..4")
    first = next(iter(result.batches()))
    assert len(first) > 100
    return first


def test_polars_reads_the_buffers_of_the_engine(frame: Frame) -> None:
    table = pl.DataFrame(frame)
    addresses = frame._buffer_addresses()
    assert len(addresses) > 20
    for name, address in addresses.items():
        view = table[name].to_numpy(allow_copy=False)
        assert view.ctypes.data == address, name


def test_a_frame_can_be_read_many_times(frame: Frame) -> None:
    assert pl.DataFrame(frame).equals(pl.DataFrame(frame))
    frame.__arrow_c_stream__(None)
    frame.__arrow_c_stream__(requested_schema=None)


def test_buffers_outlive_the_frame() -> None:
    result = mp.sweep(model="llama-3.1-8b", cluster="h100", gpus=16, tp=4)
    table = pl.DataFrame(next(iter(result.batches())))
    del result
    assert table["tp"].unique().to_list() == [4]


def test_columns_are_those_declared(frame: Frame) -> None:
    declared = [name for name, _, _ in mp.columns()]
    assert frame.column_names == declared
    assert pl.DataFrame(frame).columns == declared


def test_names_are_categories_and_switches_are_booleans(frame: Frame) -> None:
    schema = pl.DataFrame(frame).schema
    assert schema["sharding"] == pl.Categorical
    assert schema["sequence_parallel"] == pl.Boolean
    assert schema["step_time_s"] == pl.Float64


def test_units_and_docs_are_metadata_of_the_fields(frame: Frame) -> None:
    schema = pl.Schema(frame)
    assert list(schema) == frame.column_names
    assert repr(frame) == f"Frame({len(frame)} rows × {len(schema)} columns)"
