"""KV cache: what an engine gets, what block sizes waste, what a prefix cache saves on a trace."""

from __future__ import annotations

from meshplan.kv.replay import Point, Replay, replay
from meshplan.kv.schedule import Engine, Schedule, StepTime, fit_step_time, schedule
from meshplan.kv.size import Flags, Hardware, Size, size
from meshplan.kv.sweep import Axes, Lengths, lengths_of, sweep, sweep_frames
from meshplan.kv.transfer import Route, Transfer, transfer

__all__ = [
    "Axes",
    "Engine",
    "Flags",
    "Hardware",
    "Lengths",
    "Point",
    "Replay",
    "Route",
    "Schedule",
    "Size",
    "StepTime",
    "Transfer",
    "fit_step_time",
    "lengths_of",
    "replay",
    "schedule",
    "size",
    "sweep",
    "sweep_frames",
    "transfer",
]
