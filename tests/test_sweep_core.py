"""The binding of the sweep: account, frames, rows, progress, Ctrl-C, memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from conftest import REPO
from meshplan import _core
from meshplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = REPO / "rust" / "planner-core" / "fixtures"


def request(model: str, gpus: int, batch: int, **space: Any) -> str:
    """Canonical request on the cluster of the fixtures."""
    read = {
        name: json.loads((FIXTURES / f"{name}.json").read_text())
        for name in (model, "h100", "training", "software")
    }
    return json.dumps(
        {
            "model": read[model],
            "cluster": read["h100"],
            "training": {**read["training"], "global_batch": batch},
            "software": read["software"],
            "framework": "generic",
            "gpus": gpus,
            "space": space,
        }
    )


@pytest.fixture(scope="module")
def small() -> str:
    """Request whose space has some hundred thousand layouts."""
    return request("small-moe", 16, 48)


def large() -> str:
    """Request whose space takes seconds at least."""
    return request("deepseek-v3", 98_304, 294_912)


@pytest.mark.parametrize("exhaustive", [False, True])
def test_every_layout_is_accounted_for(small: str, exhaustive: bool) -> None:
    text, top, front = _core.sweep(small, top=7, exhaustive=exhaustive)
    account = json.loads(text)
    assert account["total"] == (
        account["evaluated"] + account["pruned"] + sum(account["rejected"].values())
    )
    assert sum(rule["layouts"] for rule in account["rules"]) == sum(
        n for status, n in account["rejected"].items() if status != "memory"
    )
    assert (account["pruned"] == 0) == exhaustive
    assert len(top) == 7
    assert len(front) > 1
    assert account["nearest"] is None


def test_pruned_equals_exhaustive_and_threads_do_not_matter(small: str) -> None:
    import polars as pl

    results = [
        [pl.DataFrame(frame) for frame in _core.sweep(small, exhaustive=exhaustive, threads=n)[1:]]
        for exhaustive, n in ((True, 1), (False, 1), (False, 3))
    ]
    for other in results[1:]:
        for frame, same in zip(results[0], other, strict=True):
            assert frame.equals(same)
    top, front = results[0]
    assert top["step_time_s"].is_sorted()
    assert front["peak_memory_bytes"].is_sorted(descending=True)
    assert front["step_time_s"][0] == top["step_time_s"][0]


def test_rows_stream_in_order_and_agree_with_the_account(small: str) -> None:
    import polars as pl

    account = json.loads(_core.sweep(small, exhaustive=True)[0])
    rows = _core.SweepRows(small, threads=2)
    frames = [pl.DataFrame(frame) for frame in rows]
    table = pl.concat(frames)
    assert len(frames) > 1
    assert len(table) == rows.feasible == rows.done == account["feasible"]
    assert (table["status"] == "ok").sum() == account["evaluated"]
    assert table["tp"].is_sorted()
    fits = sum(len(frame) for frame in _core.SweepRows(small, fitting=True))
    assert fits == account["evaluated"]
    columns = [name for name, _, _ in _core.training_columns()]
    assert table.columns == columns


def test_numbers_reach_polars_without_a_copy(small: str) -> None:
    import polars as pl

    frame = next(iter(_core.SweepRows(small)))
    table = pl.DataFrame(frame)
    for name, address in frame._buffer_addresses().items():
        if table[name].dtype in (pl.Float64, pl.UInt32, pl.UInt64):
            view = table[name].to_numpy(allow_copy=False)
            assert view.__array_interface__["data"][0] == address, name


def test_progress_is_told_and_its_errors_are_passed_on() -> None:
    told: list[tuple[int, int]] = []
    _core.sweep(large(), threads=1, on_progress=lambda done, total: told.append((done, total)))
    assert told
    assert told == sorted(told)
    assert all(0 <= done <= total for done, total in told)

    def fail(done: int, total: int) -> None:
        raise RuntimeError(f"{done} of {total}")

    with pytest.raises(RuntimeError, match="of"):
        _core.sweep(large(), exhaustive=True, on_progress=fail)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_interrupt_is_answered() -> None:
    asked: list[float] = []

    def interrupt() -> None:
        asked.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def sweep_on() -> None:
        for _ in range(100):
            _core.sweep(large(), exhaustive=True)

    timer = threading.Timer(0.5, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sweep_on()
    # 100 ms on an idle machine; one that does twenty other things gets more.
    assert time.monotonic() - asked[0] < 3.0
    timer.join()


def test_rows_need_no_more_memory_as_they_go_on() -> None:
    frames = iter(_core.SweepRows(large(), threads=2))

    def peak_after(count: int) -> int:
        for _ in range(count):
            next(frames)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    first = peak_after(4)
    assert peak_after(12) - first < 100_000  # KiB; twelve tables are 260 MB


def test_nothing_that_fits_names_the_nearest_constraint() -> None:
    account = json.loads(_core.sweep(request("gpt3-175b", 8, 8, tp=1, pp=1))[0])
    assert account["nearest"]["status"] == "memory"
    assert "GiB" in account["nearest"]["text"]
    account = json.loads(_core.sweep(request("small-dense", 8, 9, dp=8))[0])
    assert account["feasible"] == 0
    assert account["nearest"]["rule"] == "G14"
    assert "9 sequences" in account["nearest"]["text"]


def bad_requests() -> Iterator[tuple[str, str]]:
    """Requests that make no sense, with what the message says."""
    yield request("small-moe", 16, 48, tp=3), "divide the 16 GPUs"
    yield request("small-moe", 16, 48, tp=16, pp=16), "GPUs"
    yield request("small-moe", 16, 48, vpp=2, schedule=["1f1b"]), "interleaved"
    yield request("small-moe", 16, 48, pp=0), "at least 1"
    yield request("small-moe", 0, 48), "at least 1"
    yield request("small-moe", 16, 0), "at least 1"
    yield '{"model": 1}', "canonical spec"
    yield "[", "canonical spec"


@pytest.mark.parametrize(("asked", "said"), list(bad_requests()))
def test_requests_that_make_no_sense(asked: str, said: str) -> None:
    for call in (_core.sweep, _core.SweepRows):
        with pytest.raises(InputError, match=said):
            call(asked)
