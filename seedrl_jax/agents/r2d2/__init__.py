"""R2D2 (Kapturowski et al., ICLR 2019) as in SEED RL, and Ape-X DQN with it."""

from seedrl_jax.agents.r2d2.agent import AgentOutput, make_agent
from seedrl_jax.agents.r2d2.checks import RANGES

__all__ = ('RANGES', 'AgentOutput', 'make_agent')
