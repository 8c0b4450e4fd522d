"""The V-trace actor-critic of IMPALA (arXiv 1802.01561) and SEED RL."""
