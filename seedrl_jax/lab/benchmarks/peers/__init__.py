"""Comparison with other libraries, each in a Python environment of its own."""
