"""Fixtures and helpers for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a machine that does other things is slow, not wrong.
settings.register_profile("fast", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("slow", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

REPO = Path(__file__).resolve().parent.parent


def shared(*parts: str) -> Path:
    """Path under the folder of shared material, or skip the test where it is absent.

    The folder is ``$PLANNER_SHARED``, or ``shared`` beside the repository. In continuous
    integration (``CI=true``) its absence is a failure, so that no check is skipped unseen.
    """
    root = Path(os.environ.get("PLANNER_SHARED") or REPO.parent / "shared")
    path = root.joinpath(*parts)
    if not path.exists():
        reason = f"shared material is not here: {path} (set PLANNER_SHARED)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path
