"""Bounds on a run's speed on accelerators that are not at hand."""
