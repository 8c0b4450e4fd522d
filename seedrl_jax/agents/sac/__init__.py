"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1801.01290, 1812.05905)."""
