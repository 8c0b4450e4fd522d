"""Deep Dyna-Q (after Peng et al. 2018, arXiv 1801.06176): DQN that imagines."""
