"""The action-value network: shared features and a head, dueling or plain."""

import flax.linen as nn
import jax

from seedrl_jax import types
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib


class QNetwork(nn.Module):
  """Action values on a network, recurrent or not.

  Attributes:
    network: gives the features.
    dueling: whether value and advantage have a stream each.
    head_hidden_size: hidden units of the head, or of each stream; 0: none.
  """

  network: network_lib.Network
  dueling: bool
  head_hidden_size: int

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[jax.Array, network_lib.CoreState]:
    """Maps `[T, B, ...]` and the core before it to values and the core after.

    Values are float32 `[T, B, A]`; `[T, B]` is as in `network.Network`.
    """
    features, core = self.network(inputs, core)
    head = heads.DuelingHead if self.dueling else heads.QHead
    num_actions = self.network.num_actions
    return head(num_actions, self.head_hidden_size, name='head')(features), core
