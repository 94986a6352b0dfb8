"""Measurements of this machine, in the files that ``planner calibrate`` reads."""
