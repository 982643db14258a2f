"""Measurements of openmind_compat against what it stands in for. Not part of the installed package."""
