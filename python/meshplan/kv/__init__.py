"""KV cache: what an engine gets, what block sizes waste, what a prefix cache saves on a trace."""

from __future__ import annotations

from meshplan.kv.replay import Point, Replay, replay

__all__ = ["Point", "Replay", "replay"]
