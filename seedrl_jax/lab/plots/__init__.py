"""Curves of runs, and figures of them."""
