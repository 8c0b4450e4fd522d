"""Measures the speed of each stage alone and of the whole system."""
