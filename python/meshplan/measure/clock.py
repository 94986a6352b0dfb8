"""Timing of work on a device: warm up, repeat within a budget, report the median."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 3
"""Runs before the first timed one."""

MOST_REPEATS = 50
"""Timed runs at most."""


def median_s(work: Callable[[], Any], device: str, budget_s: float) -> float:
    """Median time of one run of `work`, s.

    CUDA work is timed by events around each run, so that the launch of the next run overlaps with
    it; CPU work by the clock.

    Parameters
    ----------
    work
        What is timed.
    device
        ``cuda`` or ``cpu``.
    budget_s
        Wall-clock time to stay within, at least one run.
    """
    import torch

    for _ in range(WARM_UP):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < MOST_REPEATS and (not times or time.perf_counter() < end):
        if device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            work()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) * 1e-3)
        else:
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return statistics.median(times)
