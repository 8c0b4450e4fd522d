"""R2D2 (Kapturowski et al., ICLR 2019) as in SEED RL, and Ape-X DQN."""
