"""The V-trace actor-critic of IMPALA (arXiv 1802.01561) and SEED RL."""

from seedrl_jax.agents.vtrace.agent import AgentOutput, make_agent

__all__ = ('AgentOutput', 'make_agent')
