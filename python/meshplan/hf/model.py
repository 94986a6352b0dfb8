"""The entrance: from whatever names a model to a checked :class:`ModelSpec`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import meshplan._core as _core
from meshplan.errors import InputError
from meshplan.hf import registry
from meshplan.hf.dtype import weight_dtype
from meshplan.hf.fields import Fields
from meshplan.hf.known import check_rest
from meshplan.hf.source import load
from meshplan.hf.towers import towers

if TYPE_CHECKING:
    from meshplan.hf.draft import Draft


@dataclass(frozen=True)
class ModelSpec:
    """A model that was read and checked.

    Attributes
    ----------
    name
        Display name: a preset, a folder or a file name.
    canonical
        The model as the core takes it.
    assumptions
        What the reader had to assume, a sentence each.
    """

    name: str
    canonical: Mapping[str, Any] = field(repr=False)
    assumptions: list[str] = field(default_factory=list)

    def canonical_json(self) -> str:
        """Return the model as the JSON text that the core parses."""
        return json.dumps(self.canonical, separators=(",", ":"))

    def summary(self, *, kv_dtype: str = "bf16") -> dict[str, Any]:
        """Return parameters, KV bytes per token and layer kinds, as the core counts them.

        Parameters
        ----------
        kv_dtype
            Format of the KV cache.
        """
        text = _core.model_summary(self.canonical_json(), kv_dtype)
        summary: dict[str, Any] = json.loads(text, parse_float=_number)
        return summary


def _number(text: str) -> int | float:
    """Read a whole number of bytes as an integer."""
    value = float(text)
    return int(value) if value.is_integer() else value


def load_model(source: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec) -> ModelSpec:
    """Read a model.

    Parameters
    ----------
    source
        A ``config.json``, a folder that holds one, the name of a preset, or the parsed config.

    Returns
    -------
    ModelSpec
        The model and the assumptions that were made.

    Raises
    ------
    InputError
        With every problem of the config at once.

    Examples
    --------
    >>> load_model("llama-3.1-8b").summary()["kv_bytes_per_token"]
    131072
    """
    if isinstance(source, ModelSpec):
        return source
    name, config = load(source)
    f = Fields(config)
    draft, family, model_type = _read(f)
    dtype = weight_dtype(f)
    if f.problems:
        raise InputError.all_of(f.problems)
    canonical = draft.canonical(name, model_type or family, dtype)
    spec = ModelSpec(name, canonical, f.assumptions)
    spec.summary()  # the core refuses what no bound above caught
    return spec


def _read(f: Fields) -> tuple[Draft, str, str]:
    """Read a language model, alone or inside a multimodal wrapper."""
    wrapper = f.text("model_type")
    for name in registry.TEXT_CONFIGS:
        if isinstance(f.data.get(name), Mapping):
            return _read_wrapped(f, wrapper, name)
    family = registry.family_of(f)
    draft = registry.read(f, family)
    draft.towers += towers(f, wrapper, draft.hidden)
    check_rest(f, family or "an unknown decoder")
    return draft, family, wrapper


def _read_wrapped(f: Fields, wrapper: str, name: str) -> tuple[Draft, str, str]:
    inner = dict(f.data[name])
    tied = f.data.get("tie_word_embeddings")
    if tied is not None:
        # The wrapper owns the head, so its word counts.
        inner["tie_word_embeddings"] = tied
    f.ignore(name, "tie_word_embeddings")
    for shared in ("quantization_config", "torch_dtype", "dtype"):
        if shared in inner:
            f.default(shared, inner.pop(shared))
    text = Fields(inner, f"{name}.", f)
    default = registry.WRAPPERS.get(wrapper, "")
    if not default and registry.ALIASES.get(wrapper, wrapper) not in registry.READERS:
        f.assume(f"model_type {wrapper!r} is not known: its language model is read from {name}")
    family = registry.family_of(text, default)
    draft = registry.read(text, family)
    draft.towers += towers(f, wrapper, draft.hidden)
    check_rest(text, family or "an unknown decoder")
    check_rest(f, wrapper or "the wrapper", wrapper=True)
    return draft, family, wrapper
