"""Damaged inputs, and how each command ends: `python -m benchmarks.fuzz`."""
