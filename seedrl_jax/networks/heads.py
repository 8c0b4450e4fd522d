"""Output heads, and networks with heads that agents share.

Heads compute in float32: rounding to bfloat16 would show in importance weights
and in the choice of the best action.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.networks import action_masks, distributions, health, popart
from seedrl_jax.networks import network as network_lib


class PolicyHead(nn.Module):
  """Parameters of a policy: linear, and nearly the same in all states at first.

  The last `num_free` parameters, log deviations of Gaussians, are trained
  numbers that no state changes.
  """

  num_params: int  # P
  num_free: int = 0

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to float32 parameters `[..., P]`."""
    # A small scale makes the first policies explore, whatever the torso.
    init = nn.initializers.orthogonal(0.01)
    size = self.num_params - self.num_free
    params = nn.Dense(size, dtype=jnp.float32, kernel_init=init)(features)
    if not self.num_free:
      return params
    zeros = nn.initializers.zeros
    log = self.param('log_deviation', zeros, (self.num_free,))
    free = jnp.broadcast_to(log, (*params.shape[:-1], self.num_free))
    return jnp.concatenate([params, free], axis=-1)


class BaselineHead(nn.Module):
  """Linear estimate of the return, or with PopArt of the normalised return."""

  popart: bool = False
  num_tasks: int = 1  # with an output each if there is PopArt

  @nn.compact
  def __call__(
    self, features: jax.Array, task: jax.Array | None = None
  ) -> jax.Array:
    """Maps features `[..., F]` to a float32 baseline `[...]`.

    `task`, int32 `[...]`, is that of each step; None in a run of one.
    """
    # The first returns bootstrap from values, and must show their scale.
    zeros = nn.initializers.zeros
    init = zeros if self.popart else nn.initializers.orthogonal(1.0)
    size = self.num_tasks if self.popart else 1
    outputs = nn.Dense(size, dtype=jnp.float32, kernel_init=init)(features)
    if self.popart:
      value = popart.Values(name=popart.NAME)(outputs, task)
    else:
      value = jnp.squeeze(outputs, axis=-1)
    health.sow_value(self, value)
    return value


class QHead(nn.Module):
  """Action values, in one stream or as a value and an advantage stream.

  Dueling streams give Q = V + A - mean A, equation 9 of Wang et al. 2016 (arXiv
  1511.06581). The mean cancels a bias of the advantages, so they have none.
  """

  num_actions: int
  hidden_size: int  # of each stream; 0: linear
  dueling: bool

  @nn.compact
  def __call__(
    self, features: jax.Array, legal: jax.Array | None = None
  ) -> jax.Array:
    """Maps features `[..., F]` to float32 action values `[..., A]`.

    `legal`, bool `[..., A]`, masks actions; None means all are legal.
    """
    if self.dueling:
      value = self._stream(features, 'value', 1)
      advantage = self._stream(
        features, 'advantage', self.num_actions, use_bias=False
      )
      q = value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
    else:
      q = self._stream(features, 'q', self.num_actions)
    q = action_masks.apply(q, legal)
    health.sow_value(self, jnp.max(q, axis=-1))
    return q

  def _stream(
    self, x: jax.Array, name: str, size: int, use_bias: bool = True
  ) -> jax.Array:
    if self.hidden_size:
      hidden = nn.Dense(
        self.hidden_size, dtype=jnp.float32, name=f'{name}_hidden'
      )
      x = nn.relu(hidden(x))
    return nn.Dense(size, use_bias, jnp.float32, name=name)(x)


class ActorCriticOutput(NamedTuple):
  """The heads' outputs for each step."""

  policy: jax.Array  # float32 [T, B, P], of the distribution of actions
  baseline: jax.Array  # float32 [T, B]


class ActorCritic(nn.Module):
  """Policy and baseline heads, on shared features or on their own."""

  network: network_lib.Network
  distribution: distributions.Distribution
  separate: bool = False  # the baseline has a network of its own
  free_deviation: bool = False  # no state changes deviations
  popart: bool = False  # see `popart`

  def initial_core(self, batch: int) -> types.Nest:
    """Returns the core state of `batch` environments before any step."""
    make = self.network.initial_core
    # Inference donates the state, and no array can be donated twice.
    return (make(batch), make(batch)) if self.separate else make(batch)

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: types.Nest
  ) -> tuple[ActorCriticOutput, types.Nest]:
    """Maps `[T, B, ...]` and a core to outputs and the next core."""
    if self.separate:
      baseline_network = self.network.copy(name='baseline_network')
      features, policy_core = self.network(inputs, core[0])
      baseline_features, baseline_core = baseline_network(inputs, core[1])
      core = policy_core, baseline_core
    else:
      features, core = self.network(inputs, core)
      baseline_features = features
    num_free = self.distribution.num_deviations if self.free_deviation else 0
    head = PolicyHead(self.distribution.num_params, num_free, name='policy')
    num_tasks = max(1, self.network.num_tasks)
    baseline_head = BaselineHead(self.popart, num_tasks, name='baseline')
    baseline = baseline_head(baseline_features, self.network.task(inputs))
    legal = self.network.legal(inputs)
    if legal is not None and isinstance(
      self.distribution, distributions.Hybrid
    ):
      legal = self.distribution.legal_params(legal)
    policy = action_masks.apply(head(features), legal)
    return ActorCriticOutput(policy, baseline), core


class QNetwork(nn.Module):
  """Action values on a network, recurrent or not."""

  network: network_lib.Network
  hidden_size: int  # of the head's streams; 0: linear
  dueling: bool

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[jax.Array, network_lib.CoreState]:
    """Maps `[T, B, ...]` and a core to values `[T, B, A]` and the next core."""
    features, core = self.network(inputs, core)
    num_actions = self.network.action.num_values
    head = QHead(num_actions, self.hidden_size, self.dueling, name='head')
    return head(features, self.network.legal(inputs)), core
