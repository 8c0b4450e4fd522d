"""The actor-critic network: shared features, policy and baseline heads."""

from typing import NamedTuple

import flax.linen as nn
import jax

from seedrl_jax import types
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib


class ActorCriticOutput(NamedTuple):
  """The heads' outputs for each step."""

  policy_logits: jax.Array  # float32 [T, B, A]
  baseline: jax.Array  # float32 [T, B]


class ActorCritic(nn.Module):
  """Policy and baseline heads on shared features."""

  network: network_lib.Network

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[ActorCriticOutput, network_lib.CoreState]:
    """Maps `[T, B, ...]` and a core to outputs and the next core."""
    features, core = self.network(inputs, core)
    logits = heads.PolicyHead(self.network.num_actions, name='policy')(features)
    baseline = heads.BaselineHead(name='baseline')(features)
    return ActorCriticOutput(logits, baseline), core
