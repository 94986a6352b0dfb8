"""Read a Hugging Face ``config.json`` into the canonical model of the core.

>>> from meshplan.hf import load_model
>>> spec = load_model({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
...     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
...     "vocab_size": 128256})
>>> spec.summary()["total_params"]
8030261248
"""

from meshplan.hf.model import ModelSpec, load_model

__all__ = ["ModelSpec", "load_model"]
