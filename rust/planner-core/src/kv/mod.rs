//! KV cache: bytes, blocks, engine arithmetic, prefix caches and trace replay.
