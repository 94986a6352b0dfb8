"""Fit kernel and collective curves to measured tables."""
