"""PQN (Gallici et al. 2024, arXiv 2407.04811): Q(lambda) without a replay."""
