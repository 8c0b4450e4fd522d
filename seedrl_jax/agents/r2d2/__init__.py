"""R2D2 (Kapturowski et al., ICLR 2019) as in SEED RL, and Ape-X DQN with it."""

from seedrl_jax.agents.r2d2.agent import AgentOutput, make_agent

__all__ = ('AgentOutput', 'make_agent')
