"""Whatever a file says, the answer is a plan or an `InputError`; never another exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.specs.cluster import Cluster, Device
from meshplan.specs.plan import Plan
from meshplan.specs.reading import read_plan
from meshplan.specs.space import Space
from meshplan.specs.training import Training

if TYPE_CHECKING:
    from pathlib import Path

KEYS = sorted({k for s in (Plan, Cluster, Device, Space, Training) for k in s.model_fields})
scalars = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.text(max_size=12),
    st.sampled_from(["1..8", "80 Gb", "400 Gb/s", "h100", "fp8", "4M tokens", "any", "..", "1,2"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "preset", "tp", "odd"]), inner, max_size=4)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from([*Plan.model_fields, "odd"]), values, max_size=5)


def understood(job: dict[str, Any]) -> bool:
    try:
        plan = read_plan(None, {(name,): (value, "") for name, value in job.items()})
    except InputError as error:
        return clear(error)
    return plan.gpus > 0


def clear(error: InputError) -> bool:
    return bool(error.problems) and all(p.rule and len(str(p)) < 1000 for p in error.problems)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents)
def test_any_values(job: dict[str, Any]) -> None:
    assert understood(job)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), scalars, max_size=4))
def test_any_values_in_the_tables(table: dict[str, Any]) -> None:
    device = {"preset": "h100-sxm", **table}
    assert understood({"gpus": 64, "workload": table})
    assert understood({"gpus": 64, "space": table})
    assert understood({"gpus": 64, "cluster": {"preset": "h100", **table}})
    assert understood({"gpus": 64, "cluster": {"preset": "h100", "device": device}})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(InputError):
        read_plan(file)
