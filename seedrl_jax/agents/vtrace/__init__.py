"""The V-trace actor-critic of IMPALA (arXiv 1802.01561) and SEED RL."""

from seedrl_jax.agents.vtrace.agent import AgentOutput, make_agent
from seedrl_jax.agents.vtrace.checks import RANGES

__all__ = ('RANGES', 'AgentOutput', 'make_agent')
