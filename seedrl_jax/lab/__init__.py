"""Measures, plans and studies runs; no part of a run imports it."""
