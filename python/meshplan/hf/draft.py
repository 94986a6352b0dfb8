"""From the layers that a family reader found to the canonical model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshplan.hf.blocks import Part


@dataclass
class Draft:
    """What a family reader makes of a config; counts are parameters unless said otherwise."""

    hidden: int
    vocab: int
    layers: list[Part]
    final_norm: int
    """Final norm."""
    tied: bool = False
    """The head shares the embedding matrix."""
    positions: int = 0
    """Rows of a learned position table."""
    max_positions: int | None = None
    """Longest context, in tokens."""
    embedding_extra: int = 0
    """Norms and projections beside the embedding."""
    head_extra: int = 0
    """Biases and projections beside the head."""
    mtp: list[tuple[Part, int]] = field(default_factory=list)
    """Multi-token-prediction heads: layer, and projection with its norms."""
    towers: list[tuple[str, int]] = field(default_factory=list)
    """Towers outside the language model."""
    streams: int = 1
    """Residual streams."""
    embedding_width: int = 0
    """Width of the word table where it is not H (0: H)."""

    def canonical(self, name: str, model_type: str, weight_dtype: str) -> dict[str, Any]:
        """Build the JSON object of ``planner-core``'s ``Model``."""
        kinds: list[Part] = []
        index: dict[str, int] = {}

        def kind_of(part: Part) -> int:
            key = json.dumps(part, sort_keys=True)
            if key not in index:
                index[key] = len(kinds)
                kinds.append(dict(part))
            return index[key]

        layers = [kind_of(part) for part in self.layers]
        mtp = [
            {"kind": kind_of(part), "projection_params": projection}
            for part, projection in self.mtp
        ]
        _distinct_names(kinds)
        return {
            "name": name,
            "model_type": model_type,
            "hidden": self.hidden,
            "vocab": self.vocab,
            "tied_embeddings": self.tied,
            "learned_positions": self.positions,
            "embedding_width": self.embedding_width or self.hidden,
            "max_positions": self.max_positions,
            "embedding_extra_params": self.embedding_extra,
            "final_norm_params": self.final_norm,
            "head_extra_params": self.head_extra,
            "kinds": kinds,
            "layers": layers,
            "mtp": mtp,
            "towers": [{"name": tower, "params": params} for tower, params in self.towers],
            "residual_streams": self.streams,
            "weight_dtype": weight_dtype,
        }


def _distinct_names(kinds: list[Part]) -> None:
    """Number kinds that would share a name."""
    seen: dict[str, int] = {}
    for kind in kinds:
        name = str(kind["name"])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            kind["name"] = f"{name}#{seen[name]}"
