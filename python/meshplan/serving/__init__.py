"""Serving: which deployment answers at the lowest cost within its limits."""
