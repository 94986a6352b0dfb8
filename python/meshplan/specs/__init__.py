"""Specs: what people write, validated once at the edge, every error at once."""
